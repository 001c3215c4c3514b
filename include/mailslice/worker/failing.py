"""Recipients of whom nobody can say whether they have the mail: told, and only then written down as failed. They are never tried again.

A crash before the record is written tells again, at the next delivery; a crash after it has told. So nobody fails in silence. The mail, with these
recipients alone, is in quarantine before that: a person may look, ask the recipient, release or discard it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from mailslice.codec.reports import in_doubt
from mailslice.model import crash
from mailslice.model.mail import QueuedMail
from mailslice.model.stages import Decision, MailStage, Stage
from mailslice.queue.quarantine import Decided, Holder, Quarantine
from mailslice.stores.cassandra.own import DecisionRow
from mailslice.worker.wiring import Wiring

log = logging.getLogger(__name__)

WHY = "who was sending it ended before the answer was written down"
_SENT_AFTER_ALL = (
    "its sender was slow, not dead: the mail had gone out, and these recipients were sent to"
)


async def tell(
    wiring: Wiring,
    item: QueuedMail,
    record: MailStage,
    failed: Sequence[str],
    content: bytes | None = None,
) -> None:
    """The operator (quarantine, decision, log, figures) and, where that is set, the sender. Raises StoreUnavailable: then nobody may be written down as failed.

    `record` is what says that they were being sent to. Told once by a worker, however often it is asked. A sender of whose mail no report can be made is
    not told: the operator is.
    """
    key = (item.enqueue_id, record.attempt)
    if not failed or key in wiring.told:
        return
    doubtful = replace(item, mail=replace(item.mail, recipients=tuple(failed)))
    await asyncio.to_thread(_set_aside, wiring, doubtful, record)
    crash.point("fail:set-aside")
    if wiring.reporter is not None:
        await wiring.reporter.report(
            doubtful, [in_doubt(recipient) for recipient in failed], content
        )
    log.error(
        "mail %s: %d recipients failed in attempt %d: %s: %s",
        item.enqueue_id,
        len(failed),
        record.attempt,
        WHY,
        record.owner,
        extra={
            "action": "stage_failed",
            "enqueue_id": str(item.enqueue_id),
            "recipients": len(failed),
            "worker": record.owner,
            "queue": wiring.queue,
        },
    )
    wiring.doings.in_doubt += len(failed)
    wiring.told.append(key)


async def fail(wiring: Wiring, item: QueuedMail, decision: Decision) -> bool:
    """Tells of the decision's failed recipients and writes the record after it; False when another one was faster. Raises StoreUnavailable."""
    if wiring.stages is None:
        return False
    now = await wiring.stages.read(item.enqueue_id)
    if now is None or (now.owner, now.step) != (decision.record.owner, decision.record.step):
        return (
            False  # it was read a while ago, and nobody is to be told of what has ended well since
        )
    await tell(wiring, item, decision.record, decision.failed)
    crash.point("fail:told")
    if await wiring.stages.advance(decision.record, decision.after):
        crash.point("fail:recorded")
        return True
    there = await wiring.stages.read(item.enqueue_id)
    if there is not None and any(
        there.recipients.get(recipient) is Stage.SENT for recipient in decision.failed
    ):
        await sent_after_all(wiring, item, decision.record, decision.failed)
    return False


async def sent_after_all(
    wiring: Wiring, item: QueuedMail, record: MailStage, recipients: Sequence[str]
) -> None:
    """Recipients that were told as failed have the mail: the quarantine and the decisions say so, lest somebody releases it to them."""
    log.warning(
        "mail %s: %d recipients that were failed were sent to after all",
        item.enqueue_id,
        len(recipients),
        extra={
            "action": "sent_after_failed",
            "enqueue_id": str(item.enqueue_id),
            "recipients": len(recipients),
            "queue": wiring.queue,
        },
    )
    await asyncio.to_thread(_correct, wiring, item, record)


def _set_aside(wiring: Wiring, item: QueuedMail, record: MailStage) -> None:
    now = wiring.clock()
    since = record.updated or now
    holder = Holder(
        record.owner, Stage.SENDING.value, since, max(timedelta(0), now - since), record.attempt
    )
    Quarantine(wiring.stores, wiring.queue, wiring.clock).keep_failed(
        item, holder, Decided("failed", WHY, wiring.worker)
    )
    _decide(wiring, item, record, "failed", WHY)


def _correct(wiring: Wiring, item: QueuedMail, record: MailStage) -> None:
    there = wiring.stores.own.quarantine.read(wiring.queue, item.enqueue_id, record.attempt)
    if there is not None:
        Quarantine(wiring.stores, wiring.queue, wiring.clock).finished(there, wiring.clock())
    _decide(wiring, item, record, "sent", _SENT_AFTER_ALL)


def _decide(wiring: Wiring, item: QueuedMail, record: MailStage, action: str, why: str) -> None:
    now = wiring.clock()
    row = DecisionRow(
        enqueue_id=item.enqueue_id,
        name=item.mail.name,
        stage=Stage.SENDING.value,
        worker=record.owner,
        age=max(timedelta(0), now - (record.updated or now)),
        verdict="in doubt",
        action=action,
        why=why,
        decided=now,
        who=wiring.worker,
        attempt=record.attempt,
    )
    wiring.stores.own.decisions.save(wiring.queue, row, wiring.settings.duty.retention)
