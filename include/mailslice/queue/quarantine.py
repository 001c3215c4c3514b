"""Mails that are set aside: their content in mailslice's own bucket, a row with all that is known, and their way back or out.

Content first, then the row, then whatever makes the mail unavailable elsewhere (a deleted mark): at every moment the mail is in the queue or here.
James deletes the blobs of a marked mail when it drops its message, so nothing here refers to James' bucket.

A release enqueues the mail anew: new enqueue id, fresh blobs. The new id is in the row before anything is published. A release that was cut off cannot know
whether its message is out: the next one looks whether that mail was handled or is in a worker's hands; else it marks it as deleted, so that
its message, if there is one, is dropped, and begins again under another id. So a mail is released once, wherever a kill falls.

No mark alone says nothing: a cleanup, James' or ours, drops rows and then marks of what is done. A mail that had a row and has neither is done or deleted.

The own bucket may be another deployment's, too, with a queue of the same name. Whoever keeps something says so there, by an object named after queue and
deployment, and copies that no row knows are removed only where nobody else has said so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING
from urllib.parse import quote
from uuid import uuid4

from mailslice.codec import message as codec
from mailslice.model import crash
from mailslice.model.clock import Clock
from mailslice.model.durations import format_duration
from mailslice.model.errors import ContentMissing, Refused, StoreUnavailable
from mailslice.model.mail import BlobId, EnqueueId, QueuedMail, QueueName
from mailslice.queue.entries import enter
from mailslice.stores.cassandra.own.quarantine import Content, QuarantinedMail, State

if TYPE_CHECKING:
    from mailslice.stores import Stores

log = logging.getLogger(__name__)

OVER = timedelta(minutes=10)
"""A setting aside that is this old and not finished was cut off."""
_LEASE = timedelta(seconds=30)
_PART = 0.7
"""Of the lease, after which nothing new is begun under it."""
_TICK = 1.0


@dataclass(frozen=True, slots=True)
class Holder:
    """Who had the mail, since when and how far: `age` is how long by now."""

    worker: str
    stage: str
    since: datetime
    age: timedelta
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Decided:
    """What is done with the mail (`closed`, `failed`...), why, by whom, in which run."""

    action: str
    why: str
    who: str
    run: str = ""


class Quarantine:
    """The quarantine of one queue."""

    def __init__(
        self,
        stores: Stores,
        queue: QueueName,
        clock: Clock,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._stores = stores
        self._queue = queue
        self._clock = clock
        self._sleep = sleep
        self._table = stores.own.quarantine
        self._me = str(uuid4())
        self._said = False

    def keep(
        self, item: QueuedMail, holder: Holder, decided: Decided, state: State = State.CLOSING
    ) -> QuarantinedMail:
        """Copy the content, then write the row: the row as it is now, which may be an earlier one of this enqueue id and attempt.

        One that waits for a person names these recipients then, too, where `state` is KEPT; what is only being decided may come to nothing (see `name`).
        A content that is gone is said in the row (`lost`); what is known of the mail is kept. Raises StoreUnavailable: then nothing was set aside.
        """
        there = self._table.read(self._queue, item.enqueue_id, holder.attempt)
        if there is not None and there.state is not State.NOTED:
            return self._naming(there, item, holder, decided, state)
        wanted = self._row(item, holder, decided, state)
        if state is not State.NOTED:
            wanted = self._copied(wanted, item)
        crash.point("quarantine:copied")
        if there is not None:
            if state is State.NOTED:
                return there
            self._table.remove(self._queue, there)
        kept = self._table.add(self._queue, wanted)
        crash.point("quarantine:kept")
        if kept.copy_id != wanted.copy_id:  # another was faster, and has a copy of its own
            self._drop_copy(wanted)
        return self._naming(kept, item, holder, decided, state)

    def note(self, item: QueuedMail, holder: Holder, decided: Decided) -> QuarantinedMail:
        """Write down what would be done; nothing is copied."""
        return self.keep(item, holder, decided, State.NOTED)

    def name(
        self, mail: QuarantinedMail, item: QueuedMail, decided: Decided, *, take: bool = False
    ) -> QuarantinedMail | None:
        """A row that waits for a person, or is to, once it names the recipients of `item`, too; None when it is not as `mail` any more.

        A mail has one row an attempt, and each decision about it its own recipients: those in doubt first, then the others, when it is closed. With `take` the
        row is this decision's from then on: its action, its run.
        """
        kept = codec.decode(mail.message)
        taken = {"action": decided.action, "run": decided.run, "who": decided.who} if take else {}
        if set(item.mail.recipients) <= set(kept.mail.recipients) and all(
            getattr(mail, name) == value for name, value in taken.items()
        ):
            return mail
        every = tuple(dict.fromkeys((*kept.mail.recipients, *item.mail.recipients)))
        message = codec.encode(replace(kept, mail=replace(kept.mail, recipients=every)))
        # By a new time, never the same: who has read the row before is refused.
        at = max(self._clock(), mail.decided + timedelta(milliseconds=1))
        return self._table.move(
            self._queue,
            mail,
            message=message,
            why=f"{mail.why}; {decided.why}",
            decided=at,
            **taken,
        )

    def keep_failed(self, item: QueuedMail, holder: Holder, decided: Decided) -> QuarantinedMail:
        """Keep recipients in doubt for good, for a worker: a row that no duty withdraws names them all then, whatever stuck_mails is doing with the mail.

        Raises StoreUnavailable: somebody closes the mail; ask again.
        """
        kept = self._kept_anew(item, holder, decided)
        if kept.state is State.CLOSING and self.tidy(
            kept
        ):  # a kill cut that off long ago, and no duty may come to finish it
            kept = self._kept_anew(item, holder, decided)
        if kept.state is State.RECOVERING:
            # Its run withdraws it when it cannot take the mail. In doubt to it, too: the row is kept from it. Else it decided before these were begun, and
            # surely cannot take it any more.
            if kept.action == decided.action:
                self.settle(kept)
            else:
                self.withdraw(kept)
            kept = self._kept_anew(item, holder, decided)
        named = set(codec.decode(kept.message).mail.recipients)
        if kept.state not in {State.KEPT, State.RELEASING, State.RELEASED} or not named >= set(
            item.mail.recipients
        ):
            raise StoreUnavailable(
                f"{item.enqueue_id} of {self._queue} is {kept.state} in quarantine (run {kept.run or '-'}): its recipients wait for that"
            )
        return kept

    def settle(self, mail: QuarantinedMail) -> QuarantinedMail:
        """The mail is out of the queue: from now on it waits here for a person."""
        return self._moved(mail, state=State.KEPT)

    def renew(self, mail: QuarantinedMail) -> QuarantinedMail | None:
        """The mail is being set aside from now on, whenever that was begun: nobody withdraws it meanwhile. None when somebody does already."""
        if mail.state is State.CLOSING:
            return self._table.move(self._queue, mail, decided=self._clock())
        return mail if mail.state is State.KEPT else None

    def withdraw(self, mail: QuarantinedMail) -> bool:
        """The mail is its holder's, or the queue's, after all: the copy and the row go. False when it is not as `mail` any more: then nothing goes.

        Claimed first: who sets it aside at this very moment would mark a mail whose copy is going.
        """
        going = (
            mail
            if mail.state in {State.NOTED, State.DISCARDING}
            else self._table.move(self._queue, mail, state=State.DISCARDING)
        )
        if going is not None:
            self._forget(going)
        return going is not None

    def is_here(self, mail: QuarantinedMail) -> bool:
        """Whether its row, and not that of another decision, still says that it is being set aside, or was: to be asked before it is marked as deleted."""
        now = self._table.read(self._queue, mail.enqueue_id, mail.attempt)
        return (
            now is not None
            and now.state in {State.CLOSING, State.KEPT}
            and (now.run, now.action) == (mail.run, mail.action)
        )

    def is_over(self, enqueue_id: EnqueueId) -> bool:
        """Whether a mail that had a row in the view is done or deleted: it has a mark, or neither mark nor row.

        Rows are looked for in every partition, also before browseStart: for what a kill left, not for many. Raises StoreUnavailable.
        """
        tables = self._stores.tables
        if tables.deleted.is_marked(self._queue, enqueue_id):
            return True
        found = (
            next(rows.find(self._queue, list(rows.places(self._queue)), enqueue_id), None)
            for rows in tables.existing
        )
        return all(row is None for row in found)

    def finished(self, mail: QuarantinedMail, at: datetime) -> QuarantinedMail:
        """Remember that the worker completed the mail after all."""
        return mail if mail.finished is not None else self._moved(mail, finished=at)

    def mails(self) -> Iterator[QuarantinedMail]:
        """Every row of the queue, in any state."""
        return self._table.list(self._queue)

    def waiting(self) -> Iterator[QuarantinedMail]:
        """What is in quarantine, or on its way out or back; what shadow mode noted is not."""
        return (mail for mail in self.mails() if mail.state not in {State.NOTED, State.RELEASED})

    def content(self, mail: QuarantinedMail) -> bytes:
        """The bytes. Raises ContentMissing when there is no copy."""
        if mail.content is not Content.KEPT:
            raise ContentMissing(
                f"the quarantine of {self._queue} has no content of {mail.enqueue_id}: {mail.content}"
            )
        header, body = self._keys(mail)
        return self._stores.own_blobs.get(header) + self._stores.own_blobs.get(body)

    def release(self, mail: QuarantinedMail) -> EnqueueId:
        """Enqueue the mail anew; its new enqueue id. Asked again after a kill, or by two at once, there is one new entry.

        Raises ContentMissing, Refused (it is no longer here, or is being closed), StoreUnavailable (ask again).
        """
        until = self._lease(mail)
        try:
            now = self._table.read(self._queue, mail.enqueue_id, mail.attempt)
            if now is None or now.state not in {State.KEPT, State.RELEASING, State.RELEASED}:
                raise Refused(
                    f"{mail.enqueue_id} of {self._queue} cannot be released: {'it is gone' if now is None else f'it is {now.state}'}"
                )
            return self._release(now, until)
        finally:
            self._stores.own.locks.release(self._lock(mail), self._me)

    def discard(self, mail: QuarantinedMail) -> bool:
        """Remove the copy and the row for good; False when another was faster. Raises Refused for a mail that is being closed or released."""
        if mail.state not in {State.KEPT, State.DISCARDING}:
            raise Refused(
                f"{mail.enqueue_id} of {self._queue} cannot be discarded: it is {mail.state}"
            )
        going = (
            mail
            if mail.state is State.DISCARDING
            else self._table.move(self._queue, mail, state=State.DISCARDING)
        )
        crash.point("discard:claimed")
        if going is not None:
            self._forget(going)
        return going is not None

    def tidy(self, mail: QuarantinedMail, over: timedelta | None = OVER) -> bool:
        """Finish what a kill cut off, where it needs no decision of a person; whether there was something. For one caller at a time.

        A setting aside counts as cut off when it is older than `over`; None: whoever asks knows that nobody is at it.
        """
        match mail.state:
            case State.RELEASED | State.DISCARDING:
                self._forget(mail)
            case State.CLOSING if over is None or self._clock() - mail.decided > over:
                if mail.action != "failed" and not self.is_over(mail.enqueue_id):
                    return self.withdraw(mail)
                self.settle(mail)
            case State.RELEASING if self._is_through(mail):
                return self._finish_release(mail)
            case _:
                return False
        return True

    def sweep(self) -> int:
        """Remove copies that no row knows, when they are old enough: a kill came between copy and row. How many objects.

        Raises Refused, and removes nothing, where the bucket has copies of another deployment's queue of this name, or may have.
        """
        self._stores.own_blobs.ensure_bucket()
        found = [
            blob
            for blob in self._stores.own_blobs.list(self._folder)
            if self._clock() - blob.modified > OVER
        ]
        if not found:
            return 0
        known = {key for mail in self.mails() for key in self._keys(mail)}
        orphans = [blob.key for blob in found if blob.key not in known]
        if not orphans:
            return 0
        self._require_alone(len(orphans), of_earlier_versions=len(orphans) < len(found))
        return len(orphans) - len(self._stores.own_blobs.delete_many(orphans))

    def _require_alone(self, orphans: int, *, of_earlier_versions: bool) -> None:
        """Looked at after the copies: who has some has said so before. An earlier version of mailslice did not: it is given the time to be replaced."""
        said = {blob.key: blob.modified for blob in self._stores.own_blobs.list(self._sayings)}
        mine = self._saying
        if of_earlier_versions and mine not in said:
            self._say()
        others = sorted(key for key in said if key != mine)
        if not others and mine in said and self._clock() - said[mine] > OVER:
            return
        unsaid = f"{mine}, by which they are ours, has not been there for {format_duration(OVER)}"
        why = f"by {', '.join(others)} another deployment keeps mail there" if others else unsaid
        raise Refused(
            f"{orphans} objects below {self._folder} in the own bucket {self._stores.settings.own.bucket!r} have no row here and are left: {why}; "
            "each deployment needs a MAILSLICE_OWN_BUCKET of its own"
        )

    def _say(self) -> None:
        """That this deployment keeps mail of this queue in the bucket: before the first copy."""
        if not self._said:
            if not self._stores.own_blobs.exists(self._saying):
                self._stores.own_blobs.put(self._saying, b"")
            self._said = True

    def _kept_anew(self, item: QueuedMail, holder: Holder, decided: Decided) -> QuarantinedMail:
        """`keep`, for good. A row that is on its way out is forgotten first, whoever claimed it: a kill may have left it, and no duty come to finish it."""
        kept = self.keep(item, holder, decided, State.KEPT)
        if kept.state is State.DISCARDING:
            self._forget(kept)
            kept = self.keep(item, holder, decided, State.KEPT)
        return kept

    def _naming(
        self,
        there: QuarantinedMail,
        item: QueuedMail,
        holder: Holder,
        decided: Decided,
        state: State,
    ) -> QuarantinedMail:
        """What `keep` found or wrote, naming the recipients of `item`."""
        if there.state is not State.KEPT or state is not State.KEPT:
            return there
        return self.name(there, item, decided) or self.keep(item, holder, decided, state)

    def _release(self, mail: QuarantinedMail, until: float) -> EnqueueId:
        if mail.state is State.RELEASED and mail.released_as is not None:
            self._forget(mail)
            return mail.released_as
        content = self.content(mail)
        if (
            mail.state is State.RELEASING
            and mail.released_as is not None
            and self._is_out(mail, mail.released_as)
        ):
            new_id = mail.released_as
        else:
            mail = self._claimed(mail)
            new_id = mail.released_as or EnqueueId(uuid4())
            crash.point("release:claimed")
            self._stores.tables.deleted.mark_many(self._queue, mail.voided)
            if time.monotonic() > until:
                raise StoreUnavailable(
                    f"the release of {mail.enqueue_id} took too long: nothing was published; ask again"
                )
            anew = replace(codec.decode(mail.message), enqueue_id=new_id)
            enter(
                self._stores,
                self._queue,
                anew,
                content,
                self._clock,
                on_row=partial(self._entered, mail),
            )
            crash.point("release:published")
        done = self._table.move(self._queue, mail, state=State.RELEASED)
        if done is None:
            raise Refused(
                f"{mail.enqueue_id} of {self._queue}: somebody else released it at the same time"
            )
        crash.point("release:recorded")
        self._forget(done)
        return new_id

    def _claimed(self, mail: QuarantinedMail) -> QuarantinedMail:
        """The row with a new id to release it as; the id of a release that was cut off is voided."""
        voided = (*mail.voided, mail.released_as) if mail.released_as is not None else mail.voided
        claimed = self._table.move(
            self._queue, mail, state=State.RELEASING, released_as=EnqueueId(uuid4()), voided=voided
        )
        if claimed is None:
            raise Refused(
                f"{mail.enqueue_id} of {self._queue}: somebody else releases or discards it at the same time"
            )
        return claimed

    def _entered(self, mail: QuarantinedMail) -> None:
        """The row of the new entry is in the view; its message is not out yet, and goes out only if this is written."""
        crash.point("release:row")
        if self._table.move(self._queue, mail, entered=mail.released_as) is None:
            raise Refused(
                f"{mail.enqueue_id} of {self._queue}: somebody else released it at the same time"
            )

    def _finish_release(self, mail: QuarantinedMail) -> bool:
        """The new entry of a release that was cut off was handled: what is here goes. False while somebody is at it."""
        if self._stores.own.locks.acquire(self._lock(mail), self._me, _LEASE) != self._me:
            return False
        try:
            done = self._table.move(self._queue, mail, state=State.RELEASED)
            if done is not None:
                self._forget(done)
            return done is not None
        finally:
            self._stores.own.locks.release(self._lock(mail), self._me)

    def _is_through(self, mail: QuarantinedMail) -> bool:
        """Whether the new entry is done or deleted. Without a row that was written, only a mark says so."""
        if mail.released_as is None:
            return False
        if mail.entered == mail.released_as:
            return self.is_over(mail.released_as)
        return self._stores.tables.deleted.is_marked(self._queue, mail.released_as)

    def _is_out(self, mail: QuarantinedMail, new_id: EnqueueId) -> bool:
        """Whether the mail of a release that was cut off was handled, or is in a worker's hands: then it needs no other."""
        if self._is_through(mail):
            return True
        records = [
            record
            for record in self._stores.own.worker_records.list(self._queue)
            if record.is_alive
        ]
        if any(
            new_id in record.done or any(new_id == each.enqueue_id for each in record.in_flight)
            for record in records
        ):
            return True
        if not records:
            return False
        # A worker that was handed it a moment ago says so in its next record.
        self._sleep(max(record.every for record in records).total_seconds() + _TICK)
        again = self._stores.own.worker_records.list(self._queue)
        held = any(
            new_id in record.done or any(new_id == each.enqueue_id for each in record.in_flight)
            for record in again
        )
        return held or self._is_through(mail)

    def _copied(self, mail: QuarantinedMail, item: QueuedMail) -> QuarantinedMail:
        """The row, once its content is copied, under keys of its own: who forgets an earlier row of the mail takes nothing of it."""
        mail = replace(mail, copy_id=uuid4().hex)
        try:
            content, size = self._copy(mail, item)
        except StoreUnavailable:
            self._drop_copy(mail)  # it is asked again and again
            raise
        return replace(mail, content=content, size=size)

    def _drop_copy(self, mail: QuarantinedMail) -> None:
        """A copy that has no row; what S3 does not delete now is left to the sweep."""
        with suppress(StoreUnavailable):
            self._stores.own_blobs.delete_many(self._keys(mail))

    def _copy(self, mail: QuarantinedMail, item: QueuedMail) -> tuple[Content, int]:
        self._stores.own_blobs.ensure_bucket()
        self._say()
        size = 0
        for source, key in zip(
            (item.header_blob_id, item.body_blob_id), self._keys(mail), strict=True
        ):
            try:
                content = self._stores.blobs.get(source)
            except ContentMissing as error:
                log.warning(
                    "quarantine: content lost: %s",
                    error,
                    extra={"action": "content_lost", "enqueue_id": str(item.enqueue_id)},
                )
                return Content.LOST, 0
            self._stores.own_blobs.put(key, content)
            size += len(content)
        return Content.KEPT, size

    def _row(
        self, item: QueuedMail, holder: Holder, decided: Decided, state: State
    ) -> QuarantinedMail:
        return QuarantinedMail(
            enqueue_id=item.enqueue_id,
            name=item.mail.name,
            state=state,
            action=decided.action,
            stage=holder.stage,
            worker=holder.worker,
            since=holder.since,
            age=holder.age,
            why=decided.why,
            decided=self._clock(),
            message=codec.encode(item),
            header_blob_id=item.header_blob_id,
            body_blob_id=item.body_blob_id,
            content=Content.NOT_COPIED,
            attempt=holder.attempt,
            run=decided.run,
            who=decided.who,
        )

    def _moved(self, mail: QuarantinedMail, **changes: object) -> QuarantinedMail:
        moved = self._table.move(self._queue, mail, **changes)
        return moved or self._table.read(self._queue, mail.enqueue_id, mail.attempt) or mail

    def _forget(self, mail: QuarantinedMail) -> None:
        """The copy, then the row: a kill in between leaves a row without content, which the next one forgets.

        Two may do it at once, and after the mail was kept anew: both copy and row are this keeping's.
        """
        failed = (
            self._stores.own_blobs.delete_many(self._keys(mail))
            if mail.content is Content.KEPT
            else ()
        )
        if failed:
            raise StoreUnavailable(
                f"S3 could not delete {len(failed)} objects of the quarantine of {self._queue}"
            )
        crash.point("quarantine:emptied")
        self._table.remove(self._queue, mail)

    @property
    def _folder(self) -> str:
        return f"quarantine/{quote(self._queue, safe='')}/"

    @property
    def _sayings(self) -> str:
        return f"deployments/{quote(self._queue, safe='')}/"

    @cached_property
    def _saying(self) -> BlobId:
        """The object that names this deployment: an id that its own keyspace keeps for good, whatever its addresses become."""
        return BlobId(f"{self._sayings}{self._stores.own.locks.first('deployment', str(uuid4()))}")

    def _keys(self, mail: QuarantinedMail) -> tuple[BlobId, BlobId]:
        folder = "/".join(
            filter(None, (f"{self._folder}{mail.enqueue_id}/{mail.attempt}", mail.copy_id))
        )
        return BlobId(f"{folder}/header"), BlobId(f"{folder}/body")

    def _lease(self, mail: QuarantinedMail) -> float:
        """The right to release this mail, for half a minute: until when (monotonic) something may be begun. Waits for another who has it."""
        deadline = time.monotonic() + 2 * _LEASE.total_seconds()
        while True:
            asked = time.monotonic()
            if self._stores.own.locks.acquire(self._lock(mail), self._me, _LEASE) == self._me:
                return asked + _LEASE.total_seconds() * _PART
            if asked > deadline:
                raise Refused(
                    f"{mail.enqueue_id} of {self._queue} is being released by somebody else"
                )
            self._sleep(_TICK)

    def _lock(self, mail: QuarantinedMail) -> str:
        return f"quarantine/{self._queue}/{mail.enqueue_id}/{mail.attempt}"
