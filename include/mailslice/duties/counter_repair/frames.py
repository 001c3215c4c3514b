"""What the gates judge: the scan, every drift, every row that differs; what apply corrected."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mailslice.checks.expectations import Expectation, Frame
from mailslice.duties.counter_repair.after import After
from mailslice.duties.counter_repair.params import Params
from mailslice.duties.counter_repair.planned import KINDS, CounterPlan
from mailslice.maintenance.gates import planned_rows
from mailslice.maintenance.run import Run

if TYPE_CHECKING:
    import pyarrow as pa

MANY = 1_000
"""From so many messages on, a truth with less than half of them counts as one that was lost."""
_ALWAYS_ALLOWED = 20
"""So many mailboxes may be corrected whatever share of all they are."""


def totals(run: Run, plan: CounterPlan) -> Frame:
    """One row: the plan as a whole."""
    scan, share = plan.scan, _most_share(run)
    comparable = not plan.trust_projection and scan.projected >= MANY
    unread = "Every token range of every table was read: an unread one is not an empty one."
    half = (
        "imapUidTable holds at least half as many messages as messageIdTable: less is a truth that "
        "was lost."
    )
    most = (
        f"At most {share:g} of all mailboxes are to be corrected (max_share): more is a truth that "
        "was lost."
    )
    return Frame.facts(
        "totals",
        (scan.ranges - scan.read, Expectation.equal("ranges_unread", 0, unread)),
        (
            scan.twice,
            Expectation.equal("ranges_read_twice", 0, "No token range was counted twice."),
        ),
        (
            scan.holes,
            Expectation.equal("holes", 0, "The token ranges of each table tile the ring."),
        ),
        (
            scan.messages / scan.projected if comparable else 1.0,
            Expectation.between("truth_share", 0.5, None, half),
        ),
        (
            plan.planned / max(1, scan.mailboxes) if plan.planned > _ALWAYS_ALLOWED else 0.0,
            Expectation.between("changed_share", 0, share, most),
        ),
    )


def _most_share(run: Run) -> float:
    """The share of all mailboxes that may be corrected; all of those that a person named."""
    params = run.params(Params)
    if params.max_share is not None:
        return params.max_share
    named = params.mailboxes or params.users
    return 1.0 if named else run.settings.duty.max_counters_share


def drifts(run: Run, plan: CounterPlan) -> Frame:
    """The mailboxes to correct, one by one."""
    import pyarrow as pa

    numbers = ("unseen", "seen", "drift")
    schema = pa.schema([("mailbox", pa.string()), *((name, pa.int64()) for name in numbers)])
    files = [plan.drifts.file] if plan.planned else []
    expect = [
        Expectation.unique("mailbox", "Every mailbox is listed once."),
        Expectation.between("unseen", 0, None, "No mailbox has fewer than no unseen messages."),
        Expectation.between("seen", 0, None, "No mailbox has more unseen messages than messages."),
        Expectation.between("drift", 1, None, "Every mailbox that is listed has a drift."),
    ]
    rows = planned_rows(run, files, schema, _with_sums)
    return Frame("drifts", rows, expect, may_be_empty=not files)


def _with_sums(batch: pa.RecordBatch) -> pa.RecordBatch:
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


def differences(run: Run, plan: CounterPlan) -> Frame:
    """The rows in which the two tables differ, those that may be rewritten among them."""
    import pyarrow as pa

    files = [file.file for file in plan.differences]
    expect = [Expectation.one_of("kind", KINDS, "Every row that differs does so in a known way.")]
    rows = planned_rows(run, files, pa.schema([("kind", pa.string())]))
    return Frame("differences", rows, expect, may_be_empty=not files)


def corrected(after: Iterable[After]) -> Frame:
    """One row a mailbox that this run has sent an update to, and that did not move since."""
    rows = [
        {
            "mailbox": str(one.drift.mailbox),
            "left_count": one.wrong.count,
            "left_unseen": one.wrong.unseen,
        }
        for one in after
        if one.applied is not False and not one.moved
    ]
    sentence = "Every corrected mailbox that did not move since has the {} of its messages."
    expect = [
        Expectation.equal(f"left_{name}", 0, sentence.format(name)) for name in ("count", "unseen")
    ]
    return Frame("corrected", rows, expect, may_be_empty=True)
