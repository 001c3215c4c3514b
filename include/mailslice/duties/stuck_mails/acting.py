"""What is done with one stuck mail: noted, closed, or recovered by its stage marks. Each decision is a row before it takes effect."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from mailslice.codec import message as codec
from mailslice.duties.stuck_mails.plan_file import Plan, PlannedMail
from mailslice.duties.stuck_mails.seen import Stuck
from mailslice.duties.stuck_mails.telling import tell_sender
from mailslice.duties.stuck_mails.verdicts import Action, is_superseded, item_of, stages_of
from mailslice.duty.artifacts import iso
from mailslice.duty.context import StepContext
from mailslice.model import crash
from mailslice.model.durations import format_duration
from mailslice.model.mail import EnqueueId, Place, QueuedMail
from mailslice.model.settings import StuckMode
from mailslice.model.stages import Decision, Verdict
from mailslice.queue.entries import publish
from mailslice.queue.proofs import is_over
from mailslice.queue.quarantine import OVER, Decided, Holder, Quarantine
from mailslice.stores.cassandra.own import DecisionRow, QuarantinedMail
from mailslice.stores.cassandra.own.quarantine import Content, State

log = logging.getLogger(__name__)

WOULD = {
    Action.CLOSED: "would close",
    Action.RELEASED: "would release",
    Action.FAILED: "would fail",
    Action.COMPLETED: "would complete",
}
VERDICTS = {
    Action.CLOSED: "stuck",
    Action.RELEASED: "stuck before sending",
    Action.FAILED: "stuck while sending",
    Action.COMPLETED: "stuck after it was sent",
}
_SECOND = timedelta(seconds=1)


class Skipped(Exception):
    """The mail is left alone; why."""


@dataclass(frozen=True)
class Acting:
    """Acts on the mails of one plan.

    `still_locked` raises when the duty's lock may be another run's by now. `noted` are the mails that
    an earlier run in shadow mode has written down, and when. `alarms`: what a person has to look at.
    """

    context: StepContext
    plan: Plan
    quarantine: Quarantine
    still_locked: Callable[[], None]
    noted: Mapping[str, datetime] = field(default_factory=dict)
    alarms: list[str] = field(default_factory=list)

    def act(self, planned: PlannedMail, found: Stuck) -> dict[str, Any]:
        """The decision, as the report shows it. Raises Skipped when the mail needs none any more."""
        stores, queue = self.context.stores, self.context.queue
        if stores.tables.deleted.is_marked(queue, planned.enqueue_id):
            raise Skipped("marked meanwhile")
        if is_superseded(stores, queue, found):
            raise Skipped("it has another holder")
        item = item_of(stores, queue, found)
        if item is None:
            raise Skipped("its metadata is not known")
        holder = Holder(
            found.record.worker, found.mail.stage, planned.since, found.age, found.mail.attempt
        )
        if self.plan.mode is StuckMode.SHADOW:
            return self._noted(item, holder, Action(planned.action))
        if self.plan.mode is StuckMode.RECOVER and found.record.stage_marks:
            return self._recovered(item, holder, found.mail.place)
        return self._closed(item, holder)

    def earlier_try(self) -> dict[EnqueueId, dict[str, Any]]:
        """What an earlier try of this very run has closed: its decisions, finished."""
        mine = [
            mail
            for mail in self.quarantine.mails(serial=True)
            if mail.run == self.plan.run and mail.action == Action.CLOSED
        ]
        marked = self.context.stores.tables.deleted.marked(
            self.context.queue, [mail.enqueue_id for mail in mine]
        )
        done = [
            self.quarantine.settle(mail) if mail.state is State.CLOSING else mail
            for mail in mine
            if mail.enqueue_id in marked
        ]
        return {mail.enqueue_id: _kept(mail) for mail in done}

    def _noted(self, item: QueuedMail, holder: Holder, action: Action) -> dict[str, Any]:
        """What would be done; a decision is written the first time that a mail is found so."""
        decided = self._decided(WOULD[action], holder)
        at = self.noted.get(str(item.enqueue_id))
        if at is None:
            at = self.context.clock()
            self._log(item, holder, decided, VERDICTS[action], at)
        shown = _shown(item, holder, action, decided.why)
        return {**shown, "content": Content.NOT_COPIED.value, "bytes": 0, "decided": iso(at)}

    def _closed(self, item: QueuedMail, holder: Holder) -> dict[str, Any]:
        """Content and row, decision, mark. A mail that its holder completed at this very moment is left to it.

        A holder that hangs over the end of an attempt has kept those in doubt already: its row is made to name the others, too.
        """
        stores, queue = self.context.stores, self.context.queue
        decided = self._decided(Action.CLOSED, holder)
        kept = self.quarantine.keep(item, holder, decided)
        crash.point("apply:kept")
        if kept.state not in {State.CLOSING, State.KEPT}:
            raise Skipped(f"it is {kept.state} in quarantine")
        if stores.tables.deleted.is_marked(queue, item.enqueue_id):
            if kept.state is State.CLOSING:  # else it has recipients in doubt of its holder
                self.quarantine.withdraw(kept)
            raise Skipped("completed meanwhile")
        kept = self._named(kept, item, decided, take=True)
        self._log(item, holder, decided, VERDICTS[Action.CLOSED], kept.decided)
        crash.point("apply:decided")
        # This process may have stood still: its lock ran out, and the run after it has withdrawn the
        # mail, or is at it. Renewed by a conditional write, the row is no longer what that run read.
        self.still_locked()
        renewed = self.quarantine.renew(kept)
        if renewed is None:
            raise Skipped("withdrawn from quarantine meanwhile")
        crash.point("apply:renewed")
        stores.tables.deleted.mark_many(queue, [item.enqueue_id])
        crash.point("apply:marked")
        kept = self.quarantine.settle(renewed)
        if kept.state not in {State.KEPT, State.RELEASING, State.RELEASED}:
            kept = self._kept_again(item, holder, decided)
        return self._told(item, holder, Action.CLOSED, kept)

    def _kept_again(self, item: QueuedMail, holder: Holder, decided: Decided) -> QuarantinedMail:
        """The mail is marked, and its copy went at this very moment: it is kept anew."""
        kept = self.quarantine.keep_for_good(item, holder, decided)
        words = (
            f"{item.enqueue_id} was withdrawn from quarantine while it was closed: kept anew, its content is "
            f"{kept.content}; look at 'mailslice stuck list {self.context.queue}'"
        )
        log.error(words, extra={"action": "kept_anew", "enqueue_id": str(item.enqueue_id)})
        self.alarms.append(words)
        return kept

    def _recovered(self, item: QueuedMail, holder: Holder, place: Place | None) -> dict[str, Any]:
        """By its stage marks. `advance` takes the mail from the holder: from then on its own marks are refused."""
        decision = stages_of(
            self.context.stores,
            self.context.queue,
            item,
            by=self.plan.run,
            now=self.context.clock(),
        )
        match decision.verdict:
            case Verdict.HANDLE:
                return self._released(item, holder, decision, place)
            case Verdict.FAIL:
                return self._failed(item, holder, decision, place)
            case Verdict.COMPLETE:
                return self._completed(item, holder, decision)
        raise Skipped("its stage leaves it to its holder")

    def _released(
        self, item: QueuedMail, holder: Holder, decision: Decision, place: Place | None
    ) -> dict[str, Any]:
        decided = self._decided(Action.RELEASED, holder)
        kept = self._kept_for_recovery(item, holder, decided)
        self._log(item, holder, decided, VERDICTS[Action.RELEASED], kept.decided)
        crash.point("apply:kept")
        self._take(decision, kept)
        crash.point("apply:taken")
        told = self._told(item, holder, Action.RELEASED, kept)
        self._publish(item, decision, place)
        crash.point("apply:published")
        self._withdraw(kept)
        return told

    def _failed(
        self, item: QueuedMail, holder: Holder, decision: Decision, place: Place | None
    ) -> dict[str, Any]:
        """The recipients in doubt go to quarantine for good; those that were not begun are tried again."""
        in_doubt = replace(item, mail=replace(item.mail, recipients=decision.failed))
        decided = self._decided(
            Action.FAILED,
            holder,
            f"; {len(decision.failed)} of {len(item.mail.recipients)} recipients may have been served",
        )
        kept = self._kept_for_recovery(in_doubt, holder, decided)
        kept = self._named(
            kept, in_doubt, decided, take=kept.state is State.KEPT and kept.action != Action.FAILED
        )
        self._log(item, holder, decided, VERDICTS[Action.FAILED], kept.decided)
        crash.point("apply:kept")
        self._take(decision, kept)
        crash.point("apply:taken")
        tell_sender(self.context.stores, in_doubt, self.context.clock)
        if decision.left:
            self._publish(item, decision, place)
        else:
            self.context.stores.tables.deleted.mark_many(self.context.queue, [item.enqueue_id])
        crash.point("apply:published")
        return self._told(item, holder, Action.FAILED, self.quarantine.settle(kept))

    def _kept_for_recovery(
        self, item: QueuedMail, holder: Holder, decided: Decided
    ) -> QuarantinedMail:
        """The content and the row: of this run, or the holder's own, where it has kept those in doubt and then hung.

        What a killed run in mode close began is undone first. What is on its way out is the next run's: its content may be gone.
        """
        kept = self.quarantine.keep(item, holder, decided, State.RECOVERING)
        if kept.state is State.CLOSING and self.quarantine.tidy(
            kept, None if kept.action == Action.CLOSED else OVER
        ):
            kept = self.quarantine.keep(item, holder, decided, State.RECOVERING)
        if kept.state is State.RECOVERING or (
            kept.state is State.KEPT and kept.action == Action.FAILED
        ):
            return kept
        if (
            kept.state is State.KEPT
            and kept.action == Action.CLOSED
            and not is_over(self.context.stores.tables, self.context.queue, kept.enqueue_id)
        ):
            return kept  # the holder's, too: a run in mode close was killed when it had taken the row, and before it marked the mail
        raise Skipped(f"it is {kept.state} in quarantine, as {kept.action}")

    def _named(
        self, kept: QuarantinedMail, item: QueuedMail, decided: Decided, *, take: bool
    ) -> QuarantinedMail:
        """The row, which names these recipients, too, where it is the holder's; with `take` it is this run's then, also if a killed run had kept it."""
        named = (
            self.quarantine.name(kept, item, decided, take=take)
            if take or kept.state is State.KEPT
            else kept
        )
        if named is None:
            raise Skipped("its row in quarantine was changed meanwhile")
        return named

    def _withdraw(self, kept: QuarantinedMail) -> None:
        """The row of this run goes. One that was the holder's stays: its recipients in doubt are there and nowhere else."""
        if kept.state is State.RECOVERING and kept.run == self.plan.run:
            self.quarantine.withdraw(kept)

    def _completed(self, item: QueuedMail, holder: Holder, decision: Decision) -> dict[str, Any]:
        decided = self._decided(Action.COMPLETED, holder)
        now = self.context.clock()
        self._log(item, holder, decided, VERDICTS[Action.COMPLETED], now)
        self._take(decision, None)
        self.context.stores.tables.deleted.mark_many(self.context.queue, [item.enqueue_id])
        return {**_shown(item, holder, Action.COMPLETED, decided.why), "content": "done"}

    def _take(self, decision: Decision, kept: QuarantinedMail | None) -> None:
        """The record is ours from now on. Refused, the copy goes, unless an earlier write of this run
        that was not answered turns out to have been done: then the next run finishes it.
        """
        self.still_locked()
        stages, queue = self.context.stores.own.mail_stages, self.context.queue
        if stages.advance(queue, decision.record, decision.after):
            return
        now = stages.read(queue, decision.record.enqueue_id)
        if kept is not None and (now is None or now.owner != self.plan.run):
            self._withdraw(kept)
        raise Skipped("its holder went on meanwhile")

    def _publish(self, item: QueuedMail, decision: Decision, place: Place | None) -> None:
        """The same mail, to those that were not begun: its attempt is one more, so that the old holder is refused."""
        left = replace(item, mail=replace(item.mail, recipients=decision.left))
        publish(self.context.stores, self.context.queue, left, place, self.context.clock())

    def _decided(self, action: str, holder: Holder, more: str = "") -> Decided:
        held, allowed = format_duration(_whole(holder.age)), format_duration(self.plan.timeout)
        why = (
            f"held by {holder.worker} for {held}, allowed are {allowed}; stage {holder.stage}{more}"
        )
        return Decided(action, why, self.context.request.who, self.plan.run)

    def _log(
        self, item: QueuedMail, holder: Holder, decided: Decided, verdict: str, at: datetime
    ) -> None:
        row = DecisionRow(
            enqueue_id=item.enqueue_id,
            name=item.mail.name,
            stage=holder.stage,
            worker=holder.worker,
            age=holder.age,
            verdict=verdict,
            action=decided.action,
            why=decided.why,
            decided=at,
            who=decided.who,
            run=decided.run,
            attempt=holder.attempt,
        )
        self.context.stores.own.decisions.save(
            self.context.queue, row, self.context.settings.duty.retention
        )

    def _told(
        self, item: QueuedMail, holder: Holder, action: Action, kept: QuarantinedMail
    ) -> dict[str, Any]:
        return {
            **_shown(item, holder, action, kept.why),
            "content": kept.content.value,
            "bytes": kept.size,
        }


def _shown(item: QueuedMail, holder: Holder, action: Action, why: str) -> dict[str, Any]:
    return {
        "enqueueId": str(item.enqueue_id),
        "name": item.mail.name,
        "stage": holder.stage,
        "worker": holder.worker,
        "since": iso(holder.since),
        "ageSeconds": round(holder.age / _SECOND, 3),
        "attempt": holder.attempt,
        "action": action,
        "why": why,
    }


def _kept(mail: QuarantinedMail) -> dict[str, Any]:
    """As `_told`, of what an earlier try has kept."""
    holder = Holder(mail.worker, mail.stage, mail.since, mail.age, mail.attempt)
    item = codec.decode(mail.message)
    return {
        **_shown(item, holder, Action.CLOSED, mail.why),
        "content": mail.content.value,
        "bytes": mail.size,
    }


def _whole(age: timedelta) -> timedelta:
    return age // _SECOND * _SECOND
