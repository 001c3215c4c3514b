"""locks: named locks. A lock is a row with a TTL, so it expires after its owner has died."""

from datetime import timedelta

from mailslice.stores.own.records import Records, TableShape

LOCKS = TableShape(
    "locks", {"name": "text", "owner": "text"}, partition=("name",), gc_grace_seconds=86_400
)


class Locks:
    """Rows name -> owner, written conditionally. A call with an unknown outcome may be repeated."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def acquire(self, name: str, owner: str, ttl: timedelta) -> str:
        """Takes the lock if it is free, renews it if it is `owner`'s. Returns who holds it now."""
        existing = self._records.add({"name": name, "owner": owner}, ttl)
        if existing is None:
            return owner
        if existing["owner"] == owner and not self.renew(name, owner, ttl):
            return self.acquire(name, owner, ttl)  # it expired between the two
        return str(existing["owner"])

    def renew(self, name: str, owner: str, ttl: timedelta) -> bool:
        """Restarts the TTL. False: the lock is lost, and the owner must stop its work."""
        return self._records.change({"name": name}, {"owner": owner}, {"owner": owner}, ttl)

    def release(self, name: str, owner: str) -> bool:
        """Releases the lock. False: it was not the owner's any more."""
        return self._records.remove_if({"name": name}, {"owner": owner})

    def holder(self, name: str) -> str | None:
        row = self._records.get({"name": name})
        return None if row is None or row["owner"] is None else str(row["owner"])

    def first(self, name: str, value: str) -> str:
        """Stores `value`, without a TTL, unless the name has one. Returns the stored value."""
        holder = self.holder(name)
        if holder is not None:
            return holder
        existing = self._records.add({"name": name, "owner": value})
        return value if existing is None else str(existing["owner"])

    def change(self, name: str, before: str, value: str) -> bool:
        """Replaces `before` by `value`, without a TTL. False: another value was stored."""
        return self._records.change({"name": name}, {"owner": value}, {"owner": before})
