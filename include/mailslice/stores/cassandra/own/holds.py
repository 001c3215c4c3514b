"""holds: what people told the workers to leave alone (`model.holds`), a partition a queue."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from cassandra.cluster import ResponseFuture

from mailslice.model.holds import Hold
from mailslice.model.mail import QueueName
from mailslice.stores.cassandra.own.table import OwnTable, ttl_seconds
from mailslice.stores.cassandra.session import Row
from mailslice.stores.cassandra.table import Statement, insert, select
from mailslice.stores.own.codec import RowCodec

_ROWS = RowCodec(Hold, queue="queuename", who="held_by")
_BEYOND = timedelta(hours=1)
"""By which a row outlives its hold: clocks differ, and readers go by `until`."""


class Holds(OwnTable):
    """The table. A hold that ended may still be in it."""

    TABLE = "holds"
    ON_EVENT_LOOP = ("_of_queue",)
    SCHEMA = """
        queuename text, domain text, since timestamp, until timestamp, held_by text, reason text,
        change text, PRIMARY KEY (queuename, domain)
    """
    GC_GRACE_SECONDS = 86_400

    _save = Statement(insert(_ROWS.columns, "USING TTL ?"))
    _delete = Statement("DELETE FROM {table} WHERE queuename = ? AND domain = ?")
    _of_queue = Statement(select(_ROWS.columns, "queuename = ?"))
    _all = Statement(select(_ROWS.columns))

    def save(self, hold: Hold, lasts: timedelta | None) -> None:
        """Write the hold over another of its domain; the row goes after it has lasted so long."""
        ttl = 0 if lasts is None else ttl_seconds(lasts + _BEYOND)
        self._session.execute(self._save, [*_ROWS.values(hold), ttl])

    def delete(self, queue: QueueName, domain: str) -> None:
        """Delete the row."""
        self._session.execute(self._delete, [queue, domain])

    def of_future(self, queue: QueueName) -> ResponseFuture:
        """A future of rows for `hold`: those of a queue."""
        return self._session.submit(self._of_queue, [queue])

    @staticmethod
    def hold(row: Row) -> Hold:
        """A row of `of_future`."""
        return _ROWS.record(row)

    def list(self, queue: QueueName | None = None) -> Iterator[Hold]:
        """The holds of a queue, or of all."""
        rows = (
            self._session.stream(self._all)
            if queue is None
            else self._session.stream(self._of_queue, [queue])
        )
        yield from map(self.hold, rows)
