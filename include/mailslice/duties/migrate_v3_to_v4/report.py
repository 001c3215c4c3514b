"""Step 5: what was copied, for the ledger and for people."""

from __future__ import annotations

from typing import Any

from mailslice.duties.migrate_v3_to_v4.apply import FILE
from mailslice.duties.migrate_v3_to_v4.params import Params
from mailslice.duty.artifacts import RunFolder
from mailslice.duty.context import StepContext
from mailslice.duty.report import DONE, DRY_RUN, FAILED, NOTHING

_SLICES = 500


def run(context: StepContext) -> dict[str, Any]:
    """The report's own fields."""
    status, message = _outcome(context)
    return {**partial(context.folder), "status": status, "message": message}


def partial(folder: RunFolder) -> dict[str, Any]:
    """The fields as far as the run came. `skipped`: all rows of V3 that were not copied, by reason in `skippedBy`; `verified`: both tables hold them."""
    plan = folder.read_json("plan.json") or {}
    applied = folder.read_json("applied.json") or folder.read_json(FILE) or {}
    verified = folder.read_json("verify.json") or {}
    reasons: dict[str, int] = {**plan.get("skippedBy", {}), **applied.get("skippedBy", {})}
    copied = int(applied.get("applied", 0))
    slices = verified.get("slices", [])
    return {
        "planDigest": plan.get("planDigest"),
        "planned": int(plan.get("planned", 0)),
        "applied": copied,
        "copied": copied,
        "skipped": sum(reasons.values()),
        "skippedBy": reasons,
        "failed": int(applied.get("failed", 0)),
        "left": int(applied.get("left", 0)),
        "rows": int(plan.get("rows", 0)),
        "bytes": int(plan.get("bytes", 0)),
        "verified": int(verified.get("verified", 0)),
        "newer": int(verified.get("newer", 0)),
        "missing": int(verified.get("missing", 0)),
        "slices": slices[-_SLICES:],
    }


def _outcome(context: StepContext) -> tuple[str, str]:
    """The status, and what happened in words."""
    plan, applied, verified = (
        context.need("plan"),
        context.summary("apply"),
        context.summary("verify"),
    )
    if context.params(Params).dry_run:
        return DRY_RUN, f"dry run, nothing was changed: {plan['message']}"
    if applied is None:
        return FAILED, "apply did not end: run it again, what was copied is not copied twice"
    if verified is None:
        return (
            FAILED,
            "verify did not end: what was copied is in the numbers, the tables were not compared",
        )
    if applied["failed"]:
        return (
            FAILED,
            f"{applied['failed']} rows are covered by a later delete in enqueuedMailsV4 and stay in enqueuedMailsV3 alone, which is still read",
        )
    if not plan["planned"]:
        return NOTHING, plan["message"]
    words = [f"{applied['applied']} rows copied, {verified['verified']} verified in both tables"]
    words += (
        [f"{sum(applied['skippedBy'].values())} skipped: {', '.join(applied['skippedBy'])}"]
        if applied["skippedBy"]
        else []
    )
    words += (
        [f"{verified['newer']} were written since the plan: run it again for them"]
        if verified["newer"]
        else []
    )
    words += (
        [f"{applied['left']} left to the next run: the time was over"] if applied["left"] else []
    )
    return DONE, "; ".join(words)
