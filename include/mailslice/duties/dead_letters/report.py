"""Step 5: what was found and done, for the ledger and for people."""

from __future__ import annotations

from typing import Any

from mailslice.duties.dead_letters.export import folder_of
from mailslice.duties.dead_letters.params import Params
from mailslice.duty.artifacts import RunFolder
from mailslice.duty.context import StepContext
from mailslice.duty.report import DONE, DRY_RUN, FAILED, NOTHING

_DONE = ("redriven", "dropped", "exported")


def run(context: StepContext) -> dict[str, Any]:
    """The report's own fields."""
    status, message = _outcome(context)
    return {**partial(context.folder), "status": status, "message": message}


def partial(folder: RunFolder) -> dict[str, Any]:
    """The fields as far as the run came. `kept` are letters that are still in the queue, of those that were looked at."""
    plan = folder.read_json("plan.json") or {}
    applied = folder.read_json("applied.json") or folder.read_json("progress.json") or {}
    letters = int(plan.get("letters", 0))
    found: dict[str, Any] = {
        name: applied.get(name, 0) for name in ("applied", "skipped", "failed", "left", *_DONE)
    }
    return {
        **found,
        "planDigest": plan.get("planDigest"),
        "planned": int(plan.get("planned", 0)),
        "skippedBy": applied.get("skippedBy", {}),
        "bytes": int(plan.get("bytes", 0)),
        "letters": letters,
        "unseen": int(plan.get("unseen", 0)),
        "order": plan.get("order"),
        "causes": plan.get("causes", {}),
        "ages": plan.get("ages", {}),
        "actions": plan.get("actions", {}),
        "keptBy": plan.get("keptBy", {}),
        "kept": applied.get("kept", letters),
        "sample": plan.get("sample", []),
        "exports": folder.artifacts.uri(folder_of(folder.queue)) if found["exported"] else None,
    }


def _outcome(context: StepContext) -> tuple[str, str]:
    """The status, and what happened in words."""
    plan, applied = context.need("plan"), context.summary("apply")
    if context.params(Params).dry_run:
        return DRY_RUN, f"dry run, nothing was changed: {plan['message']}"
    if applied is None:
        return FAILED, "apply did not end: what it left is found by the next run"
    if context.summary("verify") is None:
        return (
            FAILED,
            "verify did not end: what apply did is in the numbers, the queue was not looked at again",
        )
    if not applied["applied"] and not applied["skipped"] and not applied["left"]:
        kept = f"; all {plan['letters']} are kept" if plan["letters"] else ""
        return NOTHING, plan["message"] + kept
    words = [f"{applied[name]} {name}" for name in (*_DONE, "kept") if applied[name]]
    words += (
        [f"{applied['skipped']} skipped: {', '.join(applied['skippedBy'])}"]
        if applied["skipped"]
        else []
    )
    words += (
        [f"{applied['left']} left to the next run: the time was over"] if applied["left"] else []
    )
    return DONE, ", ".join(words)
