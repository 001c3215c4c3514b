"""locks: who works on what now. A lock is a row with a TTL: its owner's death frees it."""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property

from cassandra.query import PreparedStatement

from mailslice.stores.cassandra.session import CassandraSession

LOCKS_TABLE = "(name text PRIMARY KEY, owner text) WITH gc_grace_seconds = 86400"


class Locks:
    """LWT rows, name -> owner. All calls are safe to repeat after an error whose outcome is unknown."""

    TABLE = "locks"

    def __init__(self, session: CassandraSession, keyspace: str) -> None:
        self._session = session
        self._name = f"{keyspace}.{self.TABLE}"

    def acquire(self, name: str, owner: str, ttl: timedelta) -> str:
        """Take the lock if nobody has it; gives who has it now: `owner` itself when it was taken, or was its own already."""
        rows = self._session.execute(self._acquire, [name, owner, int(ttl.total_seconds())])
        if rows[0][0]:
            return owner
        holder = str(rows[0][-1])  # (applied, name, owner): the columns of the row that is there
        if holder == owner:
            self.renew(name, owner, ttl)
        return holder

    def renew(self, name: str, owner: str, ttl: timedelta) -> bool:
        """Begin the TTL anew; False when the lock is lost, and with it the right to go on."""
        return bool(
            self._session.execute(self._renew, [int(ttl.total_seconds()), owner, name, owner])[0][0]
        )

    def release(self, name: str, owner: str) -> bool:
        """Give the lock back; False when it was not the owner's any more."""
        return bool(self._session.execute(self._release, [name, owner])[0][0])

    def holder(self, name: str) -> str | None:
        """Who has the lock."""
        rows = self._session.execute(self._holder, [name])
        return str(rows[0][0]) if rows and rows[0][0] is not None else None

    def first(self, name: str, value: str) -> str:
        """What was said first under this name: `value`, unless somebody was faster. It is kept for good."""
        there = self.holder(name)
        if there is not None:
            return there
        rows = self._session.execute(self._first, [name, value])
        return value if rows[0][0] else str(rows[0][-1])

    def change(self, name: str, before: str, value: str) -> bool:
        """Put `value` in the place of `before`, for good; False when something else was there."""
        return bool(self._session.execute(self._change, [value, name, before])[0][0])

    @cached_property
    def _change(self) -> PreparedStatement:
        return self._session.prepare(
            f"UPDATE {self._name} SET owner = ? WHERE name = ? IF owner = ?", idempotent=False
        )

    @cached_property
    def _first(self) -> PreparedStatement:
        return self._session.prepare(
            f"INSERT INTO {self._name} (name, owner) VALUES (?, ?) IF NOT EXISTS"
        )

    @cached_property
    def _acquire(self) -> PreparedStatement:
        return self._session.prepare(
            f"INSERT INTO {self._name} (name, owner) VALUES (?, ?) IF NOT EXISTS USING TTL ?"
        )  # twice is once: see the owner

    @cached_property
    def _renew(self) -> PreparedStatement:
        return self._session.prepare(
            f"UPDATE {self._name} USING TTL ? SET owner = ? WHERE name = ? IF owner = ?"
        )

    @cached_property
    def _release(self) -> PreparedStatement:
        return self._session.prepare(
            f"DELETE FROM {self._name} WHERE name = ? IF owner = ?", idempotent=False
        )

    @cached_property
    def _holder(self) -> PreparedStatement:
        return self._session.prepare(f"SELECT owner FROM {self._name} WHERE name = ?")
