"""locks: who works on what now. A lock is a row with a TTL: its owner's death frees it."""

from __future__ import annotations

from datetime import timedelta

from mailslice.stores.cassandra.own.table import OwnTable
from mailslice.stores.cassandra.table import Statement


class Locks(OwnTable):
    """LWT rows, name -> owner.

    All calls are safe to repeat after an error whose outcome is unknown.
    """

    TABLE = "locks"
    SCHEMA = "name text, owner text, PRIMARY KEY (name)"
    GC_GRACE_SECONDS = 86_400

    _acquire = Statement(
        "INSERT INTO {table} (name, owner) VALUES (?, ?) IF NOT EXISTS USING TTL ?"
    )  # twice is once: see the owner
    _first = Statement("INSERT INTO {table} (name, owner) VALUES (?, ?) IF NOT EXISTS")
    _renew = Statement("UPDATE {table} USING TTL ? SET owner = ? WHERE name = ? IF owner = ?")
    _change = Statement(
        "UPDATE {table} SET owner = ? WHERE name = ? IF owner = ?", idempotent=False
    )
    _release = Statement("DELETE FROM {table} WHERE name = ? IF owner = ?", idempotent=False)
    _holder = Statement("SELECT owner FROM {table} WHERE name = ?")

    def acquire(self, name: str, owner: str, ttl: timedelta) -> str:
        """Take the lock if nobody has it; who has it now: `owner` when it was or is its own."""
        rows = self._session.execute(self._acquire, [name, owner, int(ttl.total_seconds())])
        if rows[0][0]:
            return owner
        holder = str(rows[0][-1])  # (applied, name, owner): the columns of the row that is there
        if holder == owner:
            self.renew(name, owner, ttl)
        return holder

    def renew(self, name: str, owner: str, ttl: timedelta) -> bool:
        """Begin the TTL anew; False when the lock is lost, and with it the right to go on."""
        return self._apply(self._renew, [int(ttl.total_seconds()), owner, name, owner])

    def release(self, name: str, owner: str) -> bool:
        """Give the lock back; False when it was not the owner's any more."""
        return self._apply(self._release, [name, owner])

    def holder(self, name: str) -> str | None:
        """Who has the lock."""
        rows = self._session.execute(self._holder, [name])
        return str(rows[0][0]) if rows and rows[0][0] is not None else None

    def first(self, name: str, value: str) -> str:
        """The value that was stored first under this name, for good: `value` or an earlier one."""
        holder = self.holder(name)
        if holder is not None:
            return holder
        rows = self._session.execute(self._first, [name, value])
        return value if rows[0][0] else str(rows[0][-1])

    def change(self, name: str, before: str, value: str) -> bool:
        """Put `value` in the place of `before`, for good; False when it was another value."""
        return self._apply(self._change, [value, name, before])
