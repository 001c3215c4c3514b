"""The gates of a duty: check judges the plan's rows, and what the stores say now.

Verify judges what apply left, by the same rules (docs/adding-a-duty.md has examples of both):

- Judge every row of the plan. The digest covers their number: compare it with the rows
  (`Frame("plan", ...)` with `may_be_empty` only where the digest counts none).
- Take facts from the stores as they are when the gate runs, or from a file of the plan that the
  digest covers. Never take them from totals that the previous step wrote about itself.
- A missing value and a frame without rows fail by default.
- Each expectation has a test in which data in the stores or in the plan's files makes it fail.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from mailslice.checks.data_docs import Docs
from mailslice.checks.expectations import Expectation, Fact, Frame, Rows
from mailslice.checks.gate import run_gate
from mailslice.maintenance.ledger import Ledger
from mailslice.maintenance.report import DONE
from mailslice.maintenance.result import TIME_LIMIT
from mailslice.maintenance.run import Run
from mailslice.maintenance.slice_range import limited_to_slices

if TYPE_CHECKING:
    import pyarrow as pa

    from mailslice.engine.plan_rows import Derive


def gate_summary(context: Run, gate: str, frames: Sequence[Frame]) -> dict[str, Any]:
    """Judge the frames; returns the gate's summary. An empty list passes. Raises GateFailed."""
    if not frames:
        return {"success": True, "expectations": [], "dataDocs": None}
    request = context.request
    docs = Docs(context.folder.artifacts, request.duty, context.queue, request.run)
    result = run_gate(gate, frames, docs, context.evaluator)
    return {"success": True, "expectations": result.lines(), "dataDocs": result.link}


def planned_rows(
    context: Run, files: Sequence[str], schema: pa.Schema, derive: Derive | None = None
) -> Rows:
    """The rows of these files, on the run's engine; `schema`, `derive`: see `engine.plan_rows`."""
    from mailslice.engine.plan_rows import plan_rows

    if not files:  # do not start Spark for no rows
        return schema.empty_table()
    names = [context.folder.file(file) for file in files]
    return plan_rows(context.session(), context.folder.artifacts, names, schema, derive)


class Reads(NamedTuple):
    """Counts of a plan step: keys to read, reads, and reads that repeated a key."""

    requested: int
    read: int
    twice: int

    @classmethod
    def of(cls, requested: int, keys: Collection[Hashable]) -> Self:
        """`keys`: the key of each read."""
        return cls(requested, len(keys), len(keys) - len(set(keys)))

    def facts(self, column: str = "places_read", unit: str = "partition") -> dict[str, Fact]:
        """For `Frame.facts`: every key was read, and none twice."""
        every = f"Every {unit} that was to be read was read: an unread one is not an empty one."
        return {
            column: (self.read, self.requested, self.requested, every),
            f"{column}_twice": (self.twice, 0, 0, f"No {unit} was counted twice."),
        }


_RUNS, _MIN_RUNS, _MAX_READ = 10, 3, 10_000
"""The median is over the last 10 runs that changed something, and needs 3. To find them, this many
reports are read: many runs that were refused, or had nothing to do, may be newer."""


def usual(context: Run) -> float | None:
    """The median number of items of the last runs of this duty on this queue; None: too few runs.

    It counts items that a run changed or its time limit left: a backlog takes more than one run.
    """
    request = context.request
    reports = Ledger(context.stores, context.settings).list(request.duty, request.queue, _MAX_READ)
    work = [
        _items_of(report)
        for report in reports
        if report["status"] == DONE
        and report["run"] != request.run
        and report.get("applied")
        and not _is_partial(report)
    ]
    return median(work[:_RUNS]) if len(work) >= _MIN_RUNS else None


def _items_of(report: Mapping[str, Any]) -> int:
    """Items that the run changed or left. `left` is the older name of `remaining`."""
    remaining = report.get("remaining", report.get("left")) or 0
    late = (report.get("skippedBy") or {}).get(TIME_LIMIT, 0)
    return int(report["applied"]) + int(remaining) + int(late)


def _is_partial(report: Mapping[str, Any]) -> bool:
    """Whether the run was limited to some slices, mailboxes or users."""
    params = report.get("params") or {}
    return limited_to_slices(report) or bool(params.get("mailboxes") or params.get("users"))


def usual_frames(context: Run, planned: int, least: int, *, unusual: bool) -> list[Frame]:
    """Expects a usual plan size. Empty if `unusual`, up to `least` items, or with too few runs."""
    median_items = None if unusual or planned <= least else usual(context)
    if median_items is None:
        return []
    factor = context.settings.duty.usual_factor
    sentence = (
        f"The plan is at most {factor:g} times what the last runs did "
        "(MAILSLICE_DUTY_USUAL_FACTOR; --unusual and a reason let it pass)."
    )
    expect = [Expectation.between("planned", 0, max(least, factor * median_items), sentence)]
    return [Frame("usual", [{"planned": planned}], expect)]
