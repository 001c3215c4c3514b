"""The quarantine of Postal's messages: entries in an own table, and the copies that they name.

An entry names its copy before the copy exists, and is removed after it. So a copy that no entry
names is not mailslice's, and is never touched.
"""

import hashlib
from dataclasses import replace
from datetime import datetime
from uuid import uuid4

from pydantic import TypeAdapter

from mailslice.duties.stuck_mails_postal.rules import PostalStage
from mailslice.maintenance.artifacts import Artifacts
from mailslice.maintenance.run import Run
from mailslice.stores.own.postal_quarantine import EntryState, PostalEntry, PostalQuarantineTable
from mailslice.stores.postal.messages import OWN_LOG_ID, PostalMessage
from mailslice.stores.postal.rows import QueuedMessage

COPIES_FOLDER = "postal/quarantine"
_ROW = TypeAdapter(QueuedMessage)
BEING_CLOSED = (EntryState.NOTED, EntryState.CLOSING)


def new_log_id() -> str:
    """The name of a decision, which Postal shows as its Support Ref."""
    return f"{OWN_LOG_ID}{uuid4().hex}"


def queue_row(entry: PostalEntry) -> QueuedMessage:
    """The row of Postal's queue, as it was read for the entry."""
    return _ROW.validate_json(entry.row)


def entry_of(
    run: Run, row: QueuedMessage, stage: PostalStage, message: PostalMessage
) -> PostalEntry:
    """A new entry, which names a copy that does not exist yet."""
    return PostalEntry(
        server=row.server,
        message=row.message,
        queued_message=row.id,
        state=EntryState.NOTED,
        copy_id=uuid4().hex,
        locked_by=row.locked_by or "",
        locked_at="" if row.locked_at is None else row.locked_at.isoformat(timespec="microseconds"),
        stage=stage.value,
        row=_ROW.dump_json(row).decode(),
        log_id=new_log_id(),
        noted_at=run.clock(),
        rcpt_to=message.rcpt_to,
        mail_from=message.mail_from,
        domain=row.domain,
        run=run.request.run,
        who=run.request.who,
        reason=run.duty_params.reason or "",
    )


def copy_file(copy_id: str) -> str:
    """The path of a message's copy below the artifacts location."""
    return f"{COPIES_FOLDER}/{copy_id}.eml"


class PostalQuarantine:
    """Entry and copy together. Each step is a conditional write, and returns None if refused."""

    def __init__(self, table: PostalQuarantineTable, artifacts: Artifacts) -> None:
        self._table, self._artifacts = table, artifacts

    def closing_of(self, row: QueuedMessage) -> PostalEntry | None:
        """The entry of a closing of this row, by any lock, that was cut off after its copy."""
        entry = self._table.get(row.server, row.message)
        if entry is None or entry.state is not EntryState.CLOSING:
            return None
        return entry if entry.queued_message == row.id else None

    def note(self, entry: PostalEntry) -> PostalEntry | None:
        """Write the entry, in state NOTED; or take over the one of an earlier closing of the row.

        An entry that is KEPT, RELEASING or DISCARDING is replaced: its message is in Postal's queue
        again.
        """
        existing = self._table.add(entry)
        if existing.log_id == entry.log_id:
            return existing
        if existing.state in BEING_CLOSED:
            lock = (entry.queued_message, entry.locked_by, entry.locked_at)
            is_same = lock == (existing.queued_message, existing.locked_by, existing.locked_at)
            # The worker may have progressed since that run read its stage.
            renewed = replace(
                existing, stage=entry.stage, run=entry.run, who=entry.who, reason=entry.reason
            )
            return self._table.replace(existing, renewed) if is_same else None
        if existing.state is EntryState.KEPT:
            # The new copy overwrites the old one, so that a kill leaves no copy without an entry.
            return self._table.replace(existing, replace(entry, copy_id=existing.copy_id))
        # A release or discard may still be about to remove the old copy: the new one has a new id.
        self._artifacts.remove(copy_file(existing.copy_id))
        return self._table.replace(existing, entry)

    def copy(self, entry: PostalEntry, content: bytes) -> PostalEntry | None:
        """Write the copy, durably, then set the entry CLOSING."""
        self._artifacts.write(copy_file(entry.copy_id), content)
        digest = hashlib.sha256(content).hexdigest()
        closing = replace(entry, state=EntryState.CLOSING, size=len(content), sha256=digest)
        return self._table.replace(entry, closing)

    def keep(self, entry: PostalEntry, closed_at: datetime) -> PostalEntry | None:
        """Set the entry KEPT: Postal's queue no longer has the message."""
        kept = replace(entry, state=EntryState.KEPT, closed_at=closed_at)
        return self._table.replace(entry, kept)

    def remove(self, entry: PostalEntry) -> bool:
        """Remove the copy, then the entry: Postal has the message. False: the entry was changed."""
        files = [copy_file(entry.copy_id)]
        if entry.state is EntryState.NOTED:  # a kill may have left parts of it
            files = [file for file in self._artifacts.files(COPIES_FOLDER) if entry.copy_id in file]
        for file in files:
            self._artifacts.remove(file)
        return self._table.remove(entry)
