"""slice_statistics: what a cleanup counted in each closed slice, and its survivors (live rows)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from mailslice.codec.row import epoch_ms
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.stores.cassandra.own.table import OwnTable
from mailslice.stores.cassandra.table import Statement, insert, select
from mailslice.stores.own.codec import RowCodec


@dataclass(frozen=True, slots=True)
class SliceStatistic:
    """A closed slice as it was at `cleaned_at`."""

    slice_start: datetime
    live: int
    dead: int
    cleaned_at: datetime
    survivors: tuple[EnqueueId, ...] = ()


_ROWS = RowCodec(SliceStatistic)


class SliceStatistics(OwnTable):
    """The closed slices of a queue, by time."""

    TABLE = "slice_statistics"
    SCHEMA = """
        queuename text, slice_start timestamp, live bigint, dead bigint,
        survivors frozen<list<uuid>>, cleaned_at timestamp, PRIMARY KEY (queuename, slice_start)
    """

    _insert = Statement(insert(("queuename", *_ROWS.columns)))
    _list = Statement(select(_ROWS.columns, "queuename = ?"))
    _delete = Statement("DELETE FROM {table} WHERE queuename = ? AND slice_start < ?")

    def save(self, queue: QueueName, statistic: SliceStatistic) -> None:
        """Write the row, over an earlier one of the slice."""
        self._session.execute(self._insert, [queue, *_ROWS.values(statistic)])

    def list(self, queue: QueueName) -> Iterator[SliceStatistic]:
        """All rows of the queue, oldest slice first, a page at a time."""
        return map(_ROWS.record, self._session.stream(self._list, [queue]))

    def delete_before(self, queue: QueueName, slice_start: datetime) -> None:
        """Forget the slices before this one: contentStart has passed them."""
        self._session.execute(self._delete, [queue, epoch_ms(slice_start)])
