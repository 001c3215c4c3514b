"""How much a duty usually does to a queue, by the ledger; a gate refuses a plan of far more."""

from __future__ import annotations

from statistics import median

from mailslice.checks.expectations import Expectation, Frame
from mailslice.maintenance.ledger import Ledger
from mailslice.maintenance.report import DONE
from mailslice.maintenance.run import Run

_RUNS, _LEAST_RUNS, _READ = 10, 3, 50
"""The median is of the last ten runs that changed something; fewer than three say nothing."""


def usual(context: Run) -> float | None:
    """The median of what the last runs of this duty on this queue changed; None: too few."""
    request = context.request
    reports = Ledger(context.stores, context.settings).list(request.duty, request.queue, _READ)
    applied = [
        int(report["applied"])
        for report in reports
        if report["status"] == DONE and report["run"] != request.run and report.get("applied")
    ]
    return median(applied[:_RUNS]) if len(applied) >= _LEAST_RUNS else None


def usual_frames(context: Run, planned: int, least: int, *, unusual: bool) -> list[Frame]:
    """What a gate expects of the planned items; `least` are never too many. None if unknown."""
    known = None if unusual else usual(context)
    if known is None:
        return []
    factor = context.settings.duty.usual_factor
    sentence = (
        f"The plan is at most {factor:g} times what the last runs did "
        "(MAILSLICE_DUTY_USUAL_FACTOR; --unusual and a reason let it pass)."
    )
    expect = [Expectation.between("planned", 0, max(least, factor * known), sentence)]
    return [Frame("usual", [{"planned": planned}], expect)]
