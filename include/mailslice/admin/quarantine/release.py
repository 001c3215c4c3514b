"""Releases a mail from quarantine into its queue: as a new entry with fresh blobs, once.

A release writes the new enqueue id into the row before it publishes anything. After a kill nobody
knows whether the message was published. The next release looks whether that entry was handled or is
in a worker's hands. If not, it marks the entry as deleted, so that consumers drop its message, and
begins again under another id.
"""

import time
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

from mailslice.admin.cut_off import CutOff, CutOffEntries
from mailslice.admin.enqueue import enter
from mailslice.admin.evidence import is_finished
from mailslice.admin.leased_lock import LeasedLock
from mailslice.admin.quarantine.copies import Copies
from mailslice.codec import message as codec
from mailslice.model import crash
from mailslice.model.clock import Clock
from mailslice.model.errors import MailsliceError, Refused, StoreUnavailable
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.model.stages import Stage, decide
from mailslice.stores import Stores
from mailslice.stores.cassandra.own import DecisionRow, QuarantineTable
from mailslice.stores.cassandra.own.decisions import BY_A_PERSON
from mailslice.stores.cassandra.own.quarantine import QuarantinedMail, State

_RELEASABLE = frozenset({State.KEPT, State.RELEASING, State.RELEASED})


class MayBeDelivered(Refused):
    """An earlier release was cut off, and may have delivered the mail."""


def without(mail: QuarantinedMail, recipients: Collection[str]) -> QuarantinedMail:
    """The mail for its other recipients; unchanged if it has no others."""
    item = codec.decode(mail.message)
    others = tuple(each for each in item.mail.recipients if each not in recipients)
    narrowed = replace(item, mail=replace(item.mail, recipients=others or item.mail.recipients))
    return replace(mail, message=codec.encode(narrowed))


class Releases:
    """Releases mails from one queue's quarantine."""

    def __init__(
        self,
        stores: Stores,
        queue: QueueName,
        clock: Clock,
        *,
        sleep: Callable[[float], None] = time.sleep,
        table: QuarantineTable | None = None,
        folder: str = "quarantine",
    ) -> None:
        """`table` and `folder` (in the own bucket): in place of the quarantine's."""
        self._stores = stores
        self._queue = queue
        self._clock = clock
        self._sleep = sleep
        self._table = table or stores.own.quarantine
        self._copies = Copies(stores, queue, folder)

    def content(self, mail: QuarantinedMail) -> bytes:
        """The bytes. Raises ContentMissing when there is no copy."""
        return self._copies.content(mail)

    def release(self, mail: QuarantinedMail, why: str = "", who: str = "") -> EnqueueId:
        """Enqueue the mail anew, for the person `who`. Returns its new enqueue id.

        A repeat after a kill, or two concurrent calls, make one new entry. Raises ContentMissing,
        Refused (the row is gone, or the mail is being closed), StoreUnavailable (ask again).
        """
        lock = self._lock(mail)
        with lock.held():
            now = self._table.get(self._queue, mail.enqueue_id, mail.attempt)
            if now is None or now.state not in _RELEASABLE:
                state = "it is gone" if now is None else f"it is {now.state}"
                raise Refused(f"{mail.enqueue_id} of {self._queue} cannot be released: {state}")
            return self.release_within(now, lock, why, who)

    def release_within(
        self,
        mail: QuarantinedMail,
        lock: LeasedLock,
        why: str = "",
        who: str = "",
        *,
        accept_duplicates: bool = False,
    ) -> EnqueueId:
        """As `release`, for a caller whose `lock` covers the mail. Raises MayBeDelivered for a mail
        in doubt, unless `accept_duplicates`.
        """
        if mail.state is State.RELEASED and mail.released_as is not None:
            self._end(mail)
            return mail.released_as
        content, queue = self.content(mail), QueueName(mail.moved_to or self._queue)
        mail = self._taken(mail)  # only now: without content its holder alone can serve anybody
        item, tries = codec.decode(mail.message), CutOffEntries(self._stores, queue, self._sleep)
        out = None
        if mail.state is State.RELEASING and (last := mail.released_as) is not None:
            out = tries.published([CutOff(item, last, mail.entered == last, mail.voided)]).get(last)
            if last in tries.doubtful and not accept_duplicates:
                raise self._in_doubt(mail, tries.doubtful[last])
        lock.renew_if_due()  # reading contents and waiting for workers may take long
        if out is None:
            new_id, voided = EnqueueId(uuid4()), mail.voided
            if mail.released_as is not None:
                voided = (*voided, mail.released_as)  # of a release that was cut off
            claim = {"state": State.RELEASING, "released_as": new_id, "voided": voided}
            mail = self._claim(mail, Refused, **claim)  # nothing was done yet
            crash.point("release:claimed")
            if mail.action == "closed":  # a close that was cut off wrote no mark
                self._stores.tables.deleted.mark_many(self._queue, [mail.enqueue_id])
            out = next(iter(tries.void(mail.voided, lock.renew)), None)
            if out is None and mail.voided:  # the void ended: none of its marks is a completion
                mail = self._claim(mail, voided=())
                crash.point("release:voided")
        if out is None:
            out = new_id
            lock.require()
            anew = replace(item, enqueue_id=new_id)
            entered = partial(self._entered, mail)
            enter(self._stores, queue, anew, content, self._clock, on_row=entered, due=mail.due)
            crash.point("release:published")
        decided = self._by_person("released", f"{why}; it is {out} now" if why else "", who)
        done = self._claim(mail, state=State.RELEASED, released_as=out, **decided)
        crash.point("release:recorded")
        self._end(done)
        return out

    def _taken(self, mail: QuarantinedMail) -> QuarantinedMail:
        """A closed mail without the recipients that its holder served since, by its stage marks.

        Takes the stage record: if the holder goes on, its next mark is refused. Raises Refused if
        the holder served all recipients, unless the row says so (`finished`).
        """
        if (mail.state, mail.action) != (State.KEPT, "closed"):
            return mail
        stages, queue, id_ = self._stores.own.mail_stages, self._queue, mail.enqueue_id
        record, recipients = stages.get(queue, id_), codec.decode(mail.message).mail.recipients
        after = decide(record, id_, recipients, by="release", now=self._clock()).after
        if not stages.advance(queue, record, after):
            return self._taken(mail)
        crash.point("release:taken")
        served = after.recipients_at(Stage.SENT)
        if mail.finished is None and served and set(recipients) <= set(served):
            raise Refused(f"{id_} of {queue}: its worker served all its recipients: discard it")
        return without(mail, served)

    def _in_doubt(self, mail: QuarantinedMail, entry: EnqueueId) -> MayBeDelivered:
        """Puts the row back to KEPT: a person decides, and may still release it."""
        doubt = f"its release was cut off, and it may have been delivered as {entry}"
        self._claim(mail, state=State.KEPT, why=f"{mail.why}; {doubt}")
        hint = "look in the log of the next hop: discard drops it, another release sends it again"
        return MayBeDelivered(
            f"{mail.enqueue_id} of {self._queue} stays in quarantine: {doubt}; {hint}"
        )

    def _finish(self, mail: QuarantinedMail) -> bool:
        """Forget a cut-off release whose new entry was handled. Returns whether it forgot one. If
        the entry's row was not written, only a deleted mark proves that it was handled.
        """
        lock, new_id, tables = self._lock(mail), mail.released_as, self._stores.tables
        queue = QueueName(mail.moved_to or self._queue)
        if new_id is None:
            return False
        has_row, is_marked = mail.entered == new_id, tables.deleted.is_marked
        handled = is_finished(tables, queue, new_id) if has_row else is_marked(queue, new_id)
        if not handled or not lock.take():
            return False
        try:
            done = self._table.move(self._queue, mail, state=State.RELEASED)
            if done is not None:
                self._forget(done)
            return done is not None
        finally:
            lock.release()

    def _entered(self, mail: QuarantinedMail) -> None:
        """Records that the view has the new entry's row. Publishing waits for this write."""
        crash.point("release:row")
        self._claim(mail, entered=mail.released_as)

    def _claim(
        self,
        mail: QuarantinedMail,
        error: type[MailsliceError] = StoreUnavailable,
        **changes: object,
    ) -> QuarantinedMail:
        moved = self._table.move(self._queue, mail, **changes)
        if moved is None:
            text = f"somebody else releases or discards {mail.enqueue_id} of {self._queue}: "
            raise error(text + "ask again")
        return moved

    def _lock(self, mail: QuarantinedMail) -> LeasedLock:
        name = f"quarantine/{self._queue}/{mail.enqueue_id}/{mail.attempt}"
        doing = f"releases {mail.enqueue_id} of {self._queue}"
        return LeasedLock(self._stores, name, doing, self._sleep)

    def _by_person(self, action: str, why: str, who: str) -> dict[str, Any]:
        """Fields of a row that is claimed for a person's decision; none without `why`."""
        decided = {"action": action, "why": why, "who": who, "run": BY_A_PERSON}
        return {**decided, "decided": self._clock()} if why else {}

    def _end(self, mail: QuarantinedMail) -> None:
        """Remove a row on its way out. A person's decision is in the row, and is recorded first."""
        if mail.run == BY_A_PERSON:
            held = (mail.enqueue_id, mail.name, mail.stage, mail.worker, mail.age, BY_A_PERSON)
            decided = (mail.action, mail.why, mail.decided, mail.who)
            row = DecisionRow(*held, *decided, attempt=mail.attempt)
            self._stores.own.decisions.save(self._queue, row, self._stores.settings.duty.retention)
        self._forget(mail)

    def _forget(self, mail: QuarantinedMail) -> None:
        """Removes the copy, then the row. After a kill in between, the next call removes the row.

        Safe when two do it at once, and after the mail was kept anew: copy and row are named by
        this row's `copy_id`.
        """
        self._copies.remove(mail)
        crash.point("quarantine:emptied")
        self._table.remove(self._queue, mail)
