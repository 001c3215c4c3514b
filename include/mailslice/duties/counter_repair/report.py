"""Step 5: what the run found and did, for the ledger and for people."""

from __future__ import annotations

from typing import Any

from mailslice.duties.counter_repair.plan_file import read_drifts, read_plan
from mailslice.duties.counter_repair.plot import FILE, drifts_svg
from mailslice.duty.artifacts import RunFolder
from mailslice.duty.context import StepContext
from mailslice.duty.report import DONE, DRY_RUN, FAILED, NOTHING


def run(context: StepContext) -> dict[str, Any]:
    """The report's own fields. Also draws the drifts. Raises PlanRefused when nothing was planned."""
    _draw(context)
    status, message = _outcome(context)
    return {
        **partial(context.folder),
        "status": status,
        "message": message,
        "plot": context.folder.artifacts.uri(context.folder.file(FILE)),
    }


def partial(folder: RunFolder) -> dict[str, Any]:
    """The fields as far as the run came."""
    plan = folder.read_json("plan.json") or {}
    applied = folder.read_json("applied.json") or folder.read_json("progress.json") or {}
    after = (folder.read_json("after.json") or {}).get("after") if applied else None
    found: dict[str, Any] = {
        "planDigest": plan.get("planDigest"),
        "processedMailboxes": int(plan.get("processedMailboxes", 0)),
        "failedMailboxes": int(applied.get("failed", 0)),
        "wrong": int(plan.get("wrong", 0)),
        "planned": int(plan.get("planned", 0)),
        "applied": int(applied.get("applied", 0)),
        "skipped": int(applied.get("skipped", 0)),
        "failed": int(applied.get("failed", 0)),
        "unknown": int(applied.get("unknown", 0)),
        "left": int(applied.get("left", 0)),
        "skippedBy": applied.get("skippedBy", {}),
        "messages": int(plan.get("messages", 0) or plan.get("projectedMessages", 0)),
        "inconsistencies": plan.get("inconsistencies", {}),
        "inconsistencySample": plan.get("sample", []),
        "projection": applied.get("projection"),
        "before": {"wrong": plan["wrong"], "largest": plan["largest"]} if plan else None,
        "after": after,
    }
    if applied.get("failures"):
        found["failures"] = applied["failures"]
    return found


def _outcome(context: StepContext) -> tuple[str, str]:
    """The status, and what happened in words."""
    plan, applied, verified = (
        context.need("plan"),
        context.summary("apply"),
        context.summary("verify"),
    )
    if context.given.dry_run:
        return DRY_RUN, f"dry run, nothing was changed: {plan['message']}"
    if applied is None:
        return (
            FAILED,
            "apply did not end: claims say what it began; the next run looks at every mailbox anew",
        )
    if verified is None:
        return (
            FAILED,
            "verify did not end: what apply did is in the numbers, nobody has read it back",
        )
    projection = applied["projection"]
    rows = _projection(projection) if projection else ""
    if applied["failed"] or (projection and projection["failed"]):
        why = next(iter(applied["failures"].items()), ("rows of messageIdTable", "not written"))
        return (
            FAILED,
            f"{applied['applied']} mailboxes corrected; {applied['failed']} failed or unknown ({applied['unknown']} unknown), such as {why}{rows}",
        )
    if not plan["wrong"] and not (projection and projection["planned"]):
        return NOTHING, f"nothing to do: {plan['message']}"
    words = [f"{applied['applied']} of {plan['wrong']} wrong mailboxes corrected"]
    words += (
        [
            f"{applied['skipped']} skipped: {'; '.join(f'{count} {why}' for why, count in applied['skippedBy'].items())}"
        ]
        if applied["skipped"]
        else []
    )
    words += [f"{applied['left']} left to the next run"] if applied["left"] else []
    return DONE, ", ".join(words) + rows


def _projection(done: dict[str, Any]) -> str:
    return f"; messageIdTable: {done['written']} rows written, {done['deleted']} deleted, {done['skipped']} skipped, {done['failed']} failed, {done['left']} left"  # noqa: E501


def _draw(context: StepContext) -> None:
    summary = context.need("plan")
    plan = read_plan(summary, context.request.run)
    before = {str(drift.mailbox): -drift.add.count for drift in read_drifts(plan, context.folder)}
    verified = context.summary("verify")
    after = {**before, **verified["drifts"]} if verified is not None else {}
    context.folder.artifacts.write(
        context.folder.file(FILE),
        drifts_svg(before.values(), after.values(), summary["decided"]["madeAt"]),
    )
