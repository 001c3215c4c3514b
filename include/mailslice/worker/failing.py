"""Recipients of whom nobody can say whether they have the mail: told, and only then written down as failed. They are never tried again.

A crash before the record is written tells again, at the next delivery; a crash after it has told. So nobody fails in silence.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from mailslice.codec.reports import Failure
from mailslice.model.mail import QueuedMail
from mailslice.model.stages import Decision, MailStage
from mailslice.worker.wiring import Wiring

log = logging.getLogger(__name__)

WHY = "whoever was sending the mail ended before the answer was written down"
_IN_DOUBT = "it is not known whether the mail arrived: the system that was sending it stopped before it could write down the answer, and it is not sent twice"


async def tell(wiring: Wiring, item: QueuedMail, record: MailStage, failed: Sequence[str], content: bytes | None = None) -> None:
    """The operator (log, figures, decision, quarantine) and, where that is set, the sender. Raises StoreUnavailable: then nobody may be written down as failed.

    `record` is what says that they were being sent to. Told once by a worker, however often it is asked.
    """
    key = (item.enqueue_id, record.attempt)
    if not failed or key in wiring.told:
        return
    doubtful = replace(item, mail=replace(item.mail, recipients=tuple(failed)))
    if wiring.reporter is not None:
        await wiring.reporter.report(doubtful, [Failure(recipient, "4.4.2", _IN_DOUBT) for recipient in failed], content)
    log.error(
        "mail %s: %d recipients failed in attempt %d: %s, who was %s",
        item.enqueue_id,
        len(failed),
        record.attempt,
        WHY,
        record.owner,
        extra={"action": "stage_failed", "enqueue_id": str(item.enqueue_id), "recipients": len(failed), "worker": record.owner, "queue": wiring.queue},
    )
    wiring.on_failed(len(failed))
    wiring.told.append(key)


async def fail(wiring: Wiring, item: QueuedMail, decision: Decision) -> bool:
    """Tells of the decision's failed recipients and writes the record after it; False when another one was faster. Raises StoreUnavailable."""
    if wiring.stages is None:
        return False
    await tell(wiring, item, decision.record, decision.failed)
    return await wiring.stages.advance(decision.record, decision.after)
