"""Acts on one stuck mail: notes it, closes it, or recovers it by its stage marks.

Content and row in quarantine and the decision are written first, and only then the deleted mark.
What a kill leaves, the next run finishes (`work.finish`).
"""

import logging
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid5

from mailslice.admin.enqueue import enter, publish
from mailslice.admin.evidence import is_finished
from mailslice.admin.quarantine import OVER, Decided, Holder, Quarantine
from mailslice.codec import message as codec
from mailslice.codec import reports
from mailslice.duties.stuck_mails import mails
from mailslice.duties.stuck_mails.mails import Action, PlannedMail, StuckMail, StuckPlan
from mailslice.maintenance.artifacts import iso
from mailslice.maintenance.liveness import Stuck
from mailslice.maintenance.run import Run
from mailslice.model import crash
from mailslice.model.durations import format_duration
from mailslice.model.errors import BadInput, BadSetting, ContentMissing, StoreUnavailable
from mailslice.model.mail import BlobId, EnqueueId, QueuedMail, QueueName
from mailslice.model.settings import StuckMode
from mailslice.model.stages import Decision, DeliveryVerdict
from mailslice.stores.cassandra.own import QuarantinedMail
from mailslice.stores.cassandra.own.quarantine import Content, State

log = logging.getLogger(__name__)

_SECOND = timedelta(seconds=1)


class LeftAlone(Exception):
    """The mail is left alone. The text says why."""


@dataclass(frozen=True)
class StuckMailActions:
    """Acts on the mails of one plan.

    `why_left`: by recent worker records, why a mail must be left after all, or None. `noted`: when
    a run in shadow mode first noted a mail, by enqueue id. `alarms`: what a person must look at.
    """

    run: Run
    plan: StuckPlan
    quarantine: Quarantine
    why_left: Callable[[PlannedMail], str | None]
    noted: Mapping[str, datetime] = field(default_factory=dict)
    alarms: list[str] = field(default_factory=list)

    def act(self, planned: PlannedMail, stuck: Stuck) -> dict[str, Any]:
        """The decision, as the report shows it. Raises LeftAlone when the mail needs none now."""
        stores, queue = self.run.stores, self.run.queue
        if stores.tables.deleted.is_marked(queue, planned.enqueue_id):
            raise LeftAlone("marked meanwhile")
        if mails.is_superseded(stores, queue, stuck):
            raise LeftAlone("it has another holder")
        item = mails.item_of(stores, queue, stuck)
        if item is None:
            raise LeftAlone("its metadata is not known")
        record, mail = stuck.record, stuck.mail
        holder = Holder(record.worker, mail.stage, planned.since, stuck.age, mail.attempt)
        stuck_mail = StuckMail(item, holder, mail.partition)
        if self.plan.mode is StuckMode.SHADOW:
            return self._note(stuck_mail, Action(planned.action))
        if not record.stage_marks:
            return self._close(planned, stuck_mail)
        decision = mails.stages_of(stores, queue, item, by=self.plan.run, now=self.run.clock())
        if decision.verdict is DeliveryVerdict.COMPLETE:
            return self._complete(stuck_mail)
        if self.plan.mode is StuckMode.RECOVER:  # after `_take`, marks of the holder are refused
            return (self._fail if decision.failed else self._release)(stuck_mail, decision)
        # If a person releases the mail, nobody may get it twice.
        return self._close(planned, stuck_mail.to((*decision.failed, *decision.left)))

    def closed_by_earlier_try(self) -> dict[EnqueueId, dict[str, Any]]:
        """Decisions of an earlier try of this run to close mails, each finished now."""
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
                quarantined = self.quarantine.settle(mail) if mail.state is State.CLOSING else mail
                stuck_mail = StuckMail(codec.decode(mail.message), Holder.of(mail))
                entries[mail.enqueue_id] = stuck_mail.quarantined_entry(Action.CLOSED, quarantined)
        return entries

    def tidied(self, mail: QuarantinedMail) -> bool:
        """Finish what a kill cut off, unless a replica that may have its mark is away."""
        try:
            return self.quarantine.tidy(mail, None if mail.action == Action.CLOSED else OVER)
        except (BadSetting, StoreUnavailable) as error:
            log.warning("%s stays in quarantine as %s: %s", mail.enqueue_id, mail.state, error)
            return False

    def _note(self, stuck_mail: StuckMail, action: Action) -> dict[str, Any]:
        """Note what would be done. Only the first run that notes a mail writes a decision."""
        decided = self._decided(action.would, stuck_mail)
        at = self.noted.get(str(stuck_mail.enqueue_id))
        if at is None:
            at = self.run.clock()
            self._save(stuck_mail, decided, action, at)
        content = {"content": Content.NOT_COPIED.value, "bytes": 0}
        return stuck_mail.report_entry(action, decided.why, **content, decided=iso(at))

    def _close(self, planned: PlannedMail, stuck_mail: StuckMail) -> dict[str, Any]:
        """Write content and row, then the decision, then the mark. Leave what its holder completes.

        A holder that hangs at the end of an attempt has already quarantined the recipients in
        doubt. Its row then names the other recipients, too.
        """
        deleted, queue = self.run.stores.tables.deleted, self.run.queue
        decided = self._decided(Action.CLOSED, stuck_mail)
        key = (queue, stuck_mail.enqueue_id, stuck_mail.holder.attempt)
        earlier = self.run.stores.own.quarantine.get(*key)
        quarantined = self.quarantine.keep(stuck_mail.item, stuck_mail.holder, decided)
        crash.point("apply:kept")
        if quarantined.state not in {State.CLOSING, State.KEPT}:
            raise LeftAlone(f"it is {quarantined.state} in quarantine")
        why = self.why_left(planned)
        if deleted.is_marked(queue, stuck_mail.enqueue_id):
            why = "completed meanwhile"
        if why is not None:
            if quarantined.state is State.CLOSING:  # else it has the holder's recipients in doubt
                if earlier is None:
                    self.quarantine.withdraw(quarantined)
                else:  # an earlier try may have marked the mail, perhaps on one replica alone
                    self.tidied(quarantined)
            raise LeftAlone(why)
        quarantined = self._named(quarantined, stuck_mail, decided, take=True)
        self._save(stuck_mail, decided, Action.CLOSED, quarantined.decided)
        crash.point("apply:decided")
        # If this process stood still, its lock may have ended, and the next run may be withdrawing
        # the mail. Both write the row conditionally: whichever write comes second is refused.
        self.run.require_lock()
        renewed = self.quarantine.renew(quarantined)
        if renewed is None:
            raise LeftAlone("withdrawn from quarantine meanwhile")
        crash.point("apply:renewed")
        deleted.mark_many(queue, [stuck_mail.enqueue_id])
        crash.point("apply:marked")
        quarantined, alarms = self.quarantine.keep_marked(renewed)
        self.alarms.extend(alarms)
        return stuck_mail.quarantined_entry(Action.CLOSED, quarantined)

    def _release(self, stuck_mail: StuckMail, decision: Decision) -> dict[str, Any]:
        decided = self._decided(Action.RELEASED, stuck_mail)
        quarantined = self._quarantine_for_recovery(stuck_mail, decided)
        self._save(stuck_mail, decided, Action.RELEASED, quarantined.decided)
        crash.point("apply:kept")
        self._take(decision, quarantined)
        crash.point("apply:taken")
        self._publish(stuck_mail.to(decision.left))
        crash.point("apply:published")
        self._withdraw(quarantined)
        return stuck_mail.quarantined_entry(Action.RELEASED, quarantined)

    def _fail(self, stuck_mail: StuckMail, decision: Decision) -> dict[str, Any]:
        """Quarantine recipients in doubt for a person. Try those that were not begun again."""
        deleted, in_doubt = self.run.stores.tables.deleted, stuck_mail.to(decision.failed)
        of_all = f"{len(decision.failed)} of {len(stuck_mail.item.mail.recipients)} recipients"
        decided = self._decided(Action.FAILED, stuck_mail, f"; {of_all} may have been served")
        quarantined = self._quarantine_for_recovery(in_doubt, decided)
        take = quarantined.state is State.KEPT and quarantined.action != Action.FAILED
        quarantined = self._named(quarantined, in_doubt, decided, take=take)
        self._save(stuck_mail, decided, Action.FAILED, quarantined.decided)
        crash.point("apply:kept")
        self._take(decision, quarantined)
        # Also the holder's row: after a kill the next run acts. While this process stood still, the
        # next run, or a person, may have removed the row of recipients that are recorded as failed.
        row = replace(quarantined, run=self.plan.run)
        claimed = self.quarantine.advance(row, State.RECOVERING)
        if claimed is None:
            quarantined = self.quarantine.keep_failed(in_doubt.item, in_doubt.holder, decided)
            self.alarms.extend(self.quarantine.alarm_for(row, quarantined, "taken from its holder"))
        crash.point("apply:taken")
        if decision.left:
            self._publish(stuck_mail.to(decision.left))
        else:
            deleted.mark_many(self.run.queue, [stuck_mail.enqueue_id])
        crash.point("apply:published")
        self.send_bounce(quarantined)
        crash.point("apply:told")
        if claimed is not None:
            quarantined = self.quarantine.settle(claimed)
        return stuck_mail.quarantined_entry(Action.FAILED, quarantined)

    def _complete(self, stuck_mail: StuckMail) -> dict[str, Any]:
        """Mark the mail. Its final stage record stays: after a kill the next run marks the mail."""
        decided = self._decided(Action.COMPLETED, stuck_mail)
        self._save(stuck_mail, decided, Action.COMPLETED, self.run.clock())
        crash.point("apply:decided")
        self.run.require_lock()
        self.run.stores.tables.deleted.mark_many(self.run.queue, [stuck_mail.enqueue_id])
        return stuck_mail.report_entry(Action.COMPLETED, decided.why, content="done")

    def _quarantine_for_recovery(self, stuck_mail: StuckMail, decided: Decided) -> QuarantinedMail:
        """Content and row: this run's, or those of a holder that quarantined recipients in doubt.

        A closing that a killed run in mode close began is undone first. Raises LeftAlone for a row
        on its way out: its content may be gone, and the next run decides.
        """
        item, tables, queue = stuck_mail.item, self.run.stores.tables, self.run.queue
        arguments = (item, stuck_mail.holder, decided, State.RECOVERING)
        quarantined = self.quarantine.keep(*arguments)
        if quarantined.state is State.CLOSING and self.quarantine.tidy(
            quarantined, None if quarantined.action == Action.CLOSED else OVER
        ):
            quarantined = self.quarantine.keep(*arguments)
        match quarantined.state, quarantined.action:
            case (State.RECOVERING, _) | (State.KEPT, Action.FAILED):
                return quarantined
            # Also the holder's row: a run in mode close took it, and was killed before it marked
            # the mail.
            case State.KEPT, Action.CLOSED if not is_finished(tables, queue, item.enqueue_id):
                return quarantined
        raise LeftAlone(f"it is {quarantined.state} in quarantine, as {quarantined.action}")

    def _named(
        self, quarantined: QuarantinedMail, stuck_mail: StuckMail, decided: Decided, *, take: bool
    ) -> QuarantinedMail:
        """The holder's row, made to name these recipients, too. `take` makes it this run's row."""
        if not take and quarantined.state is not State.KEPT:
            return quarantined
        named = self.quarantine.extend(quarantined, stuck_mail.item, decided, take=take)
        if named is None:
            raise LeftAlone("its row in quarantine was changed meanwhile")
        return named

    def _withdraw(self, quarantined: QuarantinedMail) -> None:
        """Remove this run's row. A holder's row stays: it alone has the recipients in doubt."""
        if quarantined.state is State.RECOVERING and quarantined.run == self.plan.run:
            self.quarantine.withdraw(quarantined)

    def _take(self, decision: Decision, quarantined: QuarantinedMail) -> None:
        """Take the stage record from the holder. If that is refused, the quarantined copy goes.

        The copy stays if the record is this run's already, by an earlier write that got no answer:
        then the next run finishes the mail.
        """
        self.run.require_lock()
        stages, queue = self.run.stores.own.mail_stages, self.run.queue
        if stages.advance(queue, decision.record, decision.after):
            return
        now = stages.get(queue, decision.record.enqueue_id)
        if now is None or now.owner != self.plan.run:
            self._withdraw(quarantined)
        raise LeftAlone("its holder went on meanwhile")

    def _publish(self, stuck_mail: StuckMail) -> None:
        """Publish to recipients not begun, as a new attempt: the old holder's marks are refused."""
        run, item = self.run, stuck_mail.item
        publish(run.stores, run.queue, item, stuck_mail.partition, run.clock())

    def _decided(self, action: str, stuck_mail: StuckMail, more: str = "") -> Decided:
        holder = stuck_mail.holder
        age = format_duration(holder.age // _SECOND * _SECOND)
        limit = format_duration(self.plan.lock_timeout)
        why = f"held by {holder.worker} for {age}, allowed are {limit}; stage {holder.stage}{more}"
        return Decided(action, why, self.run.request.who, self.plan.run)

    def _save(self, stuck_mail: StuckMail, decided: Decided, action: Action, at: datetime) -> None:
        self.quarantine.record(stuck_mail.item, stuck_mail.holder, decided, action.verdict, at)

    def send_bounce(self, quarantined: QuarantinedMail) -> None:
        """Enqueue a report (RFC 3464) of these recipients, to MAILSLICE_WORKER_BOUNCE_QUEUE.

        The null sender, and a sender that is no address, get none. After a kill the report is
        enqueued again under the same enqueue id, so that one of the two is delivered. A queue that
        does not exist is an alarm: nothing else would tell of it.
        """
        stores, settings = self.run.stores, self.run.stores.settings
        if settings.worker.bounce_queue is None:
            return
        queue, item = QueueName(settings.worker.bounce_queue), codec.decode(quarantined.message)
        reporter, content = settings.smtp_in.hostname or socket.getfqdn(), None
        failures = [reports.in_doubt(recipient) for recipient in item.mail.recipients]
        extra = {"enqueue_id": str(item.enqueue_id), "action": "report_failed"}
        with suppress(ContentMissing):
            content = self.quarantine.content(quarantined)
        now = self.run.clock()
        try:
            made = reports.report_of(item.mail, failures, content, reporter=reporter, now=now)
        except BadInput as error:
            log.warning("no report of %s: %s", item.enqueue_id, error, extra=extra)
            return
        if made is None:
            return
        if not stores.rabbitmq.exists(queue):
            why = f"there is no queue {queue!r} (MAILSLICE_WORKER_BOUNCE_QUEUE)"
            self.alarms.append(f"no report of {item.enqueue_id} to its sender: {why}")
            return
        new_id = EnqueueId(uuid5(item.enqueue_id, f"report/{quarantined.attempt}"))
        report = QueuedMail(new_id, made[0], BlobId(""), BlobId(""))
        enter(stores, queue, report, made[1], self.run.clock)
        extra = {**extra, "action": "report", "report": str(new_id)}
        words = "the sender of %s is told of %d recipients by %s"
        log.info(words, item.enqueue_id, len(failures), new_id, extra=extra)
