"""One step of one run, as a duty gets it; `maintenance.runner` builds it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from mailslice.engine.row_files import RowFile
from mailslice.maintenance.artifacts import FILES, PLAN_FOLDER, RunFolder
from mailslice.maintenance.lock import PATIENCE, Lock, locked
from mailslice.maintenance.params import DutyParams
from mailslice.maintenance.rate_limit import Throttle
from mailslice.maintenance.row_file import read_tables, stream_rows, write_rows
from mailslice.maintenance.run_request import RunRequest
from mailslice.model.clock import Clock
from mailslice.model.durations import format_duration
from mailslice.model.errors import PlanRefused
from mailslice.model.mail import QueueName
from mailslice.model.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

    from mailslice.checks.gate import Evaluator
    from mailslice.engine.frames import Session
    from mailslice.maintenance.engine import Engine
    from mailslice.stores import Stores

P = TypeVar("P", bound=DutyParams)
R = TypeVar("R")
StoreName = Literal["cassandra", "s3", "rabbitmq"]


@dataclass(frozen=True)
class Run:
    """One step of one run: request, params, settings, stores, folder, clock, engine and locks."""

    request: RunRequest
    duty_params: DutyParams
    """The validated params. `params` gives them as the duty's own type."""
    settings: Settings
    stores: Stores
    folder: RunFolder
    clock: Clock
    engine: Engine | None = None
    """Where its frames are computed; None until its step begins."""
    evaluator: Evaluator | None = None
    """How its gates are evaluated; None: by Great Expectations."""
    began: float = field(default_factory=time.monotonic)
    """When this step began, or the `run_small` that it is part of, by the monotonic clock."""
    lock_names: tuple[str, ...] = ()
    lock_patience: timedelta = PATIENCE
    acquired_locks: tuple[Lock, ...] = ()
    """Empty outside `apply` and `locked`."""
    fields: dict[str, Any] = field(default_factory=dict)
    """The fields that `report` was given in this step."""

    @property
    def queue(self) -> QueueName:
        """The queue that this run is about."""
        return self.request.queue

    def params(self, kind: type[P]) -> P:
        """The run's params as the duty's own type."""
        if not isinstance(self.duty_params, kind):
            raise TypeError(
                f"params of {self.request.duty} are {type(self.duty_params).__name__}, not "
                f"{kind.__name__}"
            )
        return self.duty_params

    def throttle(self, store: StoreName, rate: int = 0) -> Throttle:
        """MAILSLICE_DUTY_RATE_* of the store, or a lower `rate`, times the param `intensity`."""
        rates: list[int] = [getattr(self.settings.duty, f"rate_{store}"), rate]
        return Throttle(min(filter(None, rates), default=None), self.duty_params.intensity)

    def time_left(self) -> float:
        """Seconds of the param `time_limit` that are left; infinite without one."""
        limit = self.duty_params.time_limit
        return limit.total_seconds() - time.monotonic() + self.began if limit is not None else inf

    def out_of_time(self) -> bool:
        """Whether the param `time_limit` is over: apply then begins no new item."""
        return self.time_left() <= 0

    def session(self) -> Session:
        """The session that computes frames: Spark, or the process for small work."""
        if self.engine is None:
            raise RuntimeError(f"{self.request.duty} computes frames without an engine")
        return self.engine.session()

    def need(self, step: str) -> dict[str, Any]:
        """The summary of an earlier step. Raises PlanRefused when it did not run."""
        summary = self.folder.read_json(FILES[step])
        if summary is None:
            raise PlanRefused(
                f"{self.folder.uri}: run {self.request.run} of {self.request.duty} has no "
                f"{FILES[step]}: the step {step} comes first"
            )
        return summary

    def report(self, **values: Any) -> None:
        """Set JSON fields of this step's file, and of the report unless bulky. `message`: words."""
        self.fields.update(values)

    def write_rows(self, name: str, rows: Iterable[R], kind: type[R]) -> RowFile:
        """Write dataclasses to plan/NAME.parquet, for a field of the plan."""
        location, file = self.folder.artifacts, f"{PLAN_FOLDER}/{name}.parquet"
        return write_rows(location, self.folder.name, file, rows, kind)

    def read_rows(self, file: RowFile, kind: type[R]) -> list[R]:
        """The rows of a file of the plan. Raises PlanRefused when they are not what was planned."""
        return list(self.stream_rows(file, kind))

    def stream_rows(self, file: RowFile, kind: type[R]) -> Iterator[R]:
        """As `read_rows`; one row group at a time is in memory."""
        return stream_rows(self.folder.artifacts, self.folder.name, file, kind)

    def read_tables(self, file: RowFile) -> Iterator[pa.Table]:
        """The row groups of a file of the plan as Arrow tables. Raises as `read_rows`."""
        return read_tables(self.folder.artifacts, self.folder.name, file)

    def require_clock(self, allowed: timedelta | None = None, name: str = "grace") -> None:
        """Raises ClockSkew if Cassandra's clock differs by over a quarter of the grace, or of the
        param `name`, which is `allowed`. Call it before using times of stores.
        """
        allowed = self.settings.duty.grace if allowed is None else allowed
        remedy = f"set the clocks right, or give a longer {name}"
        words = f"allowed is a quarter of the {name} {format_duration(allowed)}: {remedy}"
        self.stores.cassandra.require_clock(self.clock, allowed / 4, words)

    def require_lock(self) -> None:
        """Call before each change. Raises LockLost when somebody else may have the lock."""
        if not self.acquired_locks:
            raise RuntimeError(f"{self.request.duty} changes something without a lock")
        for lock in self.acquired_locks:
            lock.check()

    @contextmanager
    def locked(self) -> Iterator[Self]:
        """Hold the duty's locks, as `apply` does. Raises LockHeld."""
        table, run = self.stores.records.locks, self.request.run
        with ExitStack() as stack:
            acquired = [
                stack.enter_context(locked(table, name, run, patience=self.lock_patience))
                for name in self.lock_names
            ]
            yield replace(self, acquired_locks=tuple(acquired))
