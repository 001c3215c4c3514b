"""The contract of a duty; `maintenance.runner` does the rest."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import Any, ClassVar, Generic, TypeAlias

from mailslice.checks.expectations import Frame
from mailslice.maintenance.lock import PATIENCE
from mailslice.maintenance.plan import OLDEST_PLAN, PlanT
from mailslice.maintenance.progress import Progress
from mailslice.maintenance.report import DONE, DRY_RUN, FAILED, NOTHING
from mailslice.maintenance.result import Result, Summaries
from mailslice.maintenance.run import Run
from mailslice.maintenance.run_request import RunRequest


class BaseDuty(ABC, Generic[PlanT]):
    """Common to read-only and changing duties. Holds no state of a run."""

    plan_type: type[PlanT]
    """The class of its plan, set by each duty."""
    plan_max_age: ClassVar[timedelta] = OLDEST_PLAN
    items: ClassVar[str] = "items"
    """The noun for the items of its plan, in the plural."""
    kinds: ClassVar[tuple[str, ...]] = ()
    """Report fields that divide the applied items: what `progress.done` is told."""
    bulky: ClassVar[frozenset[str]] = frozenset()
    """Fields that stay in their step's file: no terminal, report or Airflow database has them."""
    lock_patience: ClassVar[timedelta] = PATIENCE
    unfinished: ClassVar[str] = "what it left is found by the next run"
    """What becomes of the items of an apply that was killed."""

    @abstractmethod
    def plan(self, run: Run) -> PlanT:
        """Read the stores and decide; change nothing. The run's folder is empty."""

    @abstractmethod
    def check(self, run: Run, plan: PlanT) -> Iterable[Frame]:
        """What the gate judges before apply: the plan's rows, and facts read now (`gates`).

        The runner adds the plan's age. No frame: there is nothing to judge, as nothing is planned.
        """

    @abstractmethod
    def verify(self, run: Run, plan: PlanT, result: Result) -> Iterable[Frame]:
        """What the gate judges after apply, from the stores as they are now. No frame: no apply.

        LockHeld becomes TryAgain: what was planned is done, nothing is refused.
        """

    @abstractmethod
    def describe(self, steps: Summaries) -> str:
        """What was done, in words; empty: nothing was, and `nothing` says why."""

    def locks(self, request: RunRequest) -> tuple[str, ...]:
        """The names of its locks, in the order in which they are taken: one a duty and queue."""
        queue = request.reported_queue
        return (request.duty if queue is None else f"{request.duty}/{queue}",)

    def retained(self, run: Run) -> Collection[str]:
        """Files of the run's folder that another run needs: a new plan does not remove them."""
        del run
        return ()

    def report_fields(self, steps: Summaries) -> dict[str, Any]:
        """Report fields beside the steps' own. Pure. A run that ended early lacks steps."""
        del steps
        return {}

    def conclude(self, run: Run, steps: Summaries) -> None:
        """What the report step does besides, such as a picture; `run.report` sets its fields."""

    def outcome(self, run: Run, steps: Summaries) -> tuple[str, str]:
        """Status and message of the report."""
        message = steps.plan.get("message", "")
        if run.duty_params.dry_run:
            return DRY_RUN, f"dry run, nothing was changed: {message}"
        if steps.applied is None:
            return FAILED, f"apply did not end: {self.unfinished}"
        if problem := self.problem(steps):
            return FAILED, problem
        if steps.verified is None:
            return (
                FAILED,
                "verify did not end: what apply did is in the numbers, it was not checked",
            )
        words = self.describe(steps)
        return (DONE, words) if words else (NOTHING, self.nothing(steps))

    def nothing(self, steps: Summaries) -> str:
        """Why nothing was done; by default what the plan came to."""
        return str(steps.plan["message"])

    def problem(self, steps: Summaries) -> str | None:
        """Why a run whose steps have all ended has failed; None: it has not."""
        result = steps.result
        if not result.failed:
            return None
        first = next((f"{item}: {why}" for item, why in result.failures.items()), "unknown")
        return f"{result.failed} of {result.planned} {self.items} failed, such as {first}"


class Duty(BaseDuty[PlanT]):
    """A duty that changes something."""

    def before_lock(self, run: Run, plan: PlanT) -> None:
        """What apply checks or waits for before it takes the locks: other runs go on meanwhile."""

    @abstractmethod
    def apply(self, run: Run, plan: PlanT, progress: Progress) -> None:
        """Do what the plan lists and nothing else. May be killed anywhere, and run again.

        The plan passed the gate and is young; the locks are held: `run.require_lock()` before each
        change. Tell `progress` what became of each item. Once `run.out_of_time()`, begin nothing
        new: what is not counted remains. Not called for a plan without work.
        """


class ReportDuty(BaseDuty[PlanT]):
    """A duty that only reads: `plan` measures, `check` judges, `publish` publishes."""

    @abstractmethod
    def publish(self, run: Run, plan: PlanT) -> None:
        """Publish what passed the gate, any number of times; `run.report(applied=...)` counts."""

    def describe(self, steps: Summaries) -> str:
        """What the plan came to."""
        return str(steps.plan["message"])


AnyDuty: TypeAlias = Duty[Any] | ReportDuty[Any]
