"""Lists the deleted mails that are kept. Reading creates no table."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby

from mailslice.admin.deletions.packs import KeptContent, KeptMail, read_mails
from mailslice.admin.filters import MailFilter
from mailslice.model.command_line import command_line
from mailslice.model.errors import BadInput, ContentMissing
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.stores import Stores
from mailslice.stores.cassandra.own import (
    DeletedBatch,
    Deletions,
    UndeletedMail,
    UndeletedMails,
    UndeleteStep,
)
from mailslice.view.configuration import view_shape
from mailslice.view.live_rows import LiveRows

log = logging.getLogger(__name__)

_ALL = MailFilter()


@dataclass(frozen=True, slots=True)
class DeletedMail:
    """A deleted mail that is kept.

    `in_doubt`: its delete was cut off, and the mail may have been delivered since. `undeleted`: the
    record of its undelete; None if none was tried.
    """

    batch: DeletedBatch
    kept: KeptMail
    undeleted: UndeletedMail | None = None
    in_doubt: bool = False

    @property
    def enqueue_id(self) -> EnqueueId:
        return self.kept.item.enqueue_id

    @property
    def is_back(self) -> bool:
        """Whether an undelete brought it back."""
        return self.undeleted is not None and self.undeleted.step is UndeleteStep.DONE

    @property
    def may_be_delivered(self) -> bool:
        """Whether recipients may have it already: an undelete may then deliver it twice."""
        return self.in_doubt or self.kept.in_handler

    def as_json(self) -> dict[str, object]:
        """As `queue deleted --json` prints it."""
        mail, batch, back = self.kept.item.mail, self.batch, self.undeleted
        return {
            "enqueueId": self.enqueue_id,
            "name": mail.name,
            "sender": mail.sender,
            "recipients": len(mail.recipients),
            "bytes": self.kept.size,
            "content": "content lost" if self.kept.content is KeptContent.LOST else "kept",
            "enqueuedTime": self.kept.enqueued,
            "run": batch.run,
            "deletedAt": batch.deleted,
            "until": batch.until,
            "who": batch.who,
            "reason": batch.reason or None,
            "mayBeDelivered": self.may_be_delivered,
            "undeletedAs": back.new_id if back is not None and self.is_back else None,
        }


def deleted_mails(
    stores: Stores,
    queue: QueueName,
    now: datetime,
    mail_filter: MailFilter = _ALL,
    run: str | None = None,
    *,
    on_missing: Callable[[DeletedBatch], None] = lambda _: None,
) -> Iterator[list[DeletedMail]]:
    """The kept mails that match, of all runs or of `run`, newest run first; one list a batch.

    Leaves out mails that are live because a kill cut their delete off. Calls `on_missing` with each
    batch of a named `run` whose objects are gone. Raises BadInput for a run that is not kept.
    """
    is_kept = False
    for batch in _batches(stores, queue, now, run):
        is_kept = True
        try:
            mails = read_mails(stores.own_blobs, batch)
        except ContentMissing as error:
            log.warning("which %d mails run %s deleted is lost: %s", batch.mails, batch.run, error)
            if run is not None:
                on_missing(batch)
            continue
        kept = [
            mail
            for mail in mails
            if mail_filter.passes(mail.item.enqueue_id, mail.item.mail, mail.enqueued, now)
        ]
        if kept:
            yield _with_state(stores, queue, now, batch, kept)
    if not is_kept and run is not None:
        raise BadInput(
            f"run {run[:60]!r} of {queue} is not kept: allowed is a run that "
            f"`{command_line('queue deleted', queue, '--runs')}` shows"
        )


def deleted_runs(stores: Stores, queue: QueueName, now: datetime) -> Iterator[dict[str, object]]:
    """The deletes and clears whose mails are kept, the newest first, without reading mails."""
    for run, group in groupby(_batches(stores, queue, now), key=lambda batch: batch.run):
        batches = list(group)
        first = batches[0]
        yield {
            "run": run,
            "mails": sum(batch.mails for batch in batches),
            "bytes": sum(batch.size for batch in batches),
            "contentLost": sum(batch.lost for batch in batches),
            "deletedAt": first.deleted,
            "until": first.until,
            "who": first.who,
            "reason": first.reason or None,
            "cutOff": not all(batch.marked for batch in batches),
        }


def _batches(
    stores: Stores, queue: QueueName, now: datetime, run: str | None = None
) -> Iterator[DeletedBatch]:
    table = Deletions.existing(stores.cassandra, stores.settings)
    if table is not None:
        yield from (batch for batch in table.list(queue, run) if batch.until > now)


def _with_state(
    stores: Stores, queue: QueueName, now: datetime, batch: DeletedBatch, kept: Sequence[KeptMail]
) -> list[DeletedMail]:
    ids = [mail.item.enqueue_id for mail in kept]
    table = UndeletedMails.existing(stores.cassandra, stores.settings)
    back = {} if table is None else table.by_ids(queue, ids)
    live = set[EnqueueId]() if batch.marked else _live(stores, queue, now, ids)
    return [
        DeletedMail(batch, mail, back.get(id_), not batch.marked)
        for id_, mail in zip(ids, kept, strict=True)
        if id_ not in live
    ]


def _live(
    stores: Stores, queue: QueueName, now: datetime, ids: Sequence[EnqueueId]
) -> set[EnqueueId]:
    live, ordered = LiveRows(stores.tables, queue, view_shape(stores)), sorted(ids)
    only = replace(live, survivors={key.slice_start: ordered for key in live.partitions(now)})
    return {candidate[0] for candidate in only.present(only.ids(now))}
