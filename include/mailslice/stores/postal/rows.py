"""`queued_messages` and `servers` of Postal's main database, read in pages by primary key."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from mailslice.model.batches import batches
from mailslice.stores.mariadb.client import MariaDb, quoted
from mailslice.stores.mariadb.failures import NoSuchObject

PAGE = 900
"""Rows, or ids, of one statement. MariaDB makes a subquery of an IN with 1,000 values and more
(in_predicate_conversion_threshold), and with stale statistics scans the whole table for it.
"""
NO_TIME = datetime.min  # noqa: DTZ901
"""The time of a lock without a time, or with a zero date. Postal's workers write no such lock."""
QUEUE_COLUMNS = tuple(
    """
    id server_id message_id domain locked_by locked_at retry_after created_at updated_at
    ip_address_id attempts route_id manual batch_key
    """.split()
)
"""Columns of `queued_messages`, in the order of the fields of QueuedMessage."""


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """A row of `queued_messages`. Times are naive UTC, exactly as read, because conditions compare
    them. `locked_at` may be NO_TIME. `server` and `message` are 0 if the row has NULL.
    """

    id: int
    server: int
    message: int
    domain: str | None
    locked_by: str | None
    locked_at: datetime | None
    retry_after: datetime | None
    created_at: datetime | None
    updated_at: datetime | None
    ip_address: int | None
    attempts: int
    route: int | None
    manual: int | None
    batch_key: str | None

    @property
    def is_locked(self) -> bool:
        """Whether the row is locked for Postal's workers."""
        return self.locked_at is not None

    @property
    def locked_since(self) -> datetime | None:
        """When it was locked; None without a lock, or if the time is unknown."""
        return None if self.locked_at == NO_TIME else self.locked_at

    @property
    def lock(self) -> tuple[str | None, datetime | None]:
        """The lock, which all rows of one batch share."""
        return self.locked_by, self.locked_at


class PostalQueue:
    """The queue of all mail servers. Every statement is a consistent read that locks nothing."""

    def __init__(self, db: MariaDb) -> None:
        self._db = db
        table = quoted(db.url.database, "queued_messages")
        self._rows = f"SELECT {', '.join(QUEUE_COLUMNS)} FROM {table}"
        self._servers = f"SELECT id FROM {quoted(db.url.database, 'servers')}"

    def now(self) -> datetime:
        """The database's clock: naive, in UTC, with microseconds."""
        ((instant,),) = self._db.rows("SELECT UTC_TIMESTAMP(6)")
        return instant  # type: ignore[no-any-return]

    def rows(self) -> Iterator[QueuedMessage]:
        """Every queued row, by id."""
        return map(_queued_message, self._by_pages(self._rows))

    def by_id(self, ids: Iterable[int]) -> dict[int, QueuedMessage]:
        sql = f"{self._rows} WHERE id IN %s"
        rows = (values for page in batches(ids, PAGE) for values in self._db.rows(sql, (page,)))
        return {row.id: row for row in map(_queued_message, rows)}

    def of_messages(self, server: int, messages: Iterable[int]) -> dict[int, QueuedMessage]:
        """Message -> a queue row of it, of these messages of one server that have one."""
        sql = f"{self._rows} WHERE message_id IN %s AND server_id = %s"
        rows = (
            row for page in batches(messages, PAGE) for row in self._db.rows(sql, (page, server))
        )
        return {row.message: row for row in map(_queued_message, rows)}

    def has_other(self, row: QueuedMessage) -> bool:
        """Whether the message of `row` has one more row in the queue."""
        sql = f"{self._rows} WHERE message_id = %s AND server_id = %s AND id <> %s LIMIT 1"
        return bool(self._db.rows(sql, (row.message, row.server, row.id)))

    def servers(self) -> Iterator[int]:
        """Ids of all mail servers, also of softly deleted ones."""
        return (server for (server,) in self._by_pages(self._servers))

    def has_server(self, server: int) -> bool:
        """Raises NoSuchObject if Postal has no server at all: that proves nothing of this one."""
        sql = f"SELECT EXISTS({self._servers} WHERE id = %s), EXISTS({self._servers})"
        ((has_it, has_any),) = self._db.rows(sql, (server,))
        if not has_any:
            raise NoSuchObject("Postal has no mail server at all, as while it is being restored")
        return bool(has_it)

    def _by_pages(self, select: str) -> Iterator[tuple[Any, ...]]:
        last = -(2**31)
        while page := self._db.rows(f"{select} WHERE id > %s ORDER BY id LIMIT {PAGE}", (last,)):
            yield from page
            last = page[-1][0]


def _queued_message(values: tuple[Any, ...]) -> QueuedMessage:
    row = dict(zip((field.name for field in fields(QueuedMessage)), values, strict=True))
    for name in ("locked_at", "created_at", "updated_at", "retry_after"):
        if isinstance(row[name], str):  # a zero date comes as text
            row[name] = NO_TIME
    if row["locked_at"] is None and row["locked_by"] is not None:
        row["locked_at"] = NO_TIME
    counts = {name: row[name] or 0 for name in ("server", "message", "attempts")}
    return QueuedMessage(**{**row, **counts})
