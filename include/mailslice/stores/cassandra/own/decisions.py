"""decisions: what was decided about mails whose holder hung, by whom and why; kept by TTL."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from mailslice.model.mail import EnqueueId, QueueName
from mailslice.stores.cassandra.own.table import OwnTable, ttl_seconds
from mailslice.stores.cassandra.table import Statement, insert, select
from mailslice.stores.own.codec import RowCodec

BY_A_PERSON = "a person decided"
"""The verdict of a decision that no duty and no worker took."""


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """One decision. `age`: how long it was held; `verdict`: its state; `action`: what is done."""

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


_ROWS = RowCodec(DecisionRow, enqueue_id="enqueueid", age="age_ms")


class Decisions(OwnTable):
    """The decisions of each queue, a partition a day."""

    TABLE = "decisions"
    SCHEMA = """
        queuename text, day text, decided timestamp, enqueueid uuid, action text, attempt int,
        name text, stage text, worker text, age_ms bigint, verdict text, why text, who text,
        run text, PRIMARY KEY ((queuename, day), decided, enqueueid, action)
    """
    OPTIONS = "CLUSTERING ORDER BY (decided DESC, enqueueid ASC, action ASC)"

    _insert = Statement(insert(("queuename", "day", *_ROWS.columns), "USING TTL ?"))
    _list = Statement(select(_ROWS.columns, "queuename = ? AND day = ?"))

    _days = Statement("SELECT DISTINCT queuename, day FROM {table}")

    def save(self, queue: QueueName, row: DecisionRow, ttl: timedelta) -> None:
        """Write the row; written twice it is one. A `ttl` of more than five years is for ever."""
        values = [queue, _day(row.decided), *_ROWS.values(row), ttl_seconds(ttl)]
        self._session.execute(self._insert, values)

    def queues(self) -> Iterator[QueueName]:
        """The queue of each day that has decisions: a scan of all partition keys."""
        for name, _ in self._session.stream(self._days, []):
            yield QueueName(name)

    def list(self, queue: QueueName, since: datetime, until: datetime) -> Iterator[DecisionRow]:
        """The decisions from `since` to `until`, newest first."""
        day = until
        while _day(day) >= _day(since):
            rows = map(_ROWS.record, self._session.stream(self._list, [queue, _day(day)]))
            yield from (row for row in rows if since <= row.decided <= until)
            day -= timedelta(days=1)


def _day(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d}"
