"""What is done with one stuck mail: noted, closed, or recovered by its stage marks.

Everything is written before it takes effect: content and row in quarantine, the decision, and only
then the mark. What a kill leaves, the next run finishes (`leftovers`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from mailslice.admin.enqueue import publish
from mailslice.admin.evidence import is_over
from mailslice.admin.quarantine import OVER, Decided, Holder, Quarantine
from mailslice.codec import message as codec
from mailslice.duties.stuck_mails.liveness import Stuck
from mailslice.duties.stuck_mails.mails import PlannedMail, StuckPlan
from mailslice.duties.stuck_mails.telling import tell_sender
from mailslice.duties.stuck_mails.verdicts import Action, is_superseded, item_of, stages_of
from mailslice.maintenance.artifacts import iso
from mailslice.maintenance.run import Run
from mailslice.model import crash
from mailslice.model.durations import format_duration
from mailslice.model.mail import EnqueueId, Place, QueuedMail
from mailslice.model.settings import StuckMode
from mailslice.model.stages import Decision, Verdict
from mailslice.stores.cassandra.own import DecisionRow, QuarantinedMail
from mailslice.stores.cassandra.own.quarantine import Content, State

log = logging.getLogger(__name__)

_SECOND = timedelta(seconds=1)
_STAYS = {State.KEPT, State.RELEASING, State.RELEASED}


class Skipped(Exception):
    """The mail is left alone; why."""


@dataclass(frozen=True, slots=True)
class HeldMail:
    """A mail, who holds it, and where its row is; None for a message of James."""

    item: QueuedMail
    holder: Holder
    place: Place | None = None

    @property
    def enqueue_id(self) -> EnqueueId:
        """Of the mail."""
        return self.item.enqueue_id

    def to(self, recipients: tuple[str, ...]) -> HeldMail:
        """The same for some of its recipients."""
        mail = replace(self.item.mail, recipients=recipients)
        return replace(self, item=replace(self.item, mail=mail))

    def report_entry(self, action: Action, why: str, **more: object) -> dict[str, Any]:
        """The decision, as the report shows it."""
        holder = self.holder
        mail = PlannedMail(
            self.enqueue_id,
            self.item.mail.name,
            holder.worker,
            holder.stage,
            holder.attempt,
            holder.since,
            round(holder.age / _SECOND, 3),
            action.value,
        )
        return {**mail.as_json(), "why": why, **more}

    def quarantined_entry(self, action: Action, kept: QuarantinedMail) -> dict[str, Any]:
        """As `report_entry`, with what became of the content."""
        return self.report_entry(action, kept.why, content=kept.content.value, bytes=kept.size)


@dataclass(frozen=True)
class StuckMailActions:
    """Acts on the mails of one plan.

    `noted`: since when an earlier run in shadow mode says so, by enqueue id. `alarms`: what a
    person has to look at.
    """

    run: Run
    plan: StuckPlan
    quarantine: Quarantine
    noted: Mapping[str, datetime] = field(default_factory=dict)
    alarms: list[str] = field(default_factory=list)

    def act(self, planned: PlannedMail, stuck: Stuck) -> dict[str, Any]:
        """The decision, as the report shows it. Raises Skipped when the mail needs none now."""
        stores, queue = self.run.stores, self.run.queue
        if stores.tables.deleted.is_marked(queue, planned.enqueue_id):
            raise Skipped("marked meanwhile")
        if is_superseded(stores, queue, stuck):
            raise Skipped("it has another holder")
        item = item_of(stores, queue, stuck)
        if item is None:
            raise Skipped("its metadata is not known")
        record, mail = stuck.record, stuck.mail
        holder = Holder(record.worker, mail.stage, planned.since, stuck.age, mail.attempt)
        held = HeldMail(item, holder, mail.place)
        if self.plan.mode is StuckMode.SHADOW:
            return self._note(held, Action(planned.action))
        if self.plan.mode is StuckMode.RECOVER and record.stage_marks:
            return self._recover(held)
        return self._close(held)

    def closed_by_earlier_try(self) -> dict[EnqueueId, dict[str, Any]]:
        """What an earlier try of this very run has closed: its decisions, finished."""
        of_this_run = [
            mail
            for mail in self.quarantine.mails(serial=True)
            if (mail.run, mail.action) == (self.plan.run, Action.CLOSED)
        ]
        marked = self.run.stores.tables.deleted.marked(
            self.run.queue, [mail.enqueue_id for mail in of_this_run]
        )
        entries = {}
        for mail in of_this_run:
            if mail.enqueue_id in marked:
                kept = self.quarantine.settle(mail) if mail.state is State.CLOSING else mail
                holder = Holder(mail.worker, mail.stage, mail.since, mail.age, mail.attempt)
                held = HeldMail(codec.decode(mail.message), holder)
                entries[mail.enqueue_id] = held.quarantined_entry(Action.CLOSED, kept)
        return entries

    def _note(self, held: HeldMail, action: Action) -> dict[str, Any]:
        """What would be done; a decision is written the first time that a mail is found so."""
        decided = self._decided(action.would, held)
        at = self.noted.get(str(held.enqueue_id))
        if at is None:
            at = self.run.clock()
            self._save(held, decided, action, at)
        content = {"content": Content.NOT_COPIED.value, "bytes": 0}
        return held.report_entry(action, decided.why, **content, decided=iso(at))

    def _close(self, held: HeldMail) -> dict[str, Any]:
        """Content and row, decision, mark. A mail that its holder completes meanwhile is its own.

        A holder that hangs over the end of an attempt has quarantined those in doubt already: its
        row is made to name the others, too.
        """
        deleted, queue = self.run.stores.tables.deleted, self.run.queue
        decided = self._decided(Action.CLOSED, held)
        kept = self.quarantine.keep(held.item, held.holder, decided)
        crash.point("apply:kept")
        if kept.state not in {State.CLOSING, State.KEPT}:
            raise Skipped(f"it is {kept.state} in quarantine")
        if deleted.is_marked(queue, held.enqueue_id):
            if kept.state is State.CLOSING:  # else it has recipients in doubt of its holder
                self.quarantine.withdraw(kept)
            raise Skipped("completed meanwhile")
        kept = self._named(kept, held, decided, take=True)
        self._save(held, decided, Action.CLOSED, kept.decided)
        crash.point("apply:decided")
        # This process may have stood still: its lock ran out, and the next run has withdrawn the
        # mail, or is at it. The row is renewed by a conditional write: it is no longer what that
        # run read.
        self.run.require_lock()
        renewed = self.quarantine.renew(kept)
        if renewed is None:
            raise Skipped("withdrawn from quarantine meanwhile")
        crash.point("apply:renewed")
        deleted.mark_many(queue, [held.enqueue_id])
        crash.point("apply:marked")
        kept = self.quarantine.settle(renewed)
        if kept.state not in _STAYS:
            kept = self._kept_again(held, decided)
        return held.quarantined_entry(Action.CLOSED, kept)

    def _kept_again(self, held: HeldMail, decided: Decided) -> QuarantinedMail:
        """The mail is marked, and its copy went at this very moment: it is kept anew."""
        kept = self.quarantine.keep_for_good(held.item, held.holder, decided)
        words = (
            f"{held.enqueue_id} was withdrawn from quarantine while it was closed: kept anew, its "
            f"content is {kept.content}; look at 'mailslice stuck list {self.run.queue}'"
        )
        log.error(words, extra={"action": "kept_anew", "enqueue_id": str(held.enqueue_id)})
        self.alarms.append(words)
        return kept

    def _recover(self, held: HeldMail) -> dict[str, Any]:
        """By its stage marks. From `_take` on those of the holder are refused."""
        stores, queue, now = self.run.stores, self.run.queue, self.run.clock()
        decision = stages_of(stores, queue, held.item, by=self.plan.run, now=now)
        match decision.verdict:
            case Verdict.HANDLE:
                return self._release(held, decision)
            case Verdict.FAIL:
                return self._fail(held, decision)
            case Verdict.COMPLETE:
                return self._complete(held, decision)
        raise Skipped("its stage leaves it to its holder")

    def _release(self, held: HeldMail, decision: Decision) -> dict[str, Any]:
        decided = self._decided(Action.RELEASED, held)
        kept = self._kept_for_recovery(held, decided)
        self._save(held, decided, Action.RELEASED, kept.decided)
        crash.point("apply:kept")
        self._take(decision, kept)
        crash.point("apply:taken")
        self._publish(held.to(decision.left))
        crash.point("apply:published")
        self._withdraw(kept)
        return held.quarantined_entry(Action.RELEASED, kept)

    def _fail(self, held: HeldMail, decision: Decision) -> dict[str, Any]:
        """Recipients in doubt go to quarantine for good; those not begun are tried again."""
        stores, queue, in_doubt = self.run.stores, self.run.queue, held.to(decision.failed)
        of_all = f"{len(decision.failed)} of {len(held.item.mail.recipients)}"
        decided = self._decided(Action.FAILED, held, f"; {of_all} recipients may have been served")
        kept = self._kept_for_recovery(in_doubt, decided)
        take = kept.state is State.KEPT and kept.action != Action.FAILED
        kept = self._named(kept, in_doubt, decided, take=take)
        self._save(held, decided, Action.FAILED, kept.decided)
        crash.point("apply:kept")
        self._take(decision, kept)
        crash.point("apply:taken")
        tell_sender(stores, in_doubt.item, self.run.clock)
        if decision.left:
            self._publish(held.to(decision.left))
        else:
            stores.tables.deleted.mark_many(queue, [held.enqueue_id])
        crash.point("apply:published")
        return held.quarantined_entry(Action.FAILED, self.quarantine.settle(kept))

    def _complete(self, held: HeldMail, decision: Decision) -> dict[str, Any]:
        decided = self._decided(Action.COMPLETED, held)
        self._save(held, decided, Action.COMPLETED, self.run.clock())
        self._take(decision, None)
        self.run.stores.tables.deleted.mark_many(self.run.queue, [held.enqueue_id])
        return held.report_entry(Action.COMPLETED, decided.why, content="done")

    def _kept_for_recovery(self, held: HeldMail, decided: Decided) -> QuarantinedMail:
        """Content and row: this run's, or the holder's, where it kept those in doubt and hung.

        What a killed run in mode close began is undone first. What is on its way out is the next
        run's: its content may be gone.
        """
        kept = self.quarantine.keep(held.item, held.holder, decided, State.RECOVERING)
        if kept.state is State.CLOSING and self.quarantine.tidy(
            kept, None if kept.action == Action.CLOSED else OVER
        ):
            kept = self.quarantine.keep(held.item, held.holder, decided, State.RECOVERING)
        if kept.state is State.RECOVERING:
            return kept
        if kept.state is State.KEPT:
            if kept.action == Action.FAILED:
                return kept
            # The holder's, too: a run in mode close was killed after it took the row, and before it
            # marked the mail.
            tables, queue = self.run.stores.tables, self.run.queue
            if kept.action == Action.CLOSED and not is_over(tables, queue, kept.enqueue_id):
                return kept
        raise Skipped(f"it is {kept.state} in quarantine, as {kept.action}")

    def _named(
        self, kept: QuarantinedMail, held: HeldMail, decided: Decided, *, take: bool
    ) -> QuarantinedMail:
        """The row, which names these recipients, too, where it is the holder's.

        With `take` it is this run's then, also if a killed run had kept it.
        """
        if not take and kept.state is not State.KEPT:
            return kept
        named = self.quarantine.name(kept, held.item, decided, take=take)
        if named is None:
            raise Skipped("its row in quarantine was changed meanwhile")
        return named

    def _withdraw(self, kept: QuarantinedMail) -> None:
        """The run's row goes. The holder's stays: its recipients in doubt are nowhere else."""
        if kept.state is State.RECOVERING and kept.run == self.plan.run:
            self.quarantine.withdraw(kept)

    def _take(self, decision: Decision, kept: QuarantinedMail | None) -> None:
        """The record is ours from now on. Refused, the copy goes.

        It stays where an earlier write of this run that was not answered turns out to have been
        done: then the next run finishes it.
        """
        self.run.require_lock()
        stages, queue = self.run.stores.own.mail_stages, self.run.queue
        if stages.advance(queue, decision.record, decision.after):
            return
        now = stages.read(queue, decision.record.enqueue_id)
        if kept is not None and (now is None or now.owner != self.plan.run):
            self._withdraw(kept)
        raise Skipped("its holder went on meanwhile")

    def _publish(self, held: HeldMail) -> None:
        """To those that were not begun, as a new attempt: the old holder is refused."""
        publish(self.run.stores, self.run.queue, held.item, held.place, self.run.clock())

    def _decided(self, action: str, held: HeldMail, more: str = "") -> Decided:
        holder = held.holder
        age = format_duration(holder.age // _SECOND * _SECOND)
        allowed = format_duration(self.plan.lock_timeout)
        why = (
            f"held by {holder.worker} for {age}, allowed are {allowed}; stage {holder.stage}{more}"
        )
        return Decided(action, why, self.run.request.who, self.plan.run)

    def _save(self, held: HeldMail, decided: Decided, action: Action, at: datetime) -> None:
        """The decision, in its table."""
        holder = held.holder
        row = DecisionRow(
            enqueue_id=held.enqueue_id,
            name=held.item.mail.name,
            stage=holder.stage,
            worker=holder.worker,
            age=holder.age,
            verdict=action.verdict,
            action=decided.action,
            why=decided.why,
            decided=at,
            who=decided.who,
            run=decided.run,
            attempt=holder.attempt,
        )
        self.run.stores.own.decisions.save(self.run.queue, row, self.run.settings.duty.retention)
