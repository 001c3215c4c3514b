"""The gates of check (the scan, every drift, every differing row) and of verify (corrections).

Verify reads every planned mailbox again and judges what the store says, not what apply reported
(ADR 4). It does not judge a mailbox whose messages changed since the plan.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from mailslice.checks.expectations import Expectation, Frame
from mailslice.duties.counter_repair import corrections, decide
from mailslice.duties.counter_repair.corrections import reread_mailbox
from mailslice.duties.counter_repair.params import Params
from mailslice.duties.counter_repair.planned import KINDS, ONLY_PROJECTED, CounterPlan, Drift
from mailslice.maintenance.gates import planned_rows
from mailslice.maintenance.run import Run
from mailslice.model.batches import batches
from mailslice.stores.cassandra.mailboxes import Counters


@dataclass(frozen=True, slots=True)
class Reread:
    """A mailbox now: its `stored` counters, its messages as `computed`.

    `moved`: whether its messages changed since the plan. `applied`: whether the update was done;
    None if it was sent and its outcome is unknown.
    """

    drift: Drift
    applied: bool | None
    stored: Counters
    computed: Counters
    moved: bool

    @property
    def remaining_drift(self) -> Counters:
        return Counters(
            self.stored.count - self.computed.count, self.stored.unseen - self.computed.unseen
        )

    @property
    def wrong(self) -> Counters:
        """`remaining_drift`; zero if the update is unknown and the counters are as planned."""
        as_before = self.applied is None and self.stored == self.drift.stored
        return Counters(0, 0) if as_before else self.remaining_drift


def read_after(run: Run, plan: CounterPlan, outcomes: Mapping[str, Sequence[str]]) -> list[Reread]:
    """Every planned mailbox, the largest drift first. `outcomes`: apply's report, by mailbox."""

    def read(drift: Drift, unprojected: Sequence[bytes]) -> Reread:
        verdict, *_ = outcomes.get(str(drift.mailbox), (corrections.REMAINING,))
        return _read(run, plan, drift, unprojected, verdict)

    after: list[Reread] = []
    with ThreadPoolExecutor(corrections.THREADS) as pool:
        for chunk in batches(plan.read_drifts(run), corrections.AT_ONCE):
            ids = plan.unprojected(run, [drift.mailbox for drift in chunk])
            after += pool.map(read, chunk, [ids.get(drift.mailbox, ()) for drift in chunk])
    return after


def _read(
    run: Run, plan: CounterPlan, drift: Drift, unprojected: Sequence[bytes], verdict: str
) -> Reread:
    """Reads the counters, and the messages unless the counters suffice.

    They suffice if they are correct, or as planned because apply did not reach the mailbox.
    """
    stored = run.stores.mailboxes.counters(drift.mailbox)
    applied = verdict == corrections.DONE or _was_applied(run, plan, drift.mailbox)
    if applied is not False and stored == drift.computed:
        return Reread(drift, applied, stored, stored, moved=False)
    if applied is False and verdict == corrections.REMAINING and stored == drift.stored:
        return Reread(drift, applied, stored, drift.computed, moved=False)
    trust = plan.trust_projection
    digest = reread_mailbox(run.stores, drift.mailbox, unprojected, trust_projection=trust)
    return Reread(
        drift, applied, stored, Counters(digest.count, digest.unseen), digest != drift.digest
    )


def _was_applied(run: Run, plan: CounterPlan, mailbox: UUID) -> bool | None:
    """Whether the store has a record that this plan's update was done.

    None if the update may have been sent and its outcome is not recorded.
    """
    for claim in run.stores.own.counter_claims.list(mailbox):
        if (
            claim.run == run.request.run
            and claim.outcome != decide.WITHDRAWN
            and decide.is_of_plan(claim, plan.made_at)
        ):
            return claim.outcome == decide.APPLIED or None
    return False


def as_report_entry(mailbox: UUID, stored: Counters, computed: Counters) -> dict[str, Any]:
    """A drift as reports show it: with the mailbox id, without a user's name."""
    return {
        "mailbox": str(mailbox),
        "stored": {"count": stored.count, "unseen": stored.unseen},
        "computed": {"count": computed.count, "unseen": computed.unseen},
        "drift": {
            "count": stored.count - computed.count,
            "unseen": stored.unseen - computed.unseen,
        },
    }


MANY = 1_000
"""From this many projected messages on, a truth of less than half as many counts as lost."""
_UNREAD = "Every token range of every table was read: an unread one is not an empty one."
_ALWAYS_ALLOWED = 20
"""A run may always correct or delete this many mailboxes or rows: `max_share` applies above it."""


def totals(run: Run, plan: CounterPlan) -> Frame:
    scan, share = plan.scan, _most_share(run)
    comparable = not plan.trust_projection and scan.projected >= MANY
    lost = "means that the truth was lost."
    half = f"imapUidTable holds at least half as many messages as messageIdTable: less {lost}"
    allowed = f"At most {share:g} of {{}} (max_share): more {lost}"
    corrected = allowed.format("all mailboxes are to be corrected")
    deleted = allowed.format("all rows of messageIdTable are to be deleted")
    truth = scan.messages / scan.projected if comparable else 1.0
    rows = plan.inconsistencies.get(ONLY_PROJECTED, 0) if plan.repair_projection else 0
    return Frame.facts(
        "totals",
        ranges_unread=(scan.ranges - scan.read, 0, 0, _UNREAD),
        ranges_read_twice=(scan.twice, 0, 0, "No token range was counted twice."),
        holes=(scan.holes, 0, 0, "The token ranges of each table tile the ring."),
        truth_share=(truth, 0.5, None, half),
        changed_share=(_share(plan.planned, scan.mailboxes), 0, share, corrected),
        deleted_share=(_share(rows, scan.projected), 0, share, deleted),
    )


def _share(count: int, of: int) -> float:
    return min(1.0, count / max(1, of)) if count > _ALWAYS_ALLOWED else 0.0


def _most_share(run: Run) -> float:
    """The share of all mailboxes that may be corrected; 1 if the params name mailboxes or users."""
    params = run.params(Params)
    if params.max_share is not None:
        return params.max_share
    named = params.mailboxes or params.users
    return 1.0 if named else run.settings.duty.max_counters_share


def drifts(run: Run, plan: CounterPlan) -> Frame:
    numbers = ("unseen", "seen", "drift")
    schema = pa.schema([("mailbox", pa.string()), *((name, pa.int64()) for name in numbers)])
    files = [plan.drifts.file] if plan.planned else []
    expect = [
        Expectation.rows(plan.planned, "The plan's files have as many rows as were planned."),
        Expectation.unique("mailbox", "Every mailbox is listed once."),
        Expectation.between("unseen", 0, None, "No mailbox has fewer than no unseen messages."),
        Expectation.between("seen", 0, None, "No mailbox has more unseen messages than messages."),
        Expectation.between("drift", 1, None, "Every mailbox that is listed has a drift."),
    ]
    rows = planned_rows(run, files, schema, _with_sums)
    return Frame("drifts", rows, expect, may_be_empty=not files)


def _with_sums(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The drifts with the number of seen messages, and by how much their counters are wrong."""
    named = {name: batch.column(name) for name in ("mailbox", "count", "unseen")}
    wrong = [
        pc.abs(pc.subtract(batch.column(name), batch.column(f"stored_{name}")))
        for name in ("count", "unseen")
    ]
    more = {"seen": pc.subtract(named["count"], named["unseen"]), "drift": pc.add(*wrong)}
    return pa.RecordBatch.from_pydict({**named, **more})


def differences(run: Run, plan: CounterPlan) -> Frame:
    """The rows in which the two tables differ, including rows that apply may rewrite."""
    files = [file.file for file in plan.differences]
    expect = [Expectation.one_of("kind", KINDS, "Every row that differs does so in a known way.")]
    rows = planned_rows(run, files, pa.schema([("kind", pa.string())]))
    return Frame("differences", rows, expect, may_be_empty=not files)


def corrected(after: Iterable[Reread]) -> Frame:
    """One row a mailbox that this run sent an update to and whose messages did not change since."""
    rows = [
        {
            "mailbox": str(now.drift.mailbox),
            "left_count": now.wrong.count,
            "left_unseen": now.wrong.unseen,
        }
        for now in after
        if now.applied is not False and not now.moved
    ]
    sentence = "Every corrected mailbox that did not move since has the {} of its messages."
    expect = [
        Expectation.equal(f"left_{name}", 0, sentence.format(name)) for name in ("count", "unseen")
    ]
    return Frame("corrected", rows, expect, may_be_empty=True)
