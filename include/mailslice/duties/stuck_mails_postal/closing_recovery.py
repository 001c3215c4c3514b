"""Finishes closings that a kill or a lost answer cut off.

Postal's own rows decide what became of a message, whatever mailslice wrote last.
"""

import logging
from collections import Counter
from collections.abc import Collection
from enum import StrEnum

from mailslice.duties.stuck_mails_postal.decision_log import PostalDecisionLog, held_details
from mailslice.duties.stuck_mails_postal.planned import PostalAction
from mailslice.duties.stuck_mails_postal.quarantine import (
    BEING_CLOSED,
    PostalQuarantine,
    copy_file,
    queue_row,
)
from mailslice.duties.stuck_mails_postal.rules import DELIVERED, PostalState, is_answered
from mailslice.duties.stuck_mails_postal.survey import messages_of
from mailslice.maintenance.run import Run
from mailslice.model.errors import BadInput, MailsliceError, StoreUnavailable
from mailslice.stores.own.postal_quarantine import EntryState, PostalEntry
from mailslice.stores.postal.changes import MessageChanged, PostalChanges, PostalRecord
from mailslice.stores.postal.messages import PostalDelivery
from mailslice.stores.postal.rows import PostalQueue

log = logging.getLogger(__name__)


class ClosingOutcome(StrEnum):
    """What became of a closing."""

    KEPT = "closed"
    WITHDRAWN = "withdrawn"
    QUEUED = "still in Postal's queue as it was"


class ClosingRecovery:
    """Finishes entries in state NOTED or CLOSING. The caller holds the duty's lock."""

    def __init__(self, run: Run, quarantine: PostalQuarantine, changes: PostalChanges) -> None:
        self._run, self._quarantine, self._changes = run, quarantine, changes
        self._postal = run.stores.postal
        self._queue = PostalQueue(self._postal.main)
        self._decisions = PostalDecisionLog(run.stores, run.request.who, run.request.run)

    def finish_all(self, planned: Collection[int]) -> Counter[str]:
        """Finish entries, except unchanged `planned` and unreadable rows; counts by outcome."""
        finished: Counter[str] = Counter()
        for entry in self._run.stores.records.postal_quarantine.list():
            if entry.state in BEING_CLOSED and (outcome := self._finished(entry, planned)):
                finished[outcome] += 1
        return finished

    def settle(self, entry: PostalEntry) -> ClosingOutcome:
        """Finish an entry by Postal's rows. QUEUED: it stays as it is. Raises as `withdraw`."""
        row = queue_row(entry)
        if self._changes.is_there(row):
            return ClosingOutcome.QUEUED
        records = self._records(entry)
        if all(record.log_id != entry.log_id for record in records or ()):
            # Postal has it: a worker gave the lock back or took it anew, or a record since the lock
            # says how it ended. SoftFail is no end: without a queue row nobody would try again.
            is_queued = bool(self._queue.by_id([row.id]))
            if is_answered(row, records or (), DELIVERED):
                self._quarantine.remove(entry)
                return ClosingOutcome.WITHDRAWN
            if is_queued or is_answered(row, records or ()):
                if self.withdraw(entry):
                    return ClosingOutcome.WITHDRAWN
                if is_queued:
                    return ClosingOutcome.QUEUED
            elif records is not None:
                self._record(entry)
        self.keep(entry)
        return ClosingOutcome.KEPT

    def withdraw(self, entry: PostalEntry) -> bool:
        """Remove entry and copy of a message that Postal's queue has; False: it is the last copy.

        Raises if Postal cannot say whether it has the content. The entry then stays.
        """
        if not self._has_content(entry):
            log.warning(
                "message %d of server %d: Postal lost its content, and the copy stays",
                *(entry.message, entry.server),
            )
            return False
        return self._quarantine.remove(entry)

    def keep(self, entry: PostalEntry) -> None:
        """Set the entry KEPT and save the decision. Postal's queue no longer has the message."""
        if self._quarantine.keep(entry, self._run.clock()) is None:
            log.warning(
                "message %d of server %d: its entry in quarantine was changed by somebody else",
                *(entry.message, entry.server),
            )
        why = entry.reason or "its worker died or hangs"
        action, verdict = PostalAction.CLOSED, PostalState.STUCK
        self._decisions.save_entry(entry, action, verdict, why, entry.noted_at)

    def _finished(self, entry: PostalEntry, planned: Collection[int]) -> ClosingOutcome | None:
        self._run.require_lock()
        try:
            return self._outcome(entry, planned)
        except BadInput:
            raise
        except MailsliceError as error:
            if isinstance(error, StoreUnavailable):
                self._postal.main.rows("SELECT 1")  # raises where it is the main MariaDB
            log.warning(
                "message %d of server %d stays half closed: %s",
                *(entry.message, entry.server, error),
            )
            return None

    def _outcome(self, entry: PostalEntry, planned: Collection[int]) -> ClosingOutcome | None:
        if entry.state is EntryState.NOTED:
            # Only the copy was begun. There may be the complete copy of an earlier closing.
            content = self._run.folder.artifacts.read(copy_file(entry.copy_id))
            if content is None or self._has_content(entry):
                self._quarantine.remove(entry)
                return ClosingOutcome.WITHDRAWN
            copied = self._quarantine.copy(entry, content)
            if copied is None:
                return None
            entry = copied
        outcome = self.settle(entry)
        if outcome is not ClosingOutcome.QUEUED:
            return outcome
        if entry.queued_message in planned:
            return None
        return ClosingOutcome.WITHDRAWN if self.withdraw(entry) else None

    def _has_content(self, entry: PostalEntry) -> bool:
        if (messages := messages_of(self._postal, entry.server)) is None:
            return False
        rows = messages.by_id([entry.message])
        return entry.message in messages.has_own_header(rows.values())

    def _records(self, entry: PostalEntry) -> list[PostalDelivery] | None:
        """The delivery records; None where the server is gone, or the message is not there."""
        messages = messages_of(self._postal, entry.server)
        if messages is None or not messages.by_id([entry.message]):
            return None
        return messages.deliveries([entry.message]).get(entry.message, [])

    def _record(self, entry: PostalEntry) -> None:
        try:
            self._changes.record(
                entry.server, entry.message, PostalRecord.held(held_details(entry), entry.log_id)
            )
        except MessageChanged:  # gone since the last read
            log.warning("message %d of server %d is gone", entry.message, entry.server)
