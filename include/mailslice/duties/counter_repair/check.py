"""Step 2: the gate over the plan. Fails -> the run stops here, and nothing was changed."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from mailslice.duties.counter_repair.differences import KINDS
from mailslice.duties.counter_repair.params import Params
from mailslice.duties.counter_repair.plan_file import Plan, read_plan, require_files
from mailslice.duties.counter_repair.rows_file import PARTS
from mailslice.duty.context import StepContext
from mailslice.duty.gates import judged, planned_rows
from mailslice.duty.plans import OLDEST_PLAN
from mailslice.duty.usual import usual_frames
from mailslice.quality.gate import Expectation, Frame

if TYPE_CHECKING:
    import pyarrow as pa

_MANY = 1_000
"""From so many messages on, a truth with less than half of them counts as one that was lost."""
_FEW = 20
"""So many mailboxes may be corrected whatever share of all they are."""


def run(context: StepContext) -> dict[str, Any]:
    """Whether the plan may be applied.

    Raises GateFailed naming the expectation, the value and the row count.
    """
    plan = read_plan(context.need("plan"), context.request.run)
    require_files(plan, context.folder)
    frames = [totals(plan, _share(context), context.clock()), drifts(context, plan)]
    unusual = context.params(Params).unusual
    frames += usual_frames(context, plan.drifts.rows, _MANY, unusual=unusual)
    if plan.repair_projection:
        frames.append(differences(context, plan))
    return {
        **judged(context, "check", frames),
        "planDigest": plan.digest,
        "planned": plan.drifts.rows,
    }


def _share(context: StepContext) -> float:
    """The share of all mailboxes that may be corrected; all of those that a person named."""
    params = context.params(Params)
    if params.max_share is not None:
        return params.max_share
    named = params.mailboxes or params.users
    return 1.0 if named else context.settings.duty.max_counters_share


def totals(plan: Plan, share: float, now: datetime) -> Frame:
    """One row: the plan as a whole."""
    scan, wrong = plan.scan, plan.drifts.rows
    row = {
        "ranges_unread": scan.ranges - scan.read,
        "ranges_read_twice": scan.twice,
        "holes": scan.holes,
        "truth_share": 1.0
        if plan.trust_projection or scan.projected < _MANY
        else scan.messages / scan.projected,
        "changed_share": wrong / max(1, scan.mailboxes) if wrong > _FEW else 0.0,
        "age_hours": (now - plan.made_at) / timedelta(hours=1),
    }
    expect = [
        Expectation.equal(
            "ranges_unread",
            0,
            "Every token range of every table was read: an unread one is not an empty one.",
        ),
        Expectation.equal("ranges_read_twice", 0, "No token range was counted twice."),
        Expectation.equal("holes", 0, "The token ranges of each table tile the ring."),
        Expectation.between(
            "truth_share",
            0.5,
            None,
            "imapUidTable holds at least half as many messages as messageIdTable: "
            "less is a truth that was lost.",
        ),
        Expectation.between(
            "changed_share",
            0,
            share,
            f"At most {share:g} of all mailboxes are to be corrected (max_share): "
            "more is a truth that was lost.",
        ),
        Expectation.between(
            "age_hours", -1, OLDEST_PLAN / timedelta(hours=1), "The plan is not older than a day."
        ),
    ]
    return Frame("totals", [row], expect)


def drifts(context: StepContext, plan: Plan) -> Frame:
    """The mailboxes to correct, one by one."""
    import pyarrow as pa

    numbers = ("unseen", "seen", "drift")
    schema = pa.schema([("mailbox", pa.string()), *((name, pa.int64()) for name in numbers)])
    rows = planned_rows(context, [f"{PARTS}/{plan.drifts.name}"], schema, sums)
    expect = [
        Expectation.unique("mailbox", "Every mailbox is listed once."),
        Expectation.between("unseen", 0, None, "No mailbox has fewer than no unseen messages."),
        Expectation.between("seen", 0, None, "No mailbox has more unseen messages than messages."),
        Expectation.between("drift", 1, None, "Every mailbox that is listed has a drift."),
    ]
    return Frame("drifts", rows, expect, may_be_empty=not plan.drifts.rows)


def sums(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of drifts with the number of seen messages, and by how much their counters are wrong."""
    import pyarrow as pa
    import pyarrow.compute as pc

    named = {name: batch.column(name) for name in ("mailbox", "count", "unseen")}
    wrong = [
        pc.abs(pc.subtract(batch.column(name), batch.column(f"stored_{name}")))
        for name in ("count", "unseen")
    ]
    more = {"seen": pc.subtract(named["count"], named["unseen"]), "drift": pc.add(*wrong)}
    return pa.RecordBatch.from_pydict({**named, **more})


def differences(context: StepContext, plan: Plan) -> Frame:
    """The rows in which the two tables differ, those that may be rewritten among them."""
    import pyarrow as pa

    schema = pa.schema([("kind", pa.string())])
    names = [f"{PARTS}/{file.name}" for file in plan.differences]
    expect = [Expectation.one_of("kind", KINDS, "Every row that differs does so in a known way.")]
    rows = planned_rows(context, names, schema)
    return Frame("differences", rows, expect, may_be_empty=not names)
