"""runs: one row for each run of a duty, kept for the retention by TTL."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

from cassandra.query import PreparedStatement

from mailslice.codec.row import epoch_ms, instant
from mailslice.model.mail import QueueName
from mailslice.stores.cassandra.session import CassandraSession, Row

RUNS_TABLE = """(
    duty text,
    queuename text,
    started timestamp,
    run text,
    dag_run text,
    who text,
    reason text,
    status text,
    plan_digest text,
    finished timestamp,
    report text,
    PRIMARY KEY ((duty, queuename), started, run)
) WITH CLUSTERING ORDER BY (started DESC, run ASC)"""

_COLUMNS = (
    "duty",
    "queuename",
    "started",
    "run",
    "dag_run",
    "who",
    "reason",
    "status",
    "plan_digest",
    "finished",
    "report",
)
_LONGEST_TTL = timedelta(days=365 * 5)
"""Cassandra refuses what would expire after January 2038; a longer retention is for ever."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run as the ledger keeps it; `report` is the JSON of the report, whole. `dag_run` is Airflow's run id."""

    run: str
    duty: str
    queue: QueueName
    started: datetime
    status: str
    report: str = "{}"
    dag_run: str | None = None
    who: str | None = None
    reason: str | None = None
    plan_digest: str | None = None
    finished: datetime | None = None


class Runs:
    """The ledger's table."""

    def __init__(self, session: CassandraSession, keyspace: str) -> None:
        self._session = session
        self._name = f"{keyspace}.runs"

    def save(self, row: RunRow, ttl: timedelta) -> None:
        """Write the row, over an earlier one of the same run and start. A `ttl` of more than five years keeps it for ever."""
        seconds = 0 if ttl > _LONGEST_TTL else max(1, int(ttl.total_seconds()))
        finished = None if row.finished is None else epoch_ms(row.finished)
        values = (
            row.duty,
            row.queue,
            epoch_ms(row.started),
            row.run,
            row.dag_run,
            row.who,
            row.reason,
            row.status,
            row.plan_digest,
            finished,
            row.report,
        )
        self._session.execute(self._insert, [*values, seconds])

    def _partitions(self) -> list[tuple[str, str]]:
        return [(row[0], row[1]) for row in self._session.stream(self._distinct)]

    def list(
        self, duty: str | None = None, queue: QueueName | None = None, limit: int = 20
    ) -> list[RunRow]:
        """The newest runs first, of one duty or queue or of all."""
        partitions = [
            (d, q) for d, q in self._partitions() if duty in {None, d} and queue in {None, q}
        ]
        rows = [
            _row(row)
            for d, q in partitions
            for row in self._session.execute(self._newest, [d, q, limit])
        ]
        return sorted(rows, key=lambda row: (row.started, row.run), reverse=True)[:limit]

    def get(self, run: str) -> RunRow | None:
        """The run of this id, or None."""
        for duty, queue, started, name in self._session.stream(self._keys):
            if name == run:
                rows = self._session.execute(self._one, [duty, queue, started, name])
                return _row(rows[0]) if rows else None
        return None

    def delete(self, row: RunRow) -> None:
        """Delete the row."""
        self._session.execute(self._delete, [row.duty, row.queue, epoch_ms(row.started), row.run])

    @cached_property
    def _insert(self) -> PreparedStatement:
        return self._session.prepare(
            f"INSERT INTO {self._name} ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))}) USING TTL ?"
        )

    @cached_property
    def _newest(self) -> PreparedStatement:
        return self._session.prepare(
            f"SELECT {', '.join(_COLUMNS)} FROM {self._name} WHERE duty = ? AND queuename = ? LIMIT ?"
        )

    @cached_property
    def _one(self) -> PreparedStatement:
        return self._session.prepare(
            f"SELECT {', '.join(_COLUMNS)} FROM {self._name} WHERE duty = ? AND queuename = ? AND started = ? AND run = ?"
        )

    @cached_property
    def _keys(self) -> PreparedStatement:
        return self._session.prepare(f"SELECT duty, queuename, started, run FROM {self._name}")

    @cached_property
    def _distinct(self) -> PreparedStatement:
        return self._session.prepare(f"SELECT DISTINCT duty, queuename FROM {self._name}")

    @cached_property
    def _delete(self) -> PreparedStatement:
        return self._session.prepare(
            f"DELETE FROM {self._name} WHERE duty = ? AND queuename = ? AND started = ? AND run = ?"
        )


def _row(values: Row) -> RunRow:
    duty, queue, started, run, dag_run, who, reason, status, digest, finished, report = values
    return RunRow(
        run=str(run),
        duty=str(duty),
        queue=QueueName(str(queue)),
        started=instant(started),
        status=str(status),
        report=str(report or "{}"),
        dag_run=dag_run,
        who=who,
        reason=reason,
        plan_digest=digest,
        finished=None if finished is None else instant(finished),
    )
