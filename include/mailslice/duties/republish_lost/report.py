"""Step 5: what was published, for the ledger and for people."""

from __future__ import annotations

from collections import Counter
from typing import Any

from mailslice.duties.republish_lost.params import Params
from mailslice.duty.artifacts import RunFolder
from mailslice.duty.context import StepContext
from mailslice.duty.report import DONE, DRY_RUN, FAILED, NOTHING
from mailslice.model.durations import format_duration


def run(context: StepContext) -> dict[str, Any]:
    """The report's own fields."""
    params, found = context.params(Params), partial(context.folder)
    status, message = _outcome(context, found)
    older = None if params.older_than is None else format_duration(params.older_than)
    return {
        **found,
        "status": status,
        "message": message,
        "olderThan": older,
        "acceptDuplicates": params.accept_duplicates,
    }


def partial(folder: RunFolder) -> dict[str, Any]:
    """The fields as far as the run came. `nbRequeuedMails` is James' name of it; `skippedBy` holds what the plan left out, and what apply did."""
    plan = folder.read_json("plan.json") or {}
    applied = folder.read_json("applied.json") or folder.read_json("progress.json") or {}
    skipped = Counter(plan.get("skippedBy", {})) + Counter(applied.get("skippedBy", {}))
    return {
        "planDigest": plan.get("planDigest"),
        "planned": int(plan.get("planned", 0)),
        "applied": int(applied.get("applied", 0)),
        "nbRequeuedMails": int(applied.get("applied", 0)),
        "skipped": skipped.total(),
        "failed": int(applied.get("failed", 0)),
        "left": int(applied.get("left", 0)),
        "skippedBy": dict(skipped),
        "failures": applied.get("failures", {}),
        "outcomeUnknown": [*plan.get("outcomeUnknown", []), *applied.get("outcomeUnknown", [])],
        "audit": plan.get("audit"),
    }


def _outcome(context: StepContext, found: dict[str, Any]) -> tuple[str, str]:
    """The status, and what happened in words."""
    plan, applied = context.need("plan"), context.summary("apply")
    if context.given.dry_run:
        return DRY_RUN, f"dry run, nothing was published: {plan['message']}"
    if applied is None:
        return (
            FAILED,
            "apply did not end: what it published is in the ledger of decisions, and the next run goes on",
        )
    if context.summary("verify") is None:
        return (
            FAILED,
            "verify did not end: what apply did is in the numbers, its invariants were not checked",
        )
    words = [f"{found['applied']} mails published"] if found["applied"] else []
    words += [f"{count} skipped: {reason}" for reason, count in sorted(found["skippedBy"].items())]
    words += [f"{found['left']} left to the next run by the time limit"] if found["left"] else []
    if found["outcomeUnknown"]:
        words.append(
            f"of {len(found['outcomeUnknown'])} nobody saw a confirm, such as {found['outcomeUnknown'][0]}: --repeat-unknown publishes them again"
        )
    if found["failed"]:
        return FAILED, "; ".join([f"{found['failed']} mails could not be published", *words])
    if not found["applied"]:
        return NOTHING, "; ".join(
            [f"nothing to do: audit {found['audit']['run']} leaves no mail to publish", *words]
        )
    return DONE, "; ".join(words)
