"""Step 5: MiB of each table and node before and after, for the ledger and as a picture."""

from __future__ import annotations

from typing import Any

from mailslice.duties.reclaim.plan_file import PROGRESS
from mailslice.duties.reclaim.plot import FILE, nodes_svg
from mailslice.duty.artifacts import RunFolder
from mailslice.duty.context import FILES, StepContext
from mailslice.duty.report import DONE, DRY_RUN, FAILED, NOTHING


def run(context: StepContext) -> dict[str, Any]:
    """The report's own fields; draws the picture."""
    found = partial(context.folder)
    place = context.folder.artifacts
    place.write(context.folder.file(FILE), nodes_svg(found["nodes"]))
    status, message = _outcome(context)
    return {
        **found,
        "status": status,
        "message": message,
        "plot": place.uri(context.folder.file(FILE)),
    }


def partial(folder: RunFolder) -> dict[str, Any]:
    """The fields as far as the run came. `nodes`: one entry a node of the cluster; `mib` as planned, `before` and `after` of those that were come to."""
    plan = folder.read_json(FILES["plan"]) or {}
    applied = folder.read_json(FILES["apply"]) or folder.read_json(PROGRESS) or {}
    verified = folder.read_json(FILES["verify"]) or {}
    done = {each["node"]: each for each in applied.get("nodes", ())}
    found: dict[str, Any] = {
        name: applied[name]
        for name in ("applied", "failed", "left", "skipped", "skippedBy")
        if name in applied
    }
    return {
        "planDigest": plan.get("planDigest"),
        "planned": int(plan.get("planned", 0)),
        "bytes": int(applied.get("freedMib", 0)) * 2**20,
        "freedMib": int(applied.get("freedMib", 0)),
        "left": 0,
        **found,
        "waitingMib": int(plan.get("waitingMib", 0)),
        "command": plan.get("command"),
        "tables": plan.get("tables", []),
        "before": plan.get("before"),
        "after": verified.get("after") or (plan.get("before") if not applied else None),
        "nodes": [
            {**each, **done.get(each["node"], {"status": None, "before": None, "after": None})}
            for each in plan.get("nodes", ())
        ],
    }


def _outcome(context: StepContext) -> tuple[str, str]:
    """The status, and what happened in words."""
    plan, applied = context.need("plan"), context.summary("apply")
    if context.given.dry_run:
        return DRY_RUN, f"dry run, nothing was changed: {plan['message']}"
    if applied is None:
        return (
            FAILED,
            "apply did not end: the node it was at may still be at work; the next run waits for it and goes on",
        )
    if applied["failed"]:
        first = next(
            f"{each['node']}: {each['problem']}" for each in applied["nodes"] if each["problem"]
        )
        return FAILED, f"{applied['failed']} of {applied['planned']} nodes failed, such as {first}"
    if context.summary("verify") is None:
        return FAILED, "verify did not end: what apply did is in the numbers, it was not checked"
    left = (
        f"; {applied['left']} nodes are left to the next run: {applied['stopped']}"
        if applied["left"]
        else ""
    )
    if not applied["applied"]:
        return NOTHING, plan["message"] if not left else f"no node was reclaimed{left}"
    return DONE, f"{applied['freedMib']} MiB came back on {applied['applied']} nodes{left}"
