"""decisions: what was decided about a mail whose holder hung, by whom and why. A row a decision, kept for the retention by TTL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property

from cassandra.query import PreparedStatement

from mailslice.codec.row import epoch_ms, instant
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.stores.cassandra.session import CassandraSession, Row

DECISIONS_TABLE = """(
    queuename text,
    day text,
    decided timestamp,
    enqueueid uuid,
    action text,
    attempt int,
    name text,
    stage text,
    worker text,
    age_ms bigint,
    verdict text,
    why text,
    who text,
    run text,
    PRIMARY KEY ((queuename, day), decided, enqueueid, action)
) WITH CLUSTERING ORDER BY (decided DESC, enqueueid ASC, action ASC)"""

_COLUMNS = (
    "queuename",
    "day",
    "decided",
    "enqueueid",
    "action",
    "attempt",
    "name",
    "stage",
    "worker",
    "age_ms",
    "verdict",
    "why",
    "who",
    "run",
)
BY_A_PERSON = "a person decided"
"""The verdict of a decision that no duty and no worker took."""
_LONGEST_TTL = timedelta(days=365 * 5)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """One decision. `age` is how long the worker had held the mail; `verdict` is what the mail was found to be, `action` what was done (or would be)."""

    enqueue_id: EnqueueId
    name: str
    stage: str
    worker: str
    age: timedelta
    verdict: str
    action: str
    why: str
    decided: datetime
    who: str = "unknown"
    run: str = ""
    attempt: int = 1


class Decisions:
    """The decisions of each queue, a partition a day."""

    def __init__(self, session: CassandraSession, keyspace: str) -> None:
        self._session = session
        self._name = f"{keyspace}.decisions"

    def save(self, queue: QueueName, row: DecisionRow, ttl: timedelta) -> None:
        """Write the row; written twice it is one. A `ttl` of more than five years keeps it for ever."""
        seconds = 0 if ttl > _LONGEST_TTL else max(1, int(ttl.total_seconds()))
        key = [queue, _day(row.decided), epoch_ms(row.decided), row.enqueue_id, row.action]
        told = [
            row.attempt,
            row.name,
            row.stage,
            row.worker,
            row.age // _MILLISECOND,
            row.verdict,
            row.why,
            row.who,
            row.run,
        ]
        self._session.execute(self._insert, [*key, *told, seconds])

    def list(self, queue: QueueName, since: datetime, until: datetime) -> Iterator[DecisionRow]:
        """The decisions from `since` to `until`, newest first."""
        day = until
        while _day(day) >= _day(since):
            for row in self._session.stream(self._select, [queue, _day(day)]):
                found = _row(row)
                if since <= found.decided <= until:
                    yield found
            day -= timedelta(days=1)

    @cached_property
    def _insert(self) -> PreparedStatement:
        return self._session.prepare(
            f"INSERT INTO {self._name} ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))}) USING TTL ?"
        )

    @cached_property
    def _select(self) -> PreparedStatement:
        return self._session.prepare(
            f"SELECT {', '.join(_COLUMNS[2:])} FROM {self._name} WHERE queuename = ? AND day = ?"
        )


def _day(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d}"


def _row(values: Row) -> DecisionRow:
    decided, enqueue_id, action, attempt, name, stage, worker, age, verdict, why, who, run = values
    return DecisionRow(
        enqueue_id=enqueue_id,
        name=str(name),
        stage=str(stage),
        worker=str(worker),
        age=int(age or 0) * _MILLISECOND,
        verdict=str(verdict),
        action=str(action),
        why=str(why),
        decided=instant(decided),
        who=str(who),
        run=str(run),
        attempt=int(attempt or 1),
    )
