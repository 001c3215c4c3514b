"""The two ways out of quarantine: release and discard. The caller holds the duty's lock.

Each begins with a state of the entry that says where the message goes. After a kill, the next
caller can thus finish it, once.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from mailslice.codec.shown import shown
from mailslice.duties.stuck_mails_postal.decision_log import PostalDecisionLog
from mailslice.duties.stuck_mails_postal.identity import agree
from mailslice.duties.stuck_mails_postal.quarantine import PostalQuarantine, new_log_id, queue_row
from mailslice.duties.stuck_mails_postal.quarantined import (
    QuarantinedMessage,
    QuarantineState,
    look_up,
)
from mailslice.maintenance.artifacts import artifacts
from mailslice.maintenance.lock import Lock, locked
from mailslice.model import crash
from mailslice.model.clock import Clock
from mailslice.model.errors import MailsliceError, TryAgain
from mailslice.stores import Stores
from mailslice.stores.own.postal_quarantine import EntryState, PostalEntry
from mailslice.stores.postal.changes import PostalChanges, PostalRecord

DUTY = "stuck_mails_postal"
"""The duty whose lock is taken: a run and a person never work at the same time."""


class NotReleased(MailsliceError):
    """A message stays in quarantine; the text says why."""


class PostalSilent(NotReleased):
    """Postal cannot be asked: nothing is known of the message, or its discard is half done."""


@dataclass(frozen=True, slots=True)
class ReleaseRequest:
    """Who acts, and why. `accept_duplicates`: also messages that Postal has finished after all, and
    messages that are not proved to be those that were closed.
    """

    who: str
    reason: str = ""
    accept_duplicates: bool = False


class PostalReleases:
    """Releases and discards entries. Built by `open_releases`, which holds the lock."""

    def __init__(self, stores: Stores, clock: Clock, request: ReleaseRequest, lock: Lock) -> None:
        self._stores, self._clock, self._request = stores, clock, request
        self._require_lock: Callable[[], None] = lock.check
        self._table = stores.records.postal_quarantine
        self._quarantine = PostalQuarantine(self._table, artifacts(stores.settings))
        self._changes = PostalChanges(stores.postal)

    def release(self, entry: PostalEntry) -> int | None:
        """Put the message back into Postal's queue; return the id of its row.

        None: an earlier release was cut off after that, and a worker has finished the message
        since. Raises NotReleased.
        """
        entry = self._current(entry)
        if entry.state is EntryState.DISCARDING:
            raise NotReleased("it is being discarded")
        quarantined = self._look_up_entry(entry)
        if _is_back(entry, quarantined):
            self._end(entry, "released")
            return quarantined.queued
        self._require_releasable(quarantined)
        self._require_lock()
        going = self._table.replace(
            entry, replace(entry, state=EntryState.RELEASING, released_after=quarantined.newest)
        )
        if going is None:
            raise NotReleased("somebody else works on it")
        crash.point("postal:release-noted")
        self._require_lock()
        number = self._changes.requeue(queue_row(going))
        if number is None:
            self._table.replace(going, replace(going, state=EntryState.KEPT))
            raise NotReleased("requeued: Postal's queue has it again")
        crash.point("postal:release-queued")
        self._end(going, "released")
        return number

    def discard(self, entry: PostalEntry) -> None:
        """Cancel the hold where Postal holds it by our record; remove entry and copy.

        Raises NotReleased. After a PostalSilent it may be half done: call it again.
        """
        entry = self._current(entry)
        quarantined = self._look_up_entry(entry)
        if _is_back(entry, quarantined):
            raise NotReleased("it is being released; release it again to finish that")
        self._require_lock()
        going = self._table.replace(entry, replace(entry, state=EntryState.DISCARDING))
        if going is None:
            raise NotReleased("somebody else works on it")
        if quarantined.is_held and quarantined.queued is None:
            details = f"Discarded from mailslice's quarantine by {self._request.who}."
            why = f" {shown(self._request.reason)}" if self._request.reason else ""
            record = PostalRecord.hold_cancelled(details + why, new_log_id())
            self._require_lock()
            try:
                self._changes.cancel_hold(entry.server, entry.message, record, quarantined.newest)
            except TryAgain:
                raise
            except MailsliceError as error:  # a server's database: the entry says what to do
                raise PostalSilent(f"Postal cannot be asked: {error}") from error
        self._end(going, "discarded")

    def _current(self, entry: PostalEntry) -> PostalEntry:
        current = self._table.get(entry.server, entry.message)
        if current is None:
            raise NotReleased("it has left the quarantine")
        if current.state in {EntryState.NOTED, EntryState.CLOSING}:
            ends = "the next run in mode close or retry finishes that"
            raise NotReleased(f"a run that was cut off is closing it; {ends}")
        return current

    def _look_up_entry(self, entry: PostalEntry) -> QuarantinedMessage:
        (quarantined,) = look_up(self._stores.postal, [entry])
        if quarantined.state is QuarantineState.UNKNOWN and quarantined.message is None:
            raise PostalSilent(str(quarantined.why))
        if quarantined.state is QuarantineState.UNKNOWN and not self._request.accept_duplicates:
            raise NotReleased(f"unknown: {quarantined.why}")
        return quarantined

    def _require_releasable(self, quarantined: QuarantinedMessage) -> None:
        if quarantined.queued is not None:
            raise NotReleased("requeued: Postal's queue has it already")
        if quarantined.state is QuarantineState.FINISHED and not self._request.accept_duplicates:
            raise NotReleased(
                "finished: Postal wrote about it as it was closed, or since; "
                "--accept-duplicates releases it all the same"
            )
        if quarantined.message is None:
            raise NotReleased("message gone: Postal has it no more; 'export' gives its content")
        if not quarantined.has_content:
            raise NotReleased("content lost: Postal dropped it; 'export' gives it as a file")

    def _end(self, entry: PostalEntry, action: str) -> None:
        log = PostalDecisionLog(self._stores, self._request.who, entry.run)
        log.save_entry(entry, action, "in quarantine", self._request.reason, self._clock())
        self._require_lock()
        self._quarantine.remove(entry)


def _is_back(entry: PostalEntry, quarantined: QuarantinedMessage) -> bool:
    """Whether a release that was cut off has queued the row: it is there, or a worker ended it.
    False where Postal lost the content: the copy may be the last.
    """
    is_back = quarantined.queued is not None or quarantined.newest_answer > entry.released_after
    return entry.state is EntryState.RELEASING and is_back and quarantined.has_content


@contextmanager
def open_releases(
    stores: Stores, clock: Clock, request: ReleaseRequest
) -> Iterator[PostalReleases]:
    """Waits for a running duty, at most 90 s. Raises LockHeld, and ConfigurationDiffers for another
    Postal than that of the quarantine.
    """
    with locked(stores.records.locks, DUTY, f"quarantine-{request.who}") as lock:
        agree(stores)
        yield PostalReleases(stores, clock, request, lock)
