"""A step's context over files in a folder, and the result of its gate.

Uses no stores, no Spark and no Data Docs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mailslice.checks.expectations import Frame
from mailslice.checks.gate import GateResult
from mailslice.engine.frames import InProcess
from mailslice.maintenance.artifacts import Artifacts, RunFolder
from mailslice.maintenance.engine import Engine
from mailslice.maintenance.params import DutyParams
from mailslice.maintenance.run import Run
from mailslice.maintenance.run_request import RunRequest
from mailslice.model.clock import Clock
from mailslice.model.errors import GateFailed
from mailslice.model.mail import QueueName
from mailslice.model.settings import S3Settings, Settings
from tests.services.duties.running import judged_plainly

QUEUE = QueueName("spool")
IN_PROCESS = Engine(Settings(), "test", 0, chosen=InProcess())
NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


def run_of(
    folder: Path,
    duty: str,
    params: DutyParams | None = None,
    queue: QueueName = QUEUE,
    clock: Clock = lambda: NOW,
    name: str = "r-1",
    **more: Any,
) -> Run:
    """A step of a duty over files in a folder; `more` replaces parts of it."""
    request = RunRequest(duty, queue, name)
    files = RunFolder(Artifacts(str(folder), S3Settings()), duty, queue, request.run)
    files.artifacts.folder(files.file("plan"))
    parts = {"settings": Settings(), "stores": None, "engine": None, **more}
    return Run(request, params or DutyParams(), folder=files, clock=clock, **parts)


class Locks:
    """The double of the lock table, without contention. `taken`: locks taken, and releases."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    def acquire(self, name: str, owner: str, _ttl: object) -> str:
        self.taken.append(name)
        return owner

    def renew(self, *_: object) -> bool:
        return True

    def release(self, *_: object) -> bool:
        self.taken.append("released")
        return True


def refused_plainly(name: str, frames: Sequence[Frame], docs: object) -> GateResult:
    """An evaluator that raises GateFailed with column and value of the first failure."""
    result = judged_plainly(name, frames, docs)
    for one in result.findings:
        if not one.success:
            raise GateFailed(f"{one.column}: {one.observed}")
    return result


def broken(*frames: Frame) -> set[str]:
    """The columns of the expectations that fail."""
    findings = judged_plainly("check", frames, None).findings
    return {each.column for each in findings if not each.success}


def rewritten(
    path: Path, change: Callable[[list[dict[str, Any]]], Sequence[dict[str, Any]]]
) -> None:
    """Rewrites a Parquet file: `change` maps its old rows to the new ones."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    schema = pa.schema([field.with_nullable(True) for field in table.schema])
    pq.write_table(pa.Table.from_pylist(list(change(table.to_pylist())), schema=schema), path)
