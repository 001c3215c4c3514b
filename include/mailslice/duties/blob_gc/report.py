"""Step 5: what the run did, for the ledger and for people."""

from __future__ import annotations

from typing import Any

from mailslice.duty.artifacts import RunFolder
from mailslice.duty.context import FILES, StepContext
from mailslice.duty.report import DONE, DRY_RUN, FAILED, NOTHING

_PLANNED = (
    "planDigest",
    "referenceSourceCount",
    "references",
    "blobCount",
    "blobBytes",
    "orphans",
    "orphanBytes",
    "bytes",
)
_SHOWN = (
    "unreferenced",
    "byGeneration",
    "byAge",
    "samples",
    "sources",
    "absentSources",
    "unreadColumns",
    "listing",
    "candidatesOf",
)
_APPLIED = (
    "skippedBy",
    "failures",
    "left",
    "restored",
    "notRestored",
    "keptUntil",
    "expiredCopies",
    "bytesDeleted",
)


def run(context: StepContext) -> dict[str, Any]:
    """The report's own fields."""
    status, message = _outcome(context)
    return {**partial(context.folder), "status": status, "message": message}


def partial(folder: RunFolder) -> dict[str, Any]:
    """The fields as far as the run came."""
    plan = folder.read_json(FILES["plan"]) or {}
    applied = folder.read_json(FILES["apply"]) or (folder.read_json("progress.json") or {}).get(
        "values", {}
    )
    found: dict[str, Any] = {name: plan.get(name, 0) for name in _PLANNED}
    found["planDigest"] = plan.get("planDigest")
    found |= {name: plan[name] for name in _SHOWN if name in plan}
    found |= {name: applied[name] for name in _APPLIED if name in applied}
    failed = int(applied.get("failed", 0))
    return found | {
        "planned": int(plan.get("planned", 0)),
        "applied": int(applied.get("applied", 0)),
        "skipped": int(applied.get("skipped", 0)),
        "failed": failed,
        "candidates": int(applied.get("candidates", plan.get("candidates", 0))),
        "gcedBlobCount": int(applied.get("applied", 0)),
        "restored": int(applied.get("restored", 0)),
        "spent": {**plan.get("spent", {}), **applied.get("spent", {})},
        "errorCount": failed
        + len(applied.get("notRestored", ()))
        + int(applied.get("copiesNotDeleted", 0)),
    }


def _outcome(context: StepContext) -> tuple[str, str]:
    """The status, and what happened in words."""
    plan, applied = context.need("plan"), context.summary("apply")
    if context.given.dry_run:
        return DRY_RUN, f"dry run, nothing was changed: {plan['message']}"
    if applied is None:
        return FAILED, "apply did not end: what it left is found by the next run"
    if context.summary("verify") is None:
        return (
            FAILED,
            "verify did not end: what apply did is in the numbers, its invariants were not checked",
        )
    if applied["failed"] or applied["copiesNotDeleted"]:
        first = next(iter(applied["failures"]), "kept copies that are over")
        return (
            FAILED,
            f"{applied['failed'] + applied['copiesNotDeleted']} objects could not be deleted, such as {first}; the next run tries them again",
        )
    if applied["notRestored"]:
        return (
            FAILED,
            f"{len(applied['notRestored'])} deleted blobs are referred to and could not be put back, such as {applied['notRestored'][0]}",
        )
    words = (
        [f"{applied['applied']} blobs deleted ({applied['bytesDeleted']} bytes)"]
        if applied["applied"]
        else []
    )
    words += [f"kept until {applied['keptUntil']}"] if applied["keptUntil"] else []
    words += [f"{number} skipped: {why}" for why, number in applied["skippedBy"].items()]
    words += (
        [f"{applied['candidates']} candidates recorded, to be deleted by a later run"]
        if applied["candidates"]
        else []
    )
    words += (
        [f"{applied['restored']} put back, as they are referred to"] if applied["restored"] else []
    )
    words += [f"{applied['left']} left for the next run"] if applied["left"] else []
    words += (
        [f"{applied['expiredCopies']} kept copies were over and are deleted"]
        if applied["expiredCopies"]
        else []
    )
    return (DONE, "; ".join(words)) if words else (NOTHING, f"nothing to do: {plan['message']}")
