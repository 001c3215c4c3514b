"""The methods of a duty. `maintenance.runner` calls them and does everything else."""

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
    """What read-only and changing duties share. It holds no state of a run."""

    plan_type: type[PlanT]
    """The class of the duty's plan. Each duty sets it."""
    plan_max_age: ClassVar[timedelta] = OLDEST_PLAN
    items: ClassVar[str] = "items"
    """The plural noun for the items of the plan."""
    kinds: ClassVar[tuple[str, ...]] = ()
    """Report fields that divide the applied items: the values of `kind` in `Progress.done`."""
    bulky: ClassVar[frozenset[str]] = frozenset()
    """Fields that only their step's file has: no terminal, report or Airflow database."""
    lock_patience: ClassVar[timedelta] = PATIENCE
    unfinished: ClassVar[str] = "what it left is found by the next run"
    """What happens to the items of an apply that was killed, as a clause."""

    @abstractmethod
    def plan(self, run: Run) -> PlanT:
        """Read the stores and decide; change nothing. The run's folder is empty."""

    @abstractmethod
    def check(self, run: Run, plan: PlanT) -> Iterable[Frame]:
        """The frames that the gate judges before apply: plan rows, and facts read now (`gates`).

        The runner adds the plan's age. Return no frame only if nothing is planned.
        """

    @abstractmethod
    def verify(self, run: Run, plan: PlanT, result: Result) -> Iterable[Frame]:
        """The frames that the gate judges after apply, from the stores as they are now.

        Return no frame only if nothing was applied. LockHeld becomes TryAgain, not a refusal.
        """

    @abstractmethod
    def describe(self, steps: Summaries) -> str:
        """What was done, as a sentence. Empty when nothing was done: then `nothing` says why."""

    def locks(self, request: RunRequest) -> tuple[str, ...]:
        """The names of its locks in the order of acquisition; by default one per duty and queue."""
        queue = request.reported_queue
        return (request.duty if queue is None else f"{request.duty}/{queue}",)

    def retained(self, run: Run) -> Collection[str]:
        """Files of the run's folder that another run needs. A new plan does not remove them."""
        del run
        return ()

    def report_fields(self, steps: Summaries) -> dict[str, Any]:
        """Further report fields, by a pure function. A run that ended early lacks steps."""
        del steps
        return {}

    def conclude(self, run: Run, steps: Summaries) -> None:
        """Further work of the report step, such as a picture. `run.report` sets report fields."""

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
        """Why nothing was done. By default the plan's message."""
        return str(steps.plan["message"])

    def problem(self, steps: Summaries) -> str | None:
        """Why a run failed although apply ended. None when it did not fail."""
        result = steps.result
        if not result.failed:
            return None
        first = next((f"{item}: {why}" for item, why in result.failures.items()), "unknown")
        return f"{result.failed} of {result.planned} {self.items} failed, such as {first}"


class Duty(BaseDuty[PlanT]):
    """A duty that changes something."""

    def before_lock(self, run: Run, plan: PlanT) -> None:
        """Checks and waits of apply before it takes the locks, so that they block no other run."""

    @abstractmethod
    def apply(self, run: Run, plan: PlanT, progress: Progress) -> None:
        """Do what the plan lists and nothing else. It may be killed at any point, and is run again.

        The plan passed the gate and is within `plan_max_age`. The locks are held: call
        `run.require_lock()` before each change. Count each item's outcome in `progress`. Begin no
        item once `run.out_of_time()`: uncounted items remain. Not called for a plan without work.
        """


class ReportDuty(BaseDuty[PlanT]):
    """A duty that only reads: `plan` measures, `check` judges, `publish` publishes."""

    @abstractmethod
    def publish(self, run: Run, plan: PlanT) -> None:
        """Publish what passed the gate; may be repeated. Count by `run.report(applied=...)`."""

    def describe(self, steps: Summaries) -> str:
        """The plan's message."""
        return str(steps.plan["message"])


AnyDuty: TypeAlias = Duty[Any] | ReportDuty[Any]
