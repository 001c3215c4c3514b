"""decisions: the log of decisions on mails whose worker hung, with who and why. Rows have a TTL."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from mailslice.model.mail import EnqueueId, QueueName
from mailslice.stores.cassandra.own.table import OwnTable, ttl_seconds
from mailslice.stores.cassandra.table import Statement, insert, select
from mailslice.stores.own.codec import RowCodec
from mailslice.stores.own.days import day_of, days_back

BY_A_PERSON = "a person decided"
"""The verdict of a decision that neither a duty nor a worker took."""


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """One decision. The mail was held for `age` and judged `verdict`; `action` follows."""

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
        """Writes the row; a repeat changes nothing. Beyond five years, `ttl` means no expiry."""
        values = [queue, day_of(row.decided), *_ROWS.values(row), ttl_seconds(ttl)]
        self._session.execute(self._insert, values)

    def days(self, since: datetime, until: datetime) -> Mapping[QueueName, Sequence[str]]:
        """The days with decisions of each queue, newest first. Scans all partition keys."""
        first, last = day_of(since), day_of(until)
        by_queue: dict[QueueName, list[str]] = {}
        for name, day in self._session.stream(self._days, []):
            if first <= day <= last:
                by_queue.setdefault(QueueName(name), []).append(day)
        return {queue: sorted(days, reverse=True) for queue, days in by_queue.items()}

    def list(
        self, queue: QueueName, since: datetime, until: datetime, days: Iterable[str] | None = None
    ) -> Iterator[DecisionRow]:
        """The decisions from `since` to `until`, newest first. Reads a partition for each of
        `days`, or for each day between the two.
        """
        for day in days_back(since, until) if days is None else days:
            rows = map(_ROWS.record, self._session.stream(self._list, [queue, day]))
            yield from (row for row in rows if since <= row.decided <= until)
