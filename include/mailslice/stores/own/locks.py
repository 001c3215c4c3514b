"""locks: who works on what now. A lock is a row with a TTL: its owner's death frees it."""

from datetime import timedelta

from mailslice.stores.own.records import Records, TableShape

LOCKS = TableShape(
    "locks", {"name": "text", "owner": "text"}, partition=("name",), gc_grace_seconds=86_400
)


class Locks:
    """Rows name -> owner, written on conditions. Calls may be repeated after an unknown outcome."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def acquire(self, name: str, owner: str, ttl: timedelta) -> str:
        """Take the lock if nobody has it; who has it now: `owner` when it was or is its own."""
        held = self._records.add({"name": name, "owner": owner}, ttl)
        if held is None:
            return owner
        if held["owner"] == owner and not self.renew(name, owner, ttl):
            return self.acquire(name, owner, ttl)  # it expired between the two
        return str(held["owner"])

    def renew(self, name: str, owner: str, ttl: timedelta) -> bool:
        """Begin the TTL anew; False when the lock is lost, and with it the right to go on."""
        return self._records.change({"name": name}, {"owner": owner}, {"owner": owner}, ttl)

    def release(self, name: str, owner: str) -> bool:
        """Give the lock back; False when it was not the owner's any more."""
        return self._records.remove_if({"name": name}, {"owner": owner})

    def holder(self, name: str) -> str | None:
        row = self._records.get({"name": name})
        return None if row is None or row["owner"] is None else str(row["owner"])

    def first(self, name: str, value: str) -> str:
        """The value that was stored first under this name, for good: `value` or an earlier one."""
        holder = self.holder(name)
        if holder is not None:
            return holder
        held = self._records.add({"name": name, "owner": value})
        return value if held is None else str(held["owner"])

    def change(self, name: str, before: str, value: str) -> bool:
        """Put `value` in the place of `before`, for good; False when it was another value."""
        return self._records.change({"name": name}, {"owner": value}, {"owner": before})
