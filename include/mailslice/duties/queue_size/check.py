"""Step 2: the gate over the measurement. Fails -> nothing is published: no figure is better than a wrong one."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from mailslice.duty.context import StepContext
from mailslice.model.slices import slice_start
from mailslice.quality.docs import Docs
from mailslice.quality.gate import Expectation, Frame, run_gate

OLDEST = timedelta(days=1)


def run(context: StepContext) -> dict[str, Any]:
    """Whether the measurement may be published. Raises GateFailed naming the expectation, the value and the row count."""
    found = context.need("plan")
    docs = Docs(context.folder.artifacts, context.request.duty, context.queue, context.request.run)
    result = run_gate("check", [totals(found, context.clock()), slices(found)], docs)
    return {
        "success": True,
        "planDigest": found["planDigest"],
        "expectations": result.lines(),
        "dataDocs": result.link,
    }


def totals(found: dict[str, Any], now: datetime) -> Frame:
    """One row: the queue as a whole."""
    measured = datetime.fromisoformat(found["measuredAt"])
    row = {
        "slices_read": found["reads"]["read"],
        "slices_read_twice": found["reads"]["twice"],
        "live": found["live"],
        "dead": found["dead"],
        "survivors": found["survivors"],
        "unproven": found["unproven"],
        "mails_by_age": sum(found["shape"]["total"]),
        "has_oldest": int(found["oldest"] is not None),
        "age_hours": (now - measured) / timedelta(hours=1),
    }
    sums = {
        name: sum(each[name] for each in found["slices"]) for name in ("live", "dead", "unproven")
    }
    expect = [
        Expectation.equal(
            "slices_read",
            found["reads"]["wanted"],
            "Every slice that was to be read was read: an unread one is not an empty one.",
        ),
        Expectation.equal("slices_read_twice", 0, "No slice was counted twice."),
        Expectation.equal(
            "live", sums["live"], "The queue has as many live mails as its slices together."
        ),
        Expectation.equal(
            "dead", sums["dead"], "The queue has as many dead rows as its slices together."
        ),
        Expectation.between("survivors", 0, found["live"], "Survivors are live mails."),
        Expectation.equal(
            "unproven",
            sums["unproven"],
            "The queue has as many unproven rows as its slices together.",
        ),
        Expectation.equal(
            "mails_by_age", found["live"], "Every live mail has exactly one age in the histogram."
        ),
        Expectation.equal(
            "has_oldest",
            int(found["live"] > 0),
            "There is an oldest mail when, and only when, a mail is live.",
        ),
        Expectation.between(
            "age_hours", -1, OLDEST / timedelta(hours=1), "The measurement is not older than a day."
        ),
    ]
    return Frame("totals", [row], expect)


def slices(found: dict[str, Any]) -> Frame:
    """One row a slice that has rows."""
    window = timedelta(seconds=found["window"])
    rows = [
        {**each, "off_seconds": _off(datetime.fromisoformat(each["start"]), window)}
        for each in found["slices"]
    ]
    expect = [
        Expectation.unique("start", "Every slice is told once."),
        Expectation.equal(
            "off_seconds", 0, "Every slice starts at a multiple of the slice window."
        ),
        Expectation.between("live", 0, 10**12, "No slice has fewer than no live mails."),
        Expectation.between("dead", 0, 10**12, "No slice has fewer than no dead rows."),
    ]
    return Frame("slices", rows, expect, may_be_empty=True)


def _off(start: datetime, window: timedelta) -> float:
    return (start - slice_start(start, window)).total_seconds()
