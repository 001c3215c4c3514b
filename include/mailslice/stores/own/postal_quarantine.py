"""postal_quarantine: closed messages of a Postal. A write's version refuses another's."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from uuid import uuid4

from mailslice.stores.own.codec import RowCodec
from mailslice.stores.own.records import Records, TableShape, Values


class EntryState(StrEnum):
    """How far the closing of a message, or its way back, has come."""

    NOTED = "noted"
    """Its content is about to be copied; Postal's queue has it."""
    CLOSING = "closing"
    """The copy is whole; Postal's queue may have the message, or not any more."""
    KEPT = "kept"
    """It waits for a person."""
    RELEASING = "releasing"
    """It goes back to Postal's queue."""
    DISCARDING = "discarding"


@dataclass(frozen=True, slots=True)
class PostalEntry:
    """A message in quarantine. The key is (server, message): ids are a server's own.

    `locked_at` is as Postal's database has it, naive UTC with microseconds. `row` is JSON of the
    row that Postal's queue had. `log_id` names the decision in Postal's deliveries. `copy_id` names
    the copy of the content, `size` and `sha256` are of it. `released_after`: id of the newest
    delivery record when its way back began. `version` is of this write alone.
    """

    server: int
    message: int
    queued_message: int
    state: EntryState
    copy_id: str
    locked_by: str
    locked_at: str
    stage: str
    row: str
    log_id: str
    noted_at: datetime
    size: int = 0
    sha256: str = ""
    rcpt_to: str | None = None
    mail_from: str | None = None
    domain: str | None = None
    closed_at: datetime | None = None
    run: str = ""
    who: str = "unknown"
    reason: str = ""
    released_after: int = 0
    version: str = ""


_ROWS = RowCodec(PostalEntry)
_ALL = {"postal": "postal"}
"""One partition: messages that wait for a person are few."""
POSTAL_QUARANTINE = TableShape(
    "postal_quarantine",
    {"postal": "text", **_ROWS.types, "size": "bigint"},
    partition=("postal",),
    clustering=("server", "message"),
)


class PostalQuarantineTable:
    """The entries of one Postal."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def get(self, server: int, message: int) -> PostalEntry | None:
        row = self._records.get(_key(server, message))
        return None if row is None else _ROWS.of_mapping(row)

    def list(self) -> Iterator[PostalEntry]:
        """All entries, by server and message."""
        return map(_ROWS.of_mapping, self._records.rows(_ALL))

    def add(self, entry: PostalEntry) -> PostalEntry:
        """Write the entry unless its message has one; the one that is there now."""
        added = _anew(entry)
        existing = self._records.add({**_ALL, **_ROWS.mapping(added)})
        return added if existing is None else _ROWS.of_mapping(existing)

    def replace(self, before: PostalEntry, after: PostalEntry) -> PostalEntry | None:
        """Write `after` in place of `before`; None: somebody was faster."""
        stored, key = _anew(after), _key(before.server, before.message)
        changes = {n: v for n, v in _ROWS.mapping(stored).items() if n not in key}
        if self._records.change(key, changes, {"version": before.version}):
            return stored
        # A write that was not answered, and was done, is done.
        now = self.get(before.server, before.message)
        return stored if now is not None and now.version == stored.version else None

    def remove(self, entry: PostalEntry) -> bool:
        """Delete the entry; False: somebody changed it."""
        key = _key(entry.server, entry.message)
        done = self._records.remove_if(key, {"version": entry.version})
        return done or self.get(entry.server, entry.message) is None


def _key(server: int, message: int) -> Values:
    return {**_ALL, "server": server, "message": message}


def _anew(entry: PostalEntry) -> PostalEntry:
    """A new version of it, as it is read again: times are milliseconds."""
    return _ROWS.of_mapping(_ROWS.mapping(replace(entry, version=uuid4().hex)))
