"""holds: queues and domains that people paused; destinations: the books of the rate limits."""

from collections.abc import Iterable, Iterator
from datetime import timedelta

from cassandra.cluster import ResponseFuture

from mailslice.model.holds import Hold
from mailslice.model.mail import QueueName
from mailslice.model.throttling import Load
from mailslice.stores.cassandra.own.table import OwnTable, ttl_seconds
from mailslice.stores.cassandra.session import Row
from mailslice.stores.cassandra.table import Statement, applied, assignments, insert, select
from mailslice.stores.own.codec import RowCodec

_ROWS = RowCodec(Hold, queue="queuename", who="held_by")
_BEYOND = timedelta(hours=1)
"""A row outlives its hold by so much, as clocks differ. Readers check `until`."""


class Holds(OwnTable):
    """The table. It may still have holds that ended."""

    TABLE = "holds"
    ON_EVENT_LOOP = ("_of_queue",)
    SCHEMA = """
        queuename text, domain text, since timestamp, until timestamp, held_by text, reason text,
        change text, PRIMARY KEY (queuename, domain)
    """

    _save = Statement(insert(_ROWS.columns, "USING TTL ?"))
    _delete = Statement("DELETE FROM {table} WHERE queuename = ? AND domain = ?")
    _of_queue = Statement(select(_ROWS.columns, "queuename = ?"))
    _all = Statement(select(_ROWS.columns))

    def save(self, hold: Hold, lasts: timedelta | None) -> None:
        """Writes the hold over another of its domain. The row expires after `lasts` and an hour."""
        ttl = 0 if lasts is None else ttl_seconds(lasts + _BEYOND)
        self._session.execute(self._save, [*_ROWS.values(hold), ttl])

    def delete(self, queue: QueueName, domain: str) -> None:
        self._session.execute(self._delete, [queue, domain])

    def of_future(self, queue: QueueName) -> ResponseFuture:
        """A future of the queue's rows, which `hold` decodes."""
        return self._session.submit(self._of_queue, [queue])

    hold = staticmethod(_ROWS.record)
    """Decodes a row of `of_future`."""

    def list(self, queue: QueueName | None = None) -> Iterator[Hold]:
        chosen = (self._all,) if queue is None else (self._of_queue, [queue])
        yield from map(self.hold, self._session.stream(*chosen))


_VALUES = ("turn", "next_us", "line_us", "hold_us", "holders")
_TTL_SECONDS = 86400
"""A destination without a request for this long starts with a new book."""


class Destinations(OwnTable):
    """The table. Futures are the driver's: `book` and `applied` decode their rows."""

    TABLE = "destinations"
    ON_EVENT_LOOP = ("_read", "_write")
    SCHEMA = """
        queuename text, domain text, turn bigint, next_us bigint, line_us bigint, hold_us bigint,
        holders frozen<map<text, bigint>>, PRIMARY KEY ((queuename, domain))
    """
    GC_GRACE_SECONDS = 86_400

    _read = Statement(select(_VALUES, "queuename = ? AND domain = ?"))
    # UPDATE and not INSERT: the turn of a missing row is null, and no row marker outlives the
    # columns when they expire.
    _write = Statement(
        f"UPDATE {{table}} USING TTL {_TTL_SECONDS} SET {assignments(_VALUES)} "
        "WHERE queuename = ? AND domain = ? IF turn = ?",
        idempotent=False,
    )
    applied = staticmethod(applied)

    def read_future(self, queue: QueueName, domain: str) -> ResponseFuture:
        """A future of rows for `book`."""
        return self._session.submit(self._read, [queue, domain])

    def books(self, queue: QueueName, domains: Iterable[str]) -> dict[str, Load]:
        """Domain -> book, for the domains that have one."""
        pages = self._session.map(self._read, ([queue, domain] for domain in domains), in_flight=32)
        return {str(params[1]): self.book(rows) for params, rows in pages if rows}

    @staticmethod
    def book(rows: list[Row]) -> Load:
        """The book of a read's rows; a new one if there are none."""
        if not rows or rows[0][0] is None:
            return Load()
        turn, next_us, line_us, hold_us, holders = rows[0]
        return Load(turn, next_us or 0, line_us or 0, hold_us or 0, dict(holders or {}))

    def advance_future(
        self, queue: QueueName, domain: str, before: Load, after: Load
    ) -> ResponseFuture:
        """Writes `after` if the book is still `before`. A future for `applied`; error: unknown."""
        values = [after.turn, after.next_us, after.line_us, after.hold_us, dict(after.holders)]
        return self._session.submit(self._write, [*values, queue, domain, before.turn or None])
