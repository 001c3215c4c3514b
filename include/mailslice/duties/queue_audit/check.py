"""Step 2: the gate over the verdicts' own rows. Fails -> they are not published, and nobody acts by them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from mailslice.duty.audits import PARTS, Audit, read_audit
from mailslice.duty.context import StepContext
from mailslice.duty.gates import judged, planned_rows
from mailslice.duty.plans import OLDEST_PLAN, reading
from mailslice.model.verdicts import Verdict
from mailslice.quality.gate import Expectation, Frame


def run(context: StepContext) -> dict[str, Any]:
    """Whether the verdicts hold together. Raises GateFailed naming the expectation and the value."""
    found = context.need("plan")
    audit = read_audit(found, context.folder)
    age = (context.clock() - audit.made_at) / timedelta(hours=1)
    with reading(audit.run, audit.queue):
        reads, unproved = found["decided"]["reads"], found["decided"]["unproved"]
        frames = [totals(reads, age), mails(context, audit, unproved=unproved)]
    return {
        **judged(context, "check", frames),
        "planDigest": audit.digest,
        "planned": audit.rows.count,
    }


def totals(reads: dict[str, int], age_hours: float) -> Frame:
    """One row: the audit as a whole."""
    row = {
        "places_read": reads["read"],
        "places_read_twice": reads["twice"],
        "judged": reads["judged"],
        "age_hours": age_hours,
    }
    expect = [
        Expectation.equal(
            "places_read",
            reads["wanted"],
            "Every partition that was to be read was read: an unread one is not an empty one.",
        ),
        Expectation.equal("places_read_twice", 0, "No partition was counted twice."),
        Expectation.equal(
            "judged",
            reads["candidates"],
            "Every old live mail of the first read was judged, or was not live any more at the second.",
        ),
        Expectation.between(
            "age_hours", -1, OLDEST_PLAN / timedelta(hours=1), "The audit is not older than a day."
        ),
    ]
    return Frame("totals", [row], expect)


def mails(context: StepContext, audit: Audit, *, unproved: bool) -> Frame:
    """One row a mail, as the audit's files have it."""
    import pyarrow as pa

    schema = pa.schema(
        [
            ("table", pa.string()),
            ("slice_ms", pa.int64()),
            ("bucket", pa.int64()),
            ("enqueue_id", pa.string()),
            ("verdict", pa.string()),
        ]
    )
    expect = [
        Expectation.rows(audit.rows.count, "The files have as many mails as were judged."),
        Expectation.unique(
            ["table", "slice_ms", "bucket", "enqueue_id"], "Every mail has exactly one verdict."
        ),
        Expectation.one_of(
            "verdict", possible(audit, unproved=unproved), _sentence(audit, unproved)
        ),
    ]
    files = [f"{PARTS}/{file}" for file in audit.files]
    rows = planned_rows(context, files, schema)
    return Frame("mails", rows, expect, may_be_empty=audit.rows.count == 0)


def possible(audit: Audit, *, unproved: bool) -> list[str]:
    """The verdicts that this audit can prove."""
    proved = audit.census and not unproved
    lost = {Verdict.LOST_OR_GHOST if audit.shared else Verdict.LOST} if proved else set()
    return [
        verdict.value
        for verdict in Verdict
        if verdict in lost or verdict not in {Verdict.LOST, Verdict.LOST_OR_GHOST}
    ]


def _sentence(audit: Audit, unproved: bool) -> str:
    if not audit.census:
        return "Without a census no mail is called lost."
    if unproved:
        return "No mail is called lost while a consumer holds messages that nobody explains."
    if audit.shared:
        return "On a queue that James shares no mail is called lost without 'or ghost'."
    return "On a queue that is mailslice's alone nothing is 'lost or ghost'."
