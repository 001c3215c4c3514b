"""Step 3: publish the verdicts as metrics. Touches no mail, no message and none of James' tables."""

from __future__ import annotations

import hashlib
from typing import Any

from mailslice.duties.queue_audit.metrics import file_of, prometheus_text
from mailslice.duty.audits import read_audit
from mailslice.duty.context import StepContext
from mailslice.model.errors import PlanRefused


def run(context: StepContext) -> dict[str, Any]:
    """What was published, with its digest. May run any number of times. Raises PlanRefused when the plan was changed or did not pass the gate."""
    audit = read_audit(context.need("plan"), context.folder)
    check = context.need("check")
    if not check.get("success") or check.get("planDigest") != audit.digest:
        raise PlanRefused(f"run {context.request.run}: the gate did not pass this audit ({audit.digest}): check comes first")
    place = context.folder.artifacts
    text = prometheus_text(context.queue, audit.proved().verdicts)
    place.write(file_of(context.queue), text)
    return {"planDigest": audit.digest, "applied": audit.rows.count, "metrics": place.uri(file_of(context.queue)), "digest": hashlib.sha256(text).hexdigest()}
