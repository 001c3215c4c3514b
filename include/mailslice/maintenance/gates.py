"""The gates of a duty: its plan's own rows, and what the stores say now.

A duty's verify is the same over what apply left (docs/adding-a-duty.md has both):

- The plan's rows are all judged, one by one. Their number is a fact of the digest: hold it against
  the rows (`Frame("plan", ...)` with `may_be_empty` only where the digest counts none).
- Facts come from the stores as they are when the gate runs, or from a plan's file that is inside
  the digest; never from sums that the step before wrote about itself.
- A value that is missing and a frame without rows fail; nobody has to ask for that.
- Each expectation has a test in which data in the stores or in the plan's files makes it fail.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from mailslice.checks.data_docs import Docs
from mailslice.checks.expectations import Expectation, Frame
from mailslice.checks.gate import run_gate
from mailslice.maintenance.ledger import Ledger
from mailslice.maintenance.report import DONE
from mailslice.maintenance.result import TIME_LIMIT
from mailslice.maintenance.run import Run
from mailslice.maintenance.slice_range import limited_to_slices

if TYPE_CHECKING:
    import pyarrow as pa

    from mailslice.checks.expectations import Fact, Rows
    from mailslice.engine.plan_rows import Derive


def gate_summary(context: Run, gate: str, frames: Sequence[Frame]) -> dict[str, Any]:
    """What a step reports of its gate; without a frame there is none. Raises GateFailed."""
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

    if not files:  # no Spark for nothing
        return schema.empty_table()
    names = [context.folder.file(file) for file in files]
    return plan_rows(context.spark(), context.folder.artifacts, names, schema, derive)


class Reads(NamedTuple):
    """Keys that a plan step was to read, those it read, and how many of those twice."""

    requested: int
    read: int
    twice: int

    @classmethod
    def of(cls, requested: int, keys: Collection[Hashable]) -> Self:
        """`keys`: what was read, one a read."""
        return cls(requested, len(keys), len(keys) - len(set(keys)))

    def facts(self, column: str = "places_read", unit: str = "partition") -> dict[str, Fact]:
        """For `Frame.facts`: every key was read, and none twice."""
        every = f"Every {unit} that was to be read was read: an unread one is not an empty one."
        return {
            column: (self.read, self.requested, self.requested, every),
            f"{column}_twice": (self.twice, 0, 0, f"No {unit} was counted twice."),
        }


_RUNS, _LEAST_RUNS, _READ = 10, 3, 10_000
"""The median is of the last ten runs that changed something; fewer than three say nothing. Many
runs that were refused, or had nothing to do, may stand before those."""


def usual(context: Run) -> float | None:
    """The median of what the last runs of this duty on this queue had to do; None: too few.

    That is what they changed, and what the time limit left: a backlog takes more than one run.
    """
    request = context.request
    reports = Ledger(context.stores, context.settings).list(request.duty, request.queue, _READ)
    work = [
        _work_of(report)
        for report in reports
        if report["status"] == DONE
        and report["run"] != request.run
        and report.get("applied")
        and not _of_a_part(report)
    ]
    return median(work[:_RUNS]) if len(work) >= _LEAST_RUNS else None


def _work_of(report: Mapping[str, Any]) -> int:
    """`left` is the older name of `remaining`."""
    remaining = report.get("remaining", report.get("left")) or 0
    late = (report.get("skippedBy") or {}).get(TIME_LIMIT, 0)
    return int(report["applied"]) + int(remaining) + int(late)


def _of_a_part(report: Mapping[str, Any]) -> bool:
    """Whether the run was on some slices, or on mailboxes or users that a person named."""
    params = report.get("params") or {}
    return limited_to_slices(report) or bool(params.get("mailboxes") or params.get("users"))


def usual_frames(context: Run, planned: int, least: int, *, unusual: bool) -> list[Frame]:
    """What a gate expects of a plan of more items than `least`; none where nothing is usual yet."""
    known = None if unusual or planned <= least else usual(context)
    if known is None:
        return []
    factor = context.settings.duty.usual_factor
    sentence = (
        f"The plan is at most {factor:g} times what the last runs did "
        "(MAILSLICE_DUTY_USUAL_FACTOR; --unusual and a reason let it pass)."
    )
    expect = [Expectation.between("planned", 0, max(least, factor * known), sentence)]
    return [Frame("usual", [{"planned": planned}], expect)]
