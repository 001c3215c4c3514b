"""postal_quarantine: closed messages of a Postal. Writes are conditional on a row's version."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from uuid import uuid4

from mailslice.stores.own.codec import RowCodec
from mailslice.stores.own.records import Records, TableShape, Values


class EntryState(StrEnum):
    """The progress of a message's closing, or of its release."""

    NOTED = "noted"
    """Its content is about to be copied. Its row is in Postal's queue."""
    CLOSING = "closing"
    """The copy is complete. Its row may or may not be in Postal's queue still."""
    KEPT = "kept"
    """It waits for a person's decision."""
    RELEASING = "releasing"
    """It is being put back into Postal's queue."""
    DISCARDING = "discarding"


@dataclass(frozen=True, slots=True)
class PostalEntry:
    """A message in quarantine. The key is (server, message): each server numbers its messages.

    `locked_at` is Postal's value: naive UTC with microseconds. `row` is the row of Postal's queue
    as JSON. `log_id` names the decision in Postal's deliveries. `copy_id` names the copy of the
    content; `size` (bytes) and `sha256` describe that copy. `released_after` is the id of the
    newest delivery record when the release began. Each write has a `version` of its own.
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
"""One partition is enough: few messages wait for a person."""
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
        """Writes the entry unless its message has one. Returns the stored entry."""
        stored = _with_new_version(entry)
        existing = self._records.add({**_ALL, **_ROWS.mapping(stored)})
        return stored if existing is None else _ROWS.of_mapping(existing)

    def replace(self, before: PostalEntry, after: PostalEntry) -> PostalEntry | None:
        """Writes `after` in place of `before`. None: another writer was faster."""
        stored, key = _with_new_version(after), _key(before.server, before.message)
        changes = {n: v for n, v in _ROWS.mapping(stored).items() if n not in key}
        if self._records.change(key, changes, {"version": before.version}):
            return stored
        # A write without an answer may have been done: then its version is stored.
        now = self.get(before.server, before.message)
        return stored if now is not None and now.version == stored.version else None

    def remove(self, entry: PostalEntry) -> bool:
        """Deletes the entry. False: another writer changed it."""
        key = _key(entry.server, entry.message)
        done = self._records.remove_if(key, {"version": entry.version})
        return done or self.get(entry.server, entry.message) is None


def _key(server: int, message: int) -> Values:
    return {**_ALL, "server": server, "message": message}


def _with_new_version(entry: PostalEntry) -> PostalEntry:
    """The entry as it is read back: with a new version, and times cut to milliseconds."""
    return _ROWS.of_mapping(_ROWS.mapping(replace(entry, version=uuid4().hex)))
