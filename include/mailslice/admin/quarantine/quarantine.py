"""Sets mails aside in quarantine, and withdraws those that stay with their holder or their queue.

`keep` writes the row as a note that names the copy, then the content, then the row in its state.
After that the caller makes the mail unavailable elsewhere, by a deleted mark. At every moment the
mail is in its queue or here. A writer whose note was withdrawn is refused and begins anew. James
deletes the blobs of a marked mail when it drops the message: a copy does not refer to them.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Self

from mailslice.admin.evidence import is_finished
from mailslice.admin.quarantine.release import Releases
from mailslice.codec import message as codec
from mailslice.model import crash
from mailslice.model.clock import Clock
from mailslice.model.command_line import command_line
from mailslice.model.errors import Refused, StoreUnavailable
from mailslice.model.mail import QueuedMail, QueueName
from mailslice.stores import Stores
from mailslice.stores.cassandra.own import DecisionRow, QuarantinedMail, QuarantineTable
from mailslice.stores.cassandra.own.decisions import BY_A_PERSON
from mailslice.stores.cassandra.own.quarantine import Content, State

log = logging.getLogger(__name__)
OVER = timedelta(minutes=10)
"""Age from which an unfinished row counts as cut off by a kill."""


def in_quarantine(stores: Stores, queue: QueueName, clock: Clock) -> list[QuarantinedMail]:
    """`Quarantine.waiting`, first the mail that its worker got first. Creates no table."""
    if QuarantineTable.existing(stores.cassandra, stores.settings) is None:
        return []
    mails = Quarantine(stores, queue, clock).waiting()
    return sorted(mails, key=lambda mail: (mail.since, mail.enqueue_id))


@dataclass(frozen=True, slots=True)
class Holder:
    """Which worker had the mail, at which stage, since when; `age`: how long. Fields of its row."""

    worker: str
    stage: str
    since: datetime
    age: timedelta
    attempt: int = 1

    @classmethod
    def of(cls, mail: QuarantinedMail) -> Self:
        return cls(mail.worker, mail.stage, mail.since, mail.age, mail.attempt)


@dataclass(frozen=True, slots=True)
class Decided:
    """What is done with the mail (`closed`, `failed`...), why, by whom. Fields of its row."""

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
        """Set the mail aside. Returns its row: this enqueue id and attempt may have one already.

        With state KEPT, a row that waits for a person (KEPT) gets the recipients of `item`, too; a
        row in state DISCARDING is removed first, as perhaps no duty runs that would remove it. In
        another state the decision may come to nothing (see `extend`). A mail without content is
        kept as `lost`. Raises StoreUnavailable: nothing was set aside.
        """
        while True:
            row = self._table.get(self._queue, item.enqueue_id, holder.attempt)
            if row is None or row.state is State.NOTED:
                row = self._add_row(row, item, self._row(item, holder, decided), state)
            if row is not None and state is State.KEPT:
                if row.state is State.DISCARDING:
                    self._forget(row)
                    continue
                row = self.extend(row, item, decided) if row.state is State.KEPT else row
            if row is not None:
                return row

    def extend(
        self, mail: QuarantinedMail, item: QueuedMail, decided: Decided, *, take: bool = False
    ) -> QuarantinedMail | None:
        """Add the recipients of `item` to a row that waits, or will wait, for a person.

        Returns None when the row is not as `mail` any more. A mail has one row an attempt. Several
        decisions may add recipients: a worker adds those in doubt, a close adds the others. `take`
        writes this decision's action and run into the row. It also drops the recipients of an
        earlier close: that close did not end, and its recipients are still in the queue.
        """
        stored = codec.decode(mail.message)
        taken = {"action": decided.action, "run": decided.run, "who": decided.who} if take else {}
        earlier = () if take and mail.action == "closed" else stored.mail.recipients
        recipients = tuple(dict.fromkeys((*earlier, *item.mail.recipients)))
        is_taken = all(getattr(mail, name) == value for name, value in taken.items())
        if is_taken and set(recipients) == set(stored.mail.recipients):
            return mail
        message = codec.encode(replace(stored, mail=replace(stored.mail, recipients=recipients)))
        why, at = f"{mail.why}; {decided.why}", self._next_decided(mail)
        return self._table.move(self._queue, mail, message=message, why=why, decided=at, **taken)

    def keep_marked(self, mail: QuarantinedMail) -> tuple[QuarantinedMail, list[str]]:
        """Move the row of a mail that is marked now to KEPT. Returns the row, and alarms.

        If the row was withdrawn meanwhile, the mail is kept anew, with an alarm. A row that another
        process takes, recovers or releases stays as it is.
        """
        reason = Decided(mail.action, mail.why, mail.who, mail.run, mail.moved_to, mail.due)
        kept = self.advance(mail, State.KEPT)
        while kept is None:
            row = self.keep(codec.decode(mail.message), Holder.of(mail), reason, State.KEPT)
            if row.state not in {State.CLOSING, State.KEPT}:
                return row, []
            kept = self.advance(row, State.KEPT)  # else another move sees the mark and withdraws it
        return kept, self.alarm_for(mail, kept, "marked")

    def alarm_for(self, mail: QuarantinedMail, kept: QuarantinedMail, doing: str) -> list[str]:
        """An alarm if the row `mail` was withdrawn and the mail has the row `kept` now."""
        if kept.copy_id == mail.copy_id:
            return []
        words = (
            f"{mail.enqueue_id} was withdrawn from {self._table.TABLE} while it was {doing}: kept "
            f"anew, its content is {kept.content}"
        )
        log.error(words, extra={"action": "kept_anew", "enqueue_id": str(mail.enqueue_id)})
        return [f"{words}; look at `{command_line('stuck list', self._queue)}`"]

    def record(
        self, item: QueuedMail, holder: Holder, decided: Decided, verdict: str, at: datetime
    ) -> None:
        """Write a row to `decisions`, which expires after MAILSLICE_RETENTION."""
        mail = (item.enqueue_id, item.mail.name, holder.stage, holder.worker, holder.age, verdict)
        row = DecisionRow(
            *mail, decided.action, decided.why, at, decided.who, decided.run, holder.attempt
        )
        self._stores.own.decisions.save(self._queue, row, self._stores.settings.duty.retention)

    def record_person(self, mail: QuarantinedMail, action: str, why: str, who: str) -> None:
        """Write down what a person decided about the mail, which may be gone by now."""
        item, decided = codec.decode(mail.message), Decided(action, why, who)
        self.record(item, Holder.of(mail), decided, BY_A_PERSON, self._clock())

    def keep_failed(self, item: QueuedMail, holder: Holder, decided: Decided) -> QuarantinedMail:
        """Quarantine recipients whose delivery is unknown. No duty withdraws the row.

        Raises StoreUnavailable while another process closes the mail: try again.
        """
        row = self.keep(item, holder, decided, State.KEPT)
        if row.state is State.CLOSING and self.tidy(row):
            # A kill cut the close off long ago, and perhaps no duty runs that would finish it.
            row = self.keep(item, holder, decided, State.KEPT)
        if row.state is State.RECOVERING:
            # The run that recovers the mail withdraws the row if it cannot take the mail. If these
            # recipients are in doubt for it, too, the row must stay. Otherwise it decided before
            # they were begun, and can no longer take the mail.
            if row.action == decided.action:
                self.settle(row)
            else:
                self.withdraw(row)
            row = self.keep(item, holder, decided, State.KEPT)
        named = set(codec.decode(row.message).mail.recipients)
        if row.state not in {State.KEPT, State.RELEASING, State.RELEASED} or not named >= set(
            item.mail.recipients
        ):
            raise StoreUnavailable(
                f"{item.enqueue_id} of {self._queue} is {row.state} in quarantine "
                f"(run {row.run or '-'}): its recipients wait until that ends"
            )
        return row

    def settle(self, mail: QuarantinedMail) -> QuarantinedMail:
        """Move the row to KEPT: the mail waits for a person. Returns the row as it is now."""
        return self._moved(mail, state=State.KEPT)

    def renew(self, mail: QuarantinedMail) -> QuarantinedMail | None:
        """Let the row count as begun now. Call it right before the mail's mark.

        A process that read the row earlier can then no longer withdraw it. Returns None when one
        has withdrawn it, or is doing so.
        """
        return self.advance(mail, mail.state) if mail.state in {State.CLOSING, State.KEPT} else None

    def withdraw(self, mail: QuarantinedMail, record: Callable[[], object] = lambda: None) -> bool:
        """Remove copy and row, once `record` is done: the mail stays with its holder or its queue.

        Returns False, and removes nothing, when the row is not as `mail` any more. Claims the row
        first: a process that is setting the mail aside must not mark it while its copy goes.
        """
        is_claimed = mail.state is State.DISCARDING
        going = mail if is_claimed else self._table.move(self._queue, mail, state=State.DISCARDING)
        crash.point("discard:claimed")
        if going is not None:
            record()
            self._forget(going)
        return going is not None

    def discard(self, mail: QuarantinedMail, record: Callable[[], object] = lambda: None) -> bool:
        """As `withdraw`, for a person. Raises Refused in states other than KEPT and DISCARDING."""
        if mail.state not in {State.KEPT, State.DISCARDING}:
            raise Refused(
                f"{mail.enqueue_id} of {self._queue} cannot be discarded: it is {mail.state}"
            )
        return self.withdraw(mail, record)

    def advance(self, mail: QuarantinedMail, state: State) -> QuarantinedMail | None:
        """Move the row to `state`, conditionally. None: the row is not as `mail` any more."""
        return self._table.move(self._queue, mail, state=state, decided=self._next_decided(mail))

    def tidy(self, mail: QuarantinedMail, over: timedelta | None = OVER) -> bool:
        """Finish what a kill cut off, where no person must decide. Returns whether there was work.

        For one caller at a time. A close counts as cut off when it is older than `over`; None: the
        caller knows that nobody works on it. A process whose note is withdrawn here begins anew.
        """
        match mail.state:
            case State.RELEASED | State.DISCARDING:
                self._forget(mail)
            case State.NOTED:
                return self.withdraw(mail)
            case State.CLOSING if over is None or self._clock() - mail.decided > over:
                # Asks every replica: a mark whose write timed out may be on one of them alone.
                if mail.action != "failed" and not is_finished(
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
        """Remove copies that a kill left without a row. Returns how many objects."""
        return self._copies.sweep(lambda: self.mails(serial=True))

    def finished(self, mail: QuarantinedMail, at: datetime) -> QuarantinedMail:
        """Record that the worker completed the mail in the end."""
        return mail if mail.finished is not None else self._moved(mail, finished=at)

    def mails(self, *, serial: bool = False) -> Iterator[QuarantinedMail]:
        """Every row of the queue, in any state. `serial` as `QuarantineTable.list`."""
        return self._table.list(self._queue, serial=serial)

    def waiting(self) -> Iterator[QuarantinedMail]:
        """Rows of mails that were set aside, also those on their way out or back."""
        return (mail for mail in self.mails() if mail.state is not State.NOTED)

    def _add_row(
        self, existing: QuarantinedMail | None, item: QueuedMail, row: QuarantinedMail, state: State
    ) -> QuarantinedMail | None:
        """Write note (or go on with an `existing` one), content, row. None: another changed it."""
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

    def _next_decided(self, mail: QuarantinedMail) -> datetime:
        """A new value of `decided`: writes based on an earlier read of the row are refused."""
        return max(self._clock(), mail.decided + timedelta(milliseconds=1))

    def _moved(self, mail: QuarantinedMail, **changes: object) -> QuarantinedMail:
        moved = self._table.move(self._queue, mail, **changes)
        return moved or self._table.get(self._queue, mail.enqueue_id, mail.attempt) or mail
