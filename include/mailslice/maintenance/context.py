"""One step of one run: request, params, settings, stores, folder, clock and engine."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from mailslice.maintenance.artifacts import RunFolder
from mailslice.maintenance.params import DutyParams
from mailslice.maintenance.rate_limit import Throttle
from mailslice.maintenance.run_request import RunRequest
from mailslice.model.clock import Clock
from mailslice.model.errors import PlanRefused
from mailslice.model.mail import QueueName
from mailslice.model.settings import Settings

if TYPE_CHECKING:
    from mailslice.checks.gate import Evaluator
    from mailslice.engine.frames import Session
    from mailslice.maintenance.engine import Engine
    from mailslice.stores import Stores

FILES: Mapping[str, str] = {
    "plan": "plan.json",
    "check": "check.json",
    "apply": "applied.json",
    "verify": "verify.json",
    "report": "report.json",
}
"""The file in the run's folder that holds each step's summary."""

P = TypeVar("P", bound=DutyParams)
StoreName = Literal["cassandra", "s3", "rabbitmq"]


@dataclass(frozen=True)
class StepContext:
    """One step of one run. Built by `maintenance.runner`; `need` gives what earlier steps wrote."""

    request: RunRequest
    given: DutyParams
    settings: Settings
    stores: Stores
    folder: RunFolder
    clock: Clock
    engine: Engine | None = None
    """Where its frames are computed; None: in Spark."""
    evaluator: Evaluator | None = None
    """How its gates are evaluated; None: by Great Expectations."""
    began: float = field(default_factory=time.monotonic)
    """When this step began, by the monotonic clock."""

    @property
    def queue(self) -> QueueName:
        """The queue that this run is about."""
        return self.request.queue

    def params(self, kind: type[P]) -> P:
        """The run's params as the duty's own type."""
        if not isinstance(self.given, kind):
            raise TypeError(
                f"params of {self.request.duty} are {type(self.given).__name__}, not "
                f"{kind.__name__}"
            )
        return self.given

    def throttle(self, store: StoreName) -> Throttle:
        """MAILSLICE_DUTY_RATE_* of the store times the param `intensity`."""
        rate: int = getattr(self.settings.duty, f"rate_{store}")
        return Throttle(rate or None, self.given.intensity)

    def out_of_time(self) -> bool:
        """Whether the param `time_limit` is over: apply then begins no new item."""
        limit = self.given.time_limit
        return limit is not None and time.monotonic() - self.began >= limit.total_seconds()

    def spark(self) -> Session:
        """The session that computes frames: Spark, or the process for small work."""
        if self.engine is not None:
            return self.engine.session()
        from mailslice.engine.spark_session import spark_session

        return spark_session(self.settings, f"mailslice {self.request.duty} {self.request.queue}")

    def need(self, step: str) -> dict[str, Any]:
        """The summary of an earlier step. Raises PlanRefused when it did not run."""
        summary = self.folder.read_json(FILES[step])
        if summary is None:
            raise PlanRefused(
                f"{self.folder.uri}: run {self.request.run} of {self.request.duty} has no "
                f"{FILES[step]}: the step {step} comes first"
            )
        return summary
