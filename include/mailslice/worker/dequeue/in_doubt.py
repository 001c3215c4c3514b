"""Recipients in doubt: nobody knows whether they have the mail. They are never tried again.

The worker keeps the mail in quarantine for them: a person decides. Then it reports them. Then it
records them as failed. A worker that is killed before the record reports them again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from mailslice.admin.quarantine import Decided, Holder, Quarantine
from mailslice.codec.reports import in_doubt
from mailslice.model import crash
from mailslice.model.mail import EnqueueId, QueuedMail
from mailslice.model.stages import Decision, MailStage, Stage
from mailslice.worker.enqueue.bounce_reports import Reporter
from mailslice.worker.io.context import QueueContext
from mailslice.worker.logs import about
from mailslice.worker.stages.stage_log import Stages

log = logging.getLogger(__name__)

WHY = "the worker that was sending it ended before the answer was written down"
_SENT_AFTER_ALL = "its worker was slow, not dead: these were sent to, or are tried again"


class InDoubt:
    """The recipients in doubt of one queue with stage marks."""

    def __init__(self, context: QueueContext, stages: Stages, reporter: Reporter | None) -> None:
        self._context = context
        self._reporter = reporter
        self._reported: deque[tuple[EnqueueId, int]] = deque(maxlen=1000)
        """Mail and step of the last reports, which are not repeated."""
        self.stages = stages

    async def notify(
        self,
        item: QueuedMail,
        record: MailStage,
        failed: Sequence[str],
        content: bytes | None = None,
    ) -> None:
        """Notifies the operator (quarantine, decision, log, metrics) and, where set, the sender.

        `failed`: recipients that `record` has in stage sending. The sender gets no report if none
        can be made. Raises StoreUnavailable; then no recipient may be recorded as failed.
        """
        key = (item.enqueue_id, record.step)
        if not failed or key in self._reported:
            return
        doubtful = replace(item, mail=replace(item.mail, recipients=tuple(failed)))
        await asyncio.to_thread(self._quarantine_recipients, doubtful, record)
        crash.point("fail:set-aside")
        if self._reporter is not None:
            await self._reporter.report(doubtful, [in_doubt(one) for one in failed], content)
        text = "mail %s: %d recipients failed in attempt %d: %s: %s"
        facts = {"recipients": len(failed), "worker": record.owner, "queue": self._context.queue}
        extra = about("stage_failed", item.enqueue_id, **facts)
        arguments = item.enqueue_id, len(failed), record.attempt, WHY, record.owner
        log.error(text, *arguments, extra=extra)
        self._context.events.emit("in_doubt", doubtful, attempt=record.attempt, why=WHY)
        self._context.statistics.in_doubt += len(failed)
        self._reported.append(key)

    async def fail(self, item: QueuedMail, decision: Decision) -> bool:
        """Notifies of failed recipients, then records them. False: another worker was faster."""
        now = await self.stages.fetch(item.enqueue_id)
        if now is None or (now.owner, now.step) != (decision.record.owner, decision.record.step):
            return False  # the record moved on: these recipients may have been served
        await self.notify(item, decision.record, decision.failed)
        crash.point("fail:told")
        if await self.stages.advance(decision.record, decision.after):
            crash.point("fail:recorded")
            return True
        now = await self.stages.fetch(item.enqueue_id)
        stages = {now.recipients.get(r) for r in decision.failed} if now else {Stage.FAILED}
        if stages.isdisjoint((Stage.FAILED, Stage.SENDING)):
            await self.sent_after_all(item, decision.record, decision.failed)
        return False

    async def sent_after_all(
        self, item: QueuedMail, record: MailStage, recipients: Sequence[str]
    ) -> None:
        """Corrects quarantine and decisions: recipients reported as failed are not failed."""
        text = "mail %s: %d recipients reported as failed were sent to, or are tried again"
        facts = {"recipients": len(recipients), "queue": self._context.queue}
        extra = about("sent_after_failed", item.enqueue_id, **facts)
        log.warning(text, item.enqueue_id, len(recipients), extra=extra)
        await asyncio.to_thread(self._correct, item, record)

    def _quarantine_recipients(self, item: QueuedMail, record: MailStage) -> None:
        decided = Decided("failed", WHY, self._context.worker)
        self._quarantine.keep_failed(item, self._holder(record), decided)
        self._record(item, record, decided)

    def _correct(self, item: QueuedMail, record: MailStage) -> None:
        table, queue = self._context.stores.own.quarantine, self._context.queue
        row = table.get(queue, item.enqueue_id, record.attempt)
        if row is not None:
            self._quarantine.finished(row, self._context.clock())
        self._record(item, record, Decided("sent", _SENT_AFTER_ALL, self._context.worker))

    @property
    def _quarantine(self) -> Quarantine:
        return Quarantine(self._context.stores, self._context.queue, self._context.clock)

    def _record(self, item: QueuedMail, record: MailStage, decided: Decided) -> None:
        now = self._context.clock()
        self._quarantine.record(item, self._holder(record), decided, "in doubt", now)

    def _holder(self, record: MailStage) -> Holder:
        now = self._context.clock()
        since = record.updated or now
        age = max(timedelta(0), now - since)
        return Holder(record.owner, Stage.SENDING.value, since, age, record.attempt)
