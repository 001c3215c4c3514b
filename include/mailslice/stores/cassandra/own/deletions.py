"""deletions: batches of mails that people deleted and may take back (`admin.deletions`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from mailslice.model.mail import QueueName
from mailslice.stores.cassandra.own.table import OwnTable, ttl_seconds
from mailslice.stores.cassandra.table import Statement, insert, select
from mailslice.stores.own.codec import RowCodec


@dataclass(frozen=True, slots=True)
class DeletedBatch:
    """Some mails of one delete or clear, the run. `place` is how the keys of its objects begin.

    `marked`: all their deleted marks are written. A batch without it was cut off there: some of its
    mails may be in the queue yet. `size` in bytes; `lost` mails had no content any more.
    """

    run: str
    number: int
    deleted: datetime
    until: datetime
    place: str
    mails: int
    size: int
    lost: int
    who: str
    reason: str
    marked: bool = False


_ROWS = RowCodec(DeletedBatch, size="bytes")


class Deletions(OwnTable):
    """The batches of each queue, the newest run first. A row ends with its batch, by TTL."""

    TABLE = "deletions"
    SCHEMA = """
        queuename text, run text, number int, deleted timestamp, until timestamp, place text,
        mails int, bytes bigint, lost int, who text, reason text, marked boolean,
        PRIMARY KEY (queuename, run, number)
    """
    OPTIONS = "CLUSTERING ORDER BY (run DESC, number ASC)"

    _insert = Statement(insert(("queuename", *_ROWS.columns), "USING TTL ?"))
    _list = Statement(select(_ROWS.columns, "queuename = ?"))
    _of_run = Statement(select(_ROWS.columns, "queuename = ? AND run = ?"))

    def save(self, queue: QueueName, batch: DeletedBatch, ttl: timedelta) -> None:
        """Write the row, over an earlier one of this batch."""
        self._session.execute(self._insert, [queue, *_ROWS.values(batch), ttl_seconds(ttl)])

    def list(self, queue: QueueName, run: str | None = None) -> Iterator[DeletedBatch]:
        """The batches of a queue, or of one run, a page at a time."""
        statement, params = (self._list, [queue]) if run is None else (self._of_run, [queue, run])
        return map(_ROWS.record, self._session.stream(statement, params))
