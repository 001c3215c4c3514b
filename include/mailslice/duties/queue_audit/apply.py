"""Step 3: publish the verdicts as metrics. Touches no mail, no message and none of James' tables."""

from __future__ import annotations

import hashlib
from typing import Any

from mailslice.duties.queue_audit.metrics import file_of, prometheus_text
from mailslice.duties.queue_audit.params import Params
from mailslice.duty.audits import read_audit
from mailslice.duty.context import StepContext
from mailslice.duty.plans import require_gate


def run(context: StepContext) -> dict[str, Any]:
    """What was published, with its digest; nothing by a run that was held to some slices: metrics are of the whole queue.

    May run any number of times. Raises PlanRefused when the plan was changed, is old, or did not pass the gate.
    """
    audit = read_audit(context.need("plan"), context.folder)
    require_gate(context, audit)
    if context.params(Params).ranged:
        return {"planDigest": audit.digest, "applied": audit.rows.count}
    place = context.folder.artifacts
    text = prometheus_text(context.queue, audit.proved().verdicts)
    place.write(file_of(context.queue), text)
    return {
        "planDigest": audit.digest,
        "applied": audit.rows.count,
        "metrics": place.uri(file_of(context.queue)),
        "digest": hashlib.sha256(text).hexdigest(),
    }
