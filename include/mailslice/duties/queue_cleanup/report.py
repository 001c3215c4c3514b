"""Step 5: what the run did, for the ledger and for people."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from mailslice.duties.queue_cleanup.params import Params
from mailslice.duties.queue_cleanup.repair_risk import risk
from mailslice.duty.artifacts import RunFolder
from mailslice.duty.context import StepContext
from mailslice.duty.report import DONE, DRY_RUN, FAILED, NOTHING
from mailslice.model.mail import EnqueueId
from mailslice.stores.cassandra.own import SliceStatistic

_NO_MARKS = {"dropped": 0, "waiting": 0, "why": [], "proof": None}


def run(context: StepContext) -> dict[str, Any]:
    """The report's own fields. Also remembers closed slices with their survivors."""
    verified = context.summary("verify")
    if verified is not None and "readAt" in verified:  # an earlier version did not say it
        _remember(context, verified)
    status, message = _outcome(context)
    return {**partial(context.folder), "status": status, "message": message}


def partial(folder: RunFolder) -> dict[str, Any]:
    """The fields as far as the run came."""
    plan = folder.read_json("plan.json") or {}
    applied = folder.read_json("applied.json") or folder.read_json("progress.json") or {}
    after = (folder.read_json("after.json") or {}) if applied else {}
    planned = int(plan.get("planned", 0))
    found: dict[str, Any] = {
        "planDigest": plan.get("planDigest"),
        "planned": planned,
        "applied": int(applied.get("applied", 0)),
        "skipped": int(applied.get("skipped", 0)),
        "failed": int(applied.get("failed", 0)),
        "skippedBy": applied.get("skippedBy", {}),
        "bytes": int(plan.get("bytes", 0)),
        "before": plan.get("before"),
        "after": after.get("after") or (plan.get("before") if not applied else None),
        "marks": applied.get("marks", _NO_MARKS),
        "unproven": int(plan.get("unproven", 0)),
        "undated": int(plan.get("undated", 0)),
        "strays": plan.get("strays", []),
        "unrepaired": plan.get("unrepaired", []),
        "aside": int(applied.get("aside", 0)),
    }
    if applied.get("failures"):
        found["failures"] = applied["failures"]
    return found


def _outcome(context: StepContext) -> tuple[str, str]:
    """The status, and what happened in words."""
    plan, applied = context.need("plan"), context.summary("apply")
    if context.params(Params).dry_run:
        danger = risk(plan.get("unrepaired", []))
        return DRY_RUN, f"dry run, nothing was changed: {plan['message']}{danger}"
    if applied is None:
        return FAILED, "apply did not end: what it left is found by the next run"
    if context.summary("verify") is None:
        return (
            FAILED,
            "verify did not end: what apply did is in the numbers, its invariants were not checked",
        )
    if applied["failed"]:
        return (
            FAILED,
            f"{applied['failed']} rows could not be deleted, such as {next(iter(applied['failures'].items()), 'unknown')}; the next run tries them again",
        )
    moved = [name for name, yes in applied.get("moved", {}).items() if yes]
    marks = applied["marks"]
    aside = applied.get("aside", 0)
    if not (applied["applied"] or applied["skipped"] or moved or marks["dropped"] or aside):
        why = (
            plan["message"]
            if plan["message"].startswith("nothing to do")
            else f"nothing to do, the range is clean already: {plan['message']}"
        )
        return NOTHING, why + _waiting(marks)
    words = [f"{applied['applied']} rows deleted"]
    words += [f"{applied['skipped']} skipped"] if applied["skipped"] else []
    words += [f"{' and '.join(moved)} moved"] if moved else ["the starts stay"]
    words += [f"{aside} rows set aside (mailslice stuck list {context.queue})"] if aside else []
    words += (
        [f"{marks['dropped']} deleted marks dropped ({marks['proof']})"] if marks["dropped"] else []
    )
    strays = len(plan.get("strays", ())) - aside
    words += (
        [f"{strays} rows without a mark stay before contentStart (--sweep --aside sets them aside)"]
        if strays
        else []
    )
    return DONE, ", ".join(words) + _waiting(marks) + risk(plan.get("unrepaired", []))


def _waiting(marks: dict[str, Any]) -> str:
    return (
        f"; {marks['waiting']} deleted marks stay for now: {'; '.join(marks['why'])}"
        if marks["waiting"]
        else ""
    )


def _remember(context: StepContext, verified: dict[str, Any]) -> None:
    """As of when they were read: size and browse trust what was looked at long after a slice was over."""
    read_at = datetime.fromisoformat(verified["readAt"])
    for each in verified["closedSlices"]:
        survivors = tuple(EnqueueId(UUID(one)) for one in each["survivors"])
        statistic = SliceStatistic(
            datetime.fromisoformat(each["start"]), each["live"], each["dead"], read_at, survivors
        )
        context.stores.own.slice_statistics.save(context.queue, statistic)
