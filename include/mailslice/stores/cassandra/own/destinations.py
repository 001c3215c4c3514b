"""destinations: the book of each throttled destination of a queue (`model.throttling`). All writes are LWT, conditional on the turn that was read."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from cassandra.cluster import ResponseFuture
from cassandra.query import PreparedStatement

from mailslice.model.mail import QueueName
from mailslice.model.throttling import Book
from mailslice.stores.cassandra.session import CassandraSession, Row

DESTINATIONS_TABLE = """(
    queuename text,
    domain text,
    turn bigint,
    next_us bigint,
    line_us bigint,
    hold_us bigint,
    holders frozen<map<text, bigint>>,
    PRIMARY KEY ((queuename, domain))
) WITH gc_grace_seconds = 86400"""

_VALUES = ("turn", "next_us", "line_us", "hold_us", "holders")
_TTL_SECONDS = 86400
"""A destination that nobody asked for so long begins anew."""


class Destinations:
    """The table. Futures are the driver's: `book` and `applied` read what they give."""

    TABLE = "destinations"

    def __init__(self, session: CassandraSession, keyspace: str) -> None:
        self._session = session
        self._name = f"{keyspace}.{self.TABLE}"

    def prepare(self) -> None:
        """Prepares what an event loop will ask, where waiting is allowed."""
        self._read, self._write  # noqa: B018 - cached properties

    def read_future(self, queue: QueueName, domain: str) -> ResponseFuture:
        """A future for `book`."""
        return self._session.submit(self._read, [queue, domain])

    def books(self, queue: QueueName, domains: Iterable[str]) -> dict[str, Book]:
        """The books of those of `domains` that have one."""
        found = self._session.map(self._read, ([queue, domain] for domain in domains), in_flight=32)
        return {str(params[1]): self.book(rows) for params, rows in found if rows}

    @staticmethod
    def book(rows: list[Row]) -> Book:
        """What a read gave; a new book when there is none."""
        if not rows or rows[0][0] is None:
            return Book()
        turn, next_us, line_us, hold_us, holders = rows[0]
        return Book(turn, next_us or 0, line_us or 0, hold_us or 0, dict(holders or {}))

    def advance_future(
        self, queue: QueueName, domain: str, before: Book, after: Book
    ) -> ResponseFuture:
        """Write `after` if the book is still `before`; a future for `applied`. After an error it is unknown: read."""
        values = [after.turn, after.next_us, after.line_us, after.hold_us, dict(after.holders)]
        return self._session.submit(self._write, [*values, queue, domain, before.turn or None])

    @staticmethod
    def applied(rows: list[Row]) -> bool:
        """What the answer of a write says."""
        return bool(rows[0][0])

    @cached_property
    def _read(self) -> PreparedStatement:
        return self._session.prepare(
            f"SELECT {', '.join(_VALUES)} FROM {self._name} WHERE queuename = ? AND domain = ?"
        )

    @cached_property
    def _write(self) -> PreparedStatement:
        # UPDATE and not INSERT: a row that is not there has null as its turn, and no row marker is left when the columns have expired.
        values = ", ".join(f"{name} = ?" for name in _VALUES)
        return self._session.prepare(
            f"UPDATE {self._name} USING TTL {_TTL_SECONDS} SET {values} WHERE queuename = ? AND domain = ? IF turn = ?",
            idempotent=False,
        )
