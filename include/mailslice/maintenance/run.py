"""What a duty works with: a step's context, the lock, the rows of its plan, and what it reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, TypeVar

from mailslice.maintenance.context import StepContext
from mailslice.maintenance.lock import PATIENCE, Lock, locked
from mailslice.maintenance.plan import PLAN_FOLDER
from mailslice.maintenance.row_file import RowFile, read_rows, read_tables, stream_rows, write_rows

if TYPE_CHECKING:
    import pyarrow as pa

R = TypeVar("R")


@dataclass(frozen=True)
class Run(StepContext):
    """One step of one run, as a duty gets it. Built by `maintenance.runner`."""

    lock_names: tuple[str, ...] = ()
    lock_patience: timedelta = PATIENCE
    acquired_locks: tuple[Lock, ...] = ()
    """Empty but in `apply`, and within `locked`."""
    fields: dict[str, Any] = field(default_factory=dict)
    """What `report` was told in this step."""

    @classmethod
    def of(cls, context: StepContext, **more: Any) -> Self:
        """The context of a step with what a duty needs besides."""
        return cls(**{one.name: getattr(context, one.name) for one in fields(StepContext)}, **more)

    def report(self, **values: Any) -> None:
        """JSON values for this step's file, and the report unless bulky; `message` is in words."""
        self.fields.update(values)

    def write_rows(self, name: str, rows: Iterable[R], kind: type[R]) -> RowFile:
        """Write dataclasses to plan/NAME.parquet, for a field of the plan."""
        location, file = self.folder.artifacts, f"{PLAN_FOLDER}/{name}.parquet"
        return write_rows(location, self.folder.name, file, rows, kind)

    def read_rows(self, file: RowFile, kind: type[R]) -> list[R]:
        """The rows of a file of the plan. Raises PlanRefused when they are not what was planned."""
        return read_rows(self.folder.artifacts, self.folder.name, file, kind)

    def stream_rows(self, file: RowFile, kind: type[R]) -> Iterator[R]:
        """As `read_rows`; one row group at a time is in memory."""
        return stream_rows(self.folder.artifacts, self.folder.name, file, kind)

    def read_tables(self, file: RowFile) -> Iterator[pa.Table]:
        """The row groups of a file of the plan as Arrow tables. Raises as `read_rows`."""
        return read_tables(self.folder.artifacts, self.folder.name, file)

    def require_lock(self) -> None:
        """Call before each change. Raises LockLost when the lock may be somebody else's by now."""
        if not self.acquired_locks:
            raise RuntimeError(f"{self.request.duty} changes something without a lock")
        for lock in self.acquired_locks:
            lock.check()

    @contextmanager
    def locked(self) -> Iterator[Self]:
        """Hold the duty's locks, as `apply` does. Raises LockHeld."""
        table, run = self.stores.own.locks, self.request.run
        with ExitStack() as stack:
            acquired = [
                stack.enter_context(locked(table, name, run, patience=self.lock_patience))
                for name in self.lock_names
            ]
            yield replace(self, acquired_locks=tuple(acquired))
