"""Step 2: the gate over the verdicts. Fails -> they are not published, and nobody acts by them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from mailslice.duty.audits import read_audit
from mailslice.duty.context import StepContext
from mailslice.duty.plans import OLDEST_PLAN, reading
from mailslice.model.verdicts import Verdict
from mailslice.quality.docs import Docs
from mailslice.quality.gate import Expectation, Frame, run_gate


def run(context: StepContext) -> dict[str, Any]:
    """Whether the verdicts hold together. Raises GateFailed naming the expectation, the value and the row count."""
    found = context.need("plan")
    audit = read_audit(found, context.folder)
    age = (context.clock() - audit.made_at) / timedelta(hours=1)
    docs = Docs(context.folder.artifacts, context.request.duty, context.queue, context.request.run)
    with reading(audit.run, audit.queue):
        frame = totals(found, age)
    result = run_gate("check", [frame], docs)
    return {
        "success": True,
        "planDigest": audit.digest,
        "planned": audit.rows.count,
        "expectations": result.lines(),
        "dataDocs": result.link,
    }


def totals(found: dict[str, Any], age_hours: float) -> Frame:
    """One row: the audit as a whole."""
    verdicts, reads, decided = found["verdicts"], found["reads"], found["decided"]
    nowhere = {
        verdict.value: verdicts[verdict.value] for verdict in (Verdict.LOST, Verdict.LOST_OR_GHOST)
    }
    row = {
        "places_read": reads["read"],
        "places_read_twice": reads["twice"],
        "mails": found["mails"],
        "candidates_told": found["mails"] + found["goneMeanwhile"],
        "lost_without_census": 0 if decided["census"] else sum(nowhere.values()),
        "lost_unproved": sum(nowhere.values()) if (found["census"] or {}).get("unproved") else 0,
        "lost_on_shared": nowhere[Verdict.LOST] if decided["shared"] else 0,
        "doubtful_on_own": 0 if decided["shared"] else nowhere[Verdict.LOST_OR_GHOST],
        "unknown_verdicts": len(set(verdicts) - {verdict.value for verdict in Verdict}),
        "age_hours": age_hours,
    }
    expect = [
        Expectation.equal(
            "places_read",
            reads["wanted"],
            "Every partition that was to be read was read: an unread one is not an empty one.",
        ),
        Expectation.equal("places_read_twice", 0, "No partition was counted twice."),
        Expectation.equal("mails", sum(verdicts.values()), "Every mail has exactly one verdict."),
        Expectation.equal(
            "candidates_told",
            reads["candidates"],
            "Every old live mail of the first read was judged, or was not live any more at the second.",
        ),
        Expectation.equal("lost_without_census", 0, "Without a census no mail is called lost."),
        Expectation.equal(
            "lost_unproved",
            0,
            "No mail is called lost while a consumer holds messages that nobody explains.",
        ),
        Expectation.equal(
            "lost_on_shared",
            0,
            "On a queue that James shares no mail is called lost without 'or ghost'.",
        ),
        Expectation.equal(
            "doubtful_on_own", 0, "On a queue that is mailslice's alone nothing is 'lost or ghost'."
        ),
        Expectation.equal("unknown_verdicts", 0, "Every verdict is one of those that there are."),
        Expectation.between(
            "age_hours", -1, OLDEST_PLAN / timedelta(hours=1), "The audit is not older than a day."
        ),
    ]
    return Frame("totals", [row], expect)
