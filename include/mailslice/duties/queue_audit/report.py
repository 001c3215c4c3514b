"""Step 5: the verdicts in the report."""

from __future__ import annotations

from typing import Any

from mailslice.duty.artifacts import RunFolder
from mailslice.duty.context import FILES, StepContext
from mailslice.duty.report import DONE, DRY_RUN, FAILED
from mailslice.model.verdicts import Verdict

_TOLD = (
    "planDigest",
    "planned",
    "verdicts",
    "olderThan",
    "census",
    "broker",
    "mails",
    "goneMeanwhile",
)


def run(context: StepContext) -> dict[str, Any]:
    """The report's own fields. Raises PlanRefused when nothing was judged."""
    message = context.need("plan")["message"]
    if context.given.dry_run:
        return {
            **partial(context.folder),
            "status": DRY_RUN,
            "message": f"dry run, nothing was published: {message}",
        }
    if context.summary("verify") is None:
        return {
            **partial(context.folder),
            "status": FAILED,
            "message": f"apply or verify did not end; {message}",
        }
    return {**partial(context.folder), "status": DONE, "message": message}


def partial(folder: RunFolder) -> dict[str, Any]:
    """What was judged so far; every verdict is counted, zeros too."""
    found, applied = folder.read_json(FILES["plan"]) or {}, folder.read_json(FILES["apply"]) or {}
    report: dict[str, Any] = {"verdicts": {verdict.value: 0 for verdict in Verdict}, "census": None}
    report |= {name: found[name] for name in _TOLD if name in found}
    report |= {name: applied[name] for name in ("applied", "metrics") if name in applied}
    return report
