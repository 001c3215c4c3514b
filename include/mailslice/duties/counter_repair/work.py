"""Correct counters beside each other on a few threads, and say what became of each mailbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from threading import Lock
from uuid import UUID

from mailslice.duties.counter_repair import decide
from mailslice.duties.counter_repair.parallel import map_concurrently
from mailslice.duties.counter_repair.planned import CounterPlan, Drift
from mailslice.duties.counter_repair.repairing import (
    DONE,
    FAILED,
    REMAINING,
    SKIPPED,
    UNKNOWN,
    MailboxCorrector,
    MailboxOutcome,
)
from mailslice.maintenance.progress import Progress
from mailslice.maintenance.run import Run

_AT_ONCE = 1_000
_THREADS = 8
NOT_REACHED = "the step ended before it"
_MOST_FAILURES = 20
"""So many mailboxes one after the other: the store is away, and the rest is left."""


class CounterWork:
    """Corrects the mailboxes of one plan."""

    def __init__(self, run: Run, plan: CounterPlan, progress: Progress) -> None:
        self._run, self._plan, self._progress = run, plan, progress
        self._repair = MailboxCorrector(run, plan)
        self._outcomes: dict[UUID, MailboxOutcome] = {}
        self._unknown = self._failures = 0
        self._counting = Lock()

    def correct_all(self, drifts: Sequence[Drift]) -> None:
        """Reports `unknown` and the outcome of each, whatever ends it."""
        remaining = iter(drifts)
        # What an earlier try reported is found out again.
        self._run.report(unknown=0, outcomes={})
        try:
            with ThreadPoolExecutor(_THREADS) as pool:
                while chunk := list(islice(remaining, _AT_ONCE)):
                    unprojected = self._plan.unprojected(self._run, [d.mailbox for d in chunk])
                    for _ in map_concurrently(pool, partial(self._correct, unprojected), chunk):
                        pass
        finally:
            not_reached = MailboxOutcome(REMAINING, NOT_REACHED)
            outcomes = {
                str(drift.mailbox): list(self._outcomes.get(drift.mailbox, not_reached))
                for drift in drifts
            }
            self._run.report(outcomes=outcomes)

    def _correct(self, unprojected: Mapping[UUID, Sequence[bytes]], drift: Drift) -> None:
        """One mailbox, unless it is too late for a new one. On any thread."""
        outcome = self._too_late() or self._repair.mailbox(
            drift, unprojected.get(drift.mailbox, ())
        )
        with self._counting:
            self._count(drift.mailbox, outcome)

    def _too_late(self) -> MailboxOutcome | None:
        if self._run.out_of_time():
            return MailboxOutcome(REMAINING, decide.TIME_OVER)
        if self._failures >= _MOST_FAILURES:
            return MailboxOutcome(REMAINING, f"{self._failures} mailboxes before it failed")
        return None

    def _count(self, mailbox: UUID, outcome: MailboxOutcome) -> None:
        self._outcomes[mailbox] = outcome
        if outcome.verdict == REMAINING:
            return
        failed = outcome.verdict in {FAILED, UNKNOWN}
        self._failures = self._failures + 1 if failed else 0
        if outcome.verdict == UNKNOWN:
            self._unknown += 1
            self._run.report(unknown=self._unknown)
        if failed:
            self._progress.fail(str(mailbox), outcome.why)
        elif outcome.verdict == SKIPPED:
            self._progress.skip(outcome.why)
        elif outcome.verdict == DONE:
            self._progress.done()
