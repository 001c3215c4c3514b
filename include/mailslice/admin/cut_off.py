"""After a kill: decides which new entries were published and which are revoked.

An entry counts as published when a worker has it or completed it, when a recipient was served, or
when it is done. Any other entry is voided: it gets a deleted mark, so that consumers drop its
message, and its mail is enqueued under another id. A worker that got it first says so in its next
records.

A mark does not say who wrote it. If a kill cut a void off, or worker records were missed, the mark
may be that of a worker which completed the mail: the mail is in doubt. An entry without a row was
never published, unless a cleanup deleted the row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from mailslice.admin.worker_history import WorkerHistory
from mailslice.model.errors import StoreUnavailable
from mailslice.model.mail import EnqueueId, QueuedMail, QueueName
from mailslice.stores import Stores

PATIENCE = timedelta(minutes=1)
"""How long `void` waits for handlers that have an entry."""
_READS_IN_FLIGHT = 8


@dataclass(frozen=True, slots=True)
class CutOff:
    """A mail whose new entry was cut off. `new_id`: the id tried last, for `item`'s recipients;
    `entered`: its row was written. `voided`: ids tried before whose void did not end.
    """

    item: QueuedMail
    new_id: EnqueueId
    entered: bool
    voided: tuple[EnqueueId, ...] = ()


class CutOffEntries:
    """Decides about the cut-off entries of one queue."""

    def __init__(self, stores: Stores, queue: QueueName, sleep: Callable[[float], None]) -> None:
        self._stores = stores
        self._queue = queue
        self._history = WorkerHistory(stores, queue, sleep, PATIENCE)
        self.doubtful: dict[EnqueueId, EnqueueId] = {}
        """Entries in doubt: last tried id -> an earlier id whose void may have been cut off."""

    def published(self, entries: Sequence[CutOff]) -> dict[EnqueueId, EnqueueId]:
        """The published entries: last tried id -> the id that was published. Fills `doubtful`."""
        if not entries:
            return {}
        tables, queue = self._stores.tables, self._queue
        in_flight = self._history.observe_twice()
        ids = [id_ for entry in entries for id_ in (*entry.voided, entry.new_id)]
        staged = self._stores.own.mail_stages.by_ids(queue, ids)
        marked = tables.deleted.marked(queue, ids, _READS_IN_FLIGHT)
        rows = {
            row.enqueue_id: frozenset(row.item.mail.recipients)
            for table in tables.existing
            for row in table.by_ids(queue, [(key, ids) for key in table.partitions(queue)])
        }

        def is_published(entry: CutOff, id_: EnqueueId) -> bool:
            if id_ in self._history.done or (id_ in staged and staged[id_].closed):
                return True
            if id_ in marked:  # `new_id`: completed; another: voided, its message is dropped
                return id_ == entry.new_id
            if id_ in in_flight or id_ in staged:
                return True
            if id_ in rows:  # a retry first narrows the recipients of the row
                return rows[id_] < frozenset(entry.item.mail.recipients)
            return entry.entered and id_ == entry.new_id

        published = {
            entry.new_id: id_
            for entry in entries
            for id_ in (*entry.voided, entry.new_id)
            if is_published(entry, id_)
        }
        self.doubtful = {
            entry.new_id: id_
            for entry in entries
            if entry.new_id not in published
            for id_ in marked.intersection(entry.voided, rows) - in_flight
        }
        return published

    def void(self, ids: Sequence[EnqueueId], meanwhile: Callable[[], None]) -> frozenset[EnqueueId]:
        """Marks these entries as deleted. Returns those that a worker completed nevertheless.

        Calls `meanwhile` after each pause. Raises StoreUnavailable while a handler has an entry,
        and where worker records were missed: the next `published` then finds them doubtful.
        """
        if not ids:
            return frozenset()
        self._stores.tables.deleted.mark_many(self._queue, ids)
        in_flight = self._history.wait_for_handlers(set(ids), meanwhile)
        done = frozenset(ids) & self._history.done
        unknown = frozenset(ids) if self._history.missed else in_flight
        if left := in_flight - done or unknown - done:
            raise StoreUnavailable(
                f"a handler of {self._queue} still has {len(left)} mails of an earlier try, or may "
                "have completed them: ask again"
            )
        return done
