"""Into quarantine, and out of it when the mail is its holder's, or the queue's, after all.

The row first, as a note that names the copy; then the content; then the row says that the mail is
set aside; then whatever makes the mail unavailable elsewhere (a deleted mark). At every moment the
mail is in the queue or here. A note whose row was taken meanwhile is refused, and begun anew.
James deletes the blobs of a marked mail when it drops its message: nothing here refers to them.
"""

import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta

from mailslice.admin.evidence import is_over
from mailslice.admin.quarantine.release import Releases
from mailslice.codec import message as codec
from mailslice.model import crash
from mailslice.model.clock import Clock
from mailslice.model.errors import Refused, StoreUnavailable
from mailslice.model.mail import QueuedMail, QueueName
from mailslice.stores import Stores
from mailslice.stores.cassandra.own import DecisionRow, QuarantinedMail, QuarantineTable
from mailslice.stores.cassandra.own.quarantine import Content, State

log = logging.getLogger(__name__)
OVER = timedelta(minutes=10)
"""A setting aside that is this old and not finished was cut off."""


def in_quarantine(stores: Stores, queue: QueueName, clock: Clock) -> list[QuarantinedMail]:
    """`Quarantine.waiting`, by age. Creates no table."""
    if QuarantineTable.existing(stores.cassandra, stores.settings) is None:
        return []
    mails = Quarantine(stores, queue, clock).waiting()
    return sorted(mails, key=lambda mail: (mail.since, mail.enqueue_id))


@dataclass(frozen=True, slots=True)
class Holder:
    """Who had the mail, since when and how far: `age` is how long by now. Fields of its row."""

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
    moved_to: str = ""
    due: datetime | None = None


class Quarantine(Releases):
    """The quarantine of one queue."""

    def keep(
        self, item: QueuedMail, holder: Holder, decided: Decided, state: State = State.CLOSING
    ) -> QuarantinedMail:
        """Set the mail aside: the row, which may be an earlier one of this enqueue id and attempt.

        One that waits for a person names these recipients then, too, where `state` is KEPT; what is
        only being decided may come to nothing (see `name`). A content that is gone is said in the
        row (`lost`); what is known of the mail is kept. Raises StoreUnavailable: nothing was set
        aside.
        """
        while True:
            existing = self._table.get(self._queue, item.enqueue_id, holder.attempt)
            if existing is None or existing.state is State.NOTED:
                existing = self._add_row(existing, item, self._row(item, holder, decided), state)
            if existing is not None:
                return self._naming(existing, item, holder, decided, state)

    def name(
        self, mail: QuarantinedMail, item: QueuedMail, decided: Decided, *, take: bool = False
    ) -> QuarantinedMail | None:
        """A row that waits for a person, or is to, once it names the recipients of `item`, too.

        None when it is not as `mail` any more. A mail has one row an attempt, and each decision
        about it its own recipients: those in doubt first, then the others, when it is closed. With
        `take` the row is this decision's from then on: its action, its run. One that was to be
        closed, and was not, names nobody else then: the others are not set aside.
        """
        stored = codec.decode(mail.message)
        taken = {"action": decided.action, "run": decided.run, "who": decided.who} if take else {}
        earlier = () if take and mail.action == "closed" else stored.mail.recipients
        every = tuple(dict.fromkeys((*earlier, *item.mail.recipients)))
        is_taken = all(getattr(mail, name) == value for name, value in taken.items())
        if is_taken and set(every) == set(stored.mail.recipients):
            return mail
        message = codec.encode(replace(stored, mail=replace(stored.mail, recipients=every)))
        why = f"{mail.why}; {decided.why}"
        at = self._later(mail)
        return self._table.move(self._queue, mail, message=message, why=why, decided=at, **taken)

    def keep_for_good(self, item: QueuedMail, holder: Holder, decided: Decided) -> QuarantinedMail:
        """`keep`, for a person. A row that is on its way out is forgotten first, whoever claimed
        it: a kill may have left it, and no duty come to finish it.
        """
        while (row := self.keep(item, holder, decided, State.KEPT)).state is State.DISCARDING:
            self._forget(row)
        return row

    def keep_marked(self, mail: QuarantinedMail) -> tuple[QuarantinedMail, list[str]]:
        """`mail`, which is marked now, as it waits for a person, and alarms: it is kept anew where
        it was withdrawn at this very moment. Who takes, recovers or releases it goes on.
        """
        holder = Holder(mail.worker, mail.stage, mail.since, mail.age, mail.attempt)
        reason = Decided(mail.action, mail.why, mail.who, mail.run, mail.moved_to, mail.due)
        kept = self.advance(mail, State.KEPT)
        while kept is None:
            row = self.keep_for_good(codec.decode(mail.message), holder, reason)
            if row.state not in {State.CLOSING, State.KEPT}:
                return row, []
            kept = self.advance(row, State.KEPT)  # else another sees the mark, and withdraws it
        if kept.copy_id == mail.copy_id:
            return kept, []
        words = (
            f"{mail.enqueue_id} was withdrawn from {self._table.TABLE} while it was marked: kept "
            f"anew, its content is {kept.content}"
        )
        log.error(words, extra={"action": "kept_anew", "enqueue_id": str(mail.enqueue_id)})
        return kept, [words]

    def record(
        self, item: QueuedMail, holder: Holder, decided: Decided, verdict: str, at: datetime
    ) -> None:
        """A row in `decisions`, for as long as MAILSLICE_DUTY_RETENTION says."""
        mail = (item.enqueue_id, item.mail.name, holder.stage, holder.worker, holder.age, verdict)
        row = DecisionRow(
            *mail, decided.action, decided.why, at, decided.who, decided.run, holder.attempt
        )
        self._stores.own.decisions.save(self._queue, row, self._stores.settings.duty.retention)

    def keep_failed(self, item: QueuedMail, holder: Holder, decided: Decided) -> QuarantinedMail:
        """Quarantine recipients whose delivery is unknown. No duty withdraws the row.

        Raises StoreUnavailable while another process closes the mail: try again.
        """
        row = self.keep_for_good(item, holder, decided)
        if row.state is State.CLOSING and self.tidy(row):
            # A kill cut that off long ago, and no duty may come to finish it.
            row = self.keep_for_good(item, holder, decided)
        if row.state is State.RECOVERING:
            # Its run withdraws it when it cannot take the mail. In doubt to it, too: the row is
            # kept from it. Else it decided before these were begun, and surely cannot take it any
            # more.
            if row.action == decided.action:
                self.settle(row)
            else:
                self.withdraw(row)
            row = self.keep_for_good(item, holder, decided)
        named = set(codec.decode(row.message).mail.recipients)
        if row.state not in {State.KEPT, State.RELEASING, State.RELEASED} or not named >= set(
            item.mail.recipients
        ):
            raise StoreUnavailable(
                f"{item.enqueue_id} of {self._queue} is {row.state} in quarantine "
                f"(run {row.run or '-'}): its recipients wait for that"
            )
        return row

    def settle(self, mail: QuarantinedMail) -> QuarantinedMail:
        """The mail waits here for a person from now on. The row as it is now, or `mail`."""
        return self._moved(mail, state=State.KEPT)

    def renew(self, mail: QuarantinedMail) -> QuarantinedMail | None:
        """The mail is being set aside from now on, whenever that was begun. Ask right before its
        mark.

        Who has read the row before withdraws it no more. None when somebody has, or does already.
        """
        if mail.state not in {State.CLOSING, State.KEPT}:
            return None
        return self._table.move(self._queue, mail, decided=self._later(mail))

    def withdraw(self, mail: QuarantinedMail) -> bool:
        """The mail is its holder's, or the queue's, after all: the copy and the row go.

        False when it is not as `mail` any more: then nothing goes. Claimed first: who sets it aside
        at this very moment would mark a mail whose copy is going.
        """
        going = (
            mail
            if mail.state is State.DISCARDING
            else self._table.move(self._queue, mail, state=State.DISCARDING)
        )
        crash.point("discard:claimed")
        if going is not None:
            self._forget(going)
        return going is not None

    def discard(self, mail: QuarantinedMail) -> bool:
        """Remove copy and row; False when another was faster. Refused: it is closed or released."""
        if mail.state not in {State.KEPT, State.DISCARDING}:
            raise Refused(
                f"{mail.enqueue_id} of {self._queue} cannot be discarded: it is {mail.state}"
            )
        return self.withdraw(mail)

    def advance(self, mail: QuarantinedMail, state: State) -> QuarantinedMail | None:
        """The row in that state, by a conditional write; None: it is not as `mail` any more."""
        return self._table.move(self._queue, mail, state=state, decided=self._later(mail))

    def tidy(self, mail: QuarantinedMail, over: timedelta | None = OVER) -> bool:
        """Finish what a kill cut off, where it needs no decision of a person; whether there was
        something.

        For one caller at a time. A setting aside counts as cut off when it is older than `over`;
        None: whoever asks knows that nobody is at it. Who is at a note begins it anew.
        """
        match mail.state:
            case State.RELEASED | State.DISCARDING:
                self._forget(mail)
            case State.NOTED:
                return self.withdraw(mail)
            case State.CLOSING if over is None or self._clock() - mail.decided > over:
                # By every replica: a mark that was not answered may be on one of them alone.
                if mail.action != "failed" and not is_over(
                    self._stores.tables, self._queue, mail.enqueue_id, every_replica=True
                ):
                    return self.withdraw(mail)
                self.settle(mail)
            case State.RELEASING:
                return self._finish(mail)
            case _:
                return False
        return True

    def sweep(self) -> int:
        """Remove copies that no row names: a kill came between; how many. See `Copies.sweep`."""
        return self._copies.sweep(lambda: self.mails(serial=True))

    def finished(self, mail: QuarantinedMail, at: datetime) -> QuarantinedMail:
        """Remember that the worker completed the mail after all."""
        return mail if mail.finished is not None else self._moved(mail, finished=at)

    def mails(self, *, serial: bool = False) -> Iterator[QuarantinedMail]:
        """Every row of the queue, in any state. `serial` as `QuarantineTable.list`."""
        return self._table.list(self._queue, serial=serial)

    def waiting(self) -> Iterator[QuarantinedMail]:
        """What is in quarantine, or on its way out or back."""
        return (mail for mail in self.mails() if mail.state is not State.NOTED)

    def _add_row(
        self, existing: QuarantinedMail | None, item: QueuedMail, row: QuarantinedMail, state: State
    ) -> QuarantinedMail | None:
        """Note (another's is gone on with), content, row in `state`; None: another changed it."""
        if existing is None:
            row = replace(row, copy_id=self._copies.new_id())
            existing = self._table.add(self._queue, row)
            if existing.copy_id != row.copy_id:
                return None
        crash.point("quarantine:noted")
        content, size = self._copies.make(existing, item)
        crash.point("quarantine:copied")
        stored = replace(row, state=state, copy_id=existing.copy_id, content=content, size=size)
        moved = self._table.put(self._queue, existing, stored)
        crash.point("quarantine:kept")
        return moved

    def _naming(
        self,
        existing: QuarantinedMail,
        item: QueuedMail,
        holder: Holder,
        decided: Decided,
        state: State,
    ) -> QuarantinedMail:
        """What `keep` found or wrote, naming the recipients of `item`."""
        if existing.state is not State.KEPT or state is not State.KEPT:
            return existing
        return self.name(existing, item, decided) or self.keep(item, holder, decided, state)

    def _row(self, item: QueuedMail, holder: Holder, decided: Decided) -> QuarantinedMail:
        return QuarantinedMail(
            enqueue_id=item.enqueue_id,
            name=item.mail.name,
            state=State.NOTED,
            decided=self._clock(),
            message=codec.encode(item),
            header_blob_id=item.header_blob_id,
            body_blob_id=item.body_blob_id,
            content=Content.NOT_COPIED,
            **asdict(holder),
            **asdict(decided),
        )

    def _later(self, mail: QuarantinedMail) -> datetime:
        """By a new time, never the same: who has read the row before is refused."""
        return max(self._clock(), mail.decided + timedelta(milliseconds=1))

    def _moved(self, mail: QuarantinedMail, **changes: object) -> QuarantinedMail:
        moved = self._table.move(self._queue, mail, **changes)
        return moved or self._table.get(self._queue, mail.enqueue_id, mail.attempt) or mail
