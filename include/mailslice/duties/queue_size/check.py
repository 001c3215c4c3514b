"""Step 2: the gate over the measurement. Fails -> nothing is published: no figure is better than a wrong one."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from mailslice.duties.queue_size.measured import measured
from mailslice.duty.context import StepContext
from mailslice.duty.gates import judged
from mailslice.model.slices import slice_start
from mailslice.quality.gate import Expectation, Frame

OLDEST = timedelta(days=1)


def run(context: StepContext) -> dict[str, Any]:
    """Whether the measurement may be published. Raises GateFailed naming the expectation and the value, PlanRefused when plan.json was changed."""
    found = measured(context)
    frames = [totals(found, context.clock()), slices(found)]
    return {**judged(context, "check", frames), "planDigest": found["planDigest"]}


def totals(found: dict[str, Any], now: datetime) -> Frame:
    """One row: the queue as a whole."""
    measured_at = datetime.fromisoformat(found["measuredAt"])
    row = {
        "slices_read": found["reads"]["read"],
        "slices_read_twice": found["reads"]["twice"],
        "age_hours": (now - measured_at) / timedelta(hours=1),
    }
    expect = [
        Expectation.equal(
            "slices_read",
            found["reads"]["wanted"],
            "Every slice that was to be read was read: an unread one is not an empty one.",
        ),
        Expectation.equal("slices_read_twice", 0, "No slice was counted twice."),
        Expectation.between(
            "age_hours", -1, OLDEST / timedelta(hours=1), "The measurement is not older than a day."
        ),
    ]
    return Frame("totals", [row], expect)


def slices(found: dict[str, Any]) -> Frame:
    """One row a slice that has rows."""
    window = timedelta(seconds=found["window"])
    rows = [
        {"start": each["start"], "off_seconds": _off(datetime.fromisoformat(each["start"]), window)}
        for each in found["slices"]
    ]
    expect = [
        Expectation.equal(
            "off_seconds", 0, "Every slice starts at a multiple of the slice window."
        ),
    ]
    return Frame("slices", rows, expect, may_be_empty=True)


def _off(start: datetime, window: timedelta) -> float:
    return (start - slice_start(start, window)).total_seconds()
