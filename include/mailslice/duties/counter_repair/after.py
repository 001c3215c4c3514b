"""Every planned mailbox after apply. What the store says counts, not what apply says (ADR 4).

Users go on working: a mailbox that moved since the plan is not judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from mailslice.duties.counter_repair import decide
from mailslice.duties.counter_repair.parallel import map_concurrently
from mailslice.duties.counter_repair.planned import CounterPlan, Drift
from mailslice.duties.counter_repair.repairing import DONE, REMAINING
from mailslice.duties.counter_repair.second_read import reread_mailbox
from mailslice.maintenance.run import Run
from mailslice.stores.cassandra.mailboxes import Counters

_THREADS = 8


@dataclass(frozen=True, slots=True)
class After:
    """A mailbox now: what is stored, what is there, and whether its messages moved since the plan.

    `applied`: whether the update was done; None when it was sent and nobody knows.
    """

    drift: Drift
    applied: bool | None
    stored: Counters
    computed: Counters
    moved: bool

    @property
    def remaining_drift(self) -> Counters:
        """The drift that is left: stored less computed."""
        return Counters(
            self.stored.count - self.computed.count, self.stored.unseen - self.computed.unseen
        )

    @property
    def wrong(self) -> Counters:
        """`remaining_drift`; zero where an update of unknown outcome left the planned counters."""
        as_before = self.applied is None and self.stored == self.drift.stored
        return Counters(0, 0) if as_before else self.remaining_drift


def read_after(run: Run, plan: CounterPlan, outcomes: Mapping[str, Sequence[str]]) -> list[After]:
    """Every planned mailbox, the largest drift first. `outcomes`: what apply says, by mailbox."""
    drifts = plan.read_drifts(run)
    unprojected = plan.unprojected(run, [drift.mailbox for drift in drifts])

    def read(drift: Drift) -> After:
        verdict, *_ = outcomes.get(str(drift.mailbox), (REMAINING,))
        return _read(run, plan, drift, unprojected.get(drift.mailbox, ()), verdict)

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(map_concurrently(pool, read, drifts))


def _read(
    run: Run, plan: CounterPlan, drift: Drift, unprojected: Sequence[bytes], verdict: str
) -> After:
    """The messages are not read where the counters suffice.

    They do when what was to be stored is, and when the time limit left a mailbox as it was.
    """
    stored = run.stores.mailboxes.counters(drift.mailbox)
    applied = verdict == DONE or _was_applied(run, drift.mailbox)
    if applied is not False and stored == drift.computed:
        return After(drift, applied, stored, stored, moved=False)
    if applied is False and verdict == REMAINING and stored == drift.stored:
        return After(drift, applied, stored, drift.computed, moved=False)
    trust = plan.trust_projection
    digest = reread_mailbox(run.stores, drift.mailbox, unprojected, trust_projection=trust)
    return After(
        drift, applied, stored, Counters(digest.count, digest.unseen), digest != drift.digest
    )


def _was_applied(run: Run, mailbox: UUID) -> bool | None:
    """What the store says of the run's update.

    None when it was sent, or may have been, and nobody wrote how it ended.
    """
    for claim in run.stores.own.counter_claims.list(mailbox):
        if claim.run == run.request.run and claim.outcome != decide.WITHDRAWN:
            return claim.outcome == decide.APPLIED or None
    return False


def as_report_entry(mailbox: UUID, stored: Counters, computed: Counters) -> dict[str, Any]:
    """A drift as reports show it: ids of mailboxes only, nobody's name."""
    return {
        "mailbox": str(mailbox),
        "stored": {"count": stored.count, "unseen": stored.unseen},
        "computed": {"count": computed.count, "unseen": computed.unseen},
        "drift": {
            "count": stored.count - computed.count,
            "unseen": stored.unseen - computed.unseen,
        },
    }
