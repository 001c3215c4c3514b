"""Step 5: the measurement in the report."""

from __future__ import annotations

from typing import Any

from mailslice.duty.artifacts import RunFolder
from mailslice.duty.context import FILES, StepContext
from mailslice.duty.report import DONE, DRY_RUN

_SLICES = 500
_MEASURED = (
    *(
        "measuredAt",
        "size",
        "live",
        "dead",
        "survivors",
        "unproven",
        "oldest",
        "oldestAgeSeconds",
        "browseStart",
        "contentStart",
        "fullest",
        "shape",
    ),
    *(
        "deadLetters",
        "ready",
        "unacknowledged",
        "consumers",
        "parked",
        "lastSeenEmpty",
        "window",
        "buckets",
        "nodes",
        "advice",
        "planDigest",
    ),
)


def run(context: StepContext) -> dict[str, Any]:
    """The report's own fields. Raises PlanRefused when nothing was measured."""
    found, applied = context.need("plan"), context.summary("apply")
    status = DRY_RUN if context.given.dry_run else DONE
    size = f"{found['live']} live, {found['dead']} dead rows"
    return {
        **partial(context.folder),
        "status": status,
        "message": "; ".join([size, *found["advice"]]),
        "published": applied is not None,
    }


def partial(folder: RunFolder) -> dict[str, Any]:
    """What was measured and published so far. The newest slices in full, older ones summed up: a report is kept for months, every 15 minutes one."""
    found, applied = folder.read_json(FILES["plan"]) or {}, folder.read_json(FILES["apply"]) or {}
    report = {name: found[name] for name in _MEASURED if name in found}
    if "slices" in found:
        older, report["slices"] = found["slices"][:-_SLICES], found["slices"][-_SLICES:]
        report["olderSlices"] = {
            "count": len(older),
            **{
                name: sum(each[name] for each in older)
                for name in ("live", "dead", "survivors", "unproven")
            },
        }
    report.update({name: applied[name] for name in ("metrics", "plot") if name in applied})
    return report
