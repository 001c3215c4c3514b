"""The duty: delete blobs without a reference in two runs, and keep copies for a while."""

import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

from mailslice.checks.expectations import Frame
from mailslice.duties.blob_gc import gates
from mailslice.duties.blob_gc.apply import EXPIRES, GROUPS, NAMED, collect
from mailslice.duties.blob_gc.listing import key_ranges
from mailslice.duties.blob_gc.params import Params
from mailslice.duties.blob_gc.plan import GcPlan, recorded_candidates
from mailslice.duties.blob_gc.planner import make_plan
from mailslice.maintenance.duty import Duty
from mailslice.maintenance.gates import usual_frames
from mailslice.maintenance.progress import Progress
from mailslice.maintenance.result import Result, Summaries
from mailslice.maintenance.run import Run
from mailslice.stores.blobs.key_ranges import KeyRange
from mailslice.stores.blobs.store import BlobStore

_LONG = ("sources", "samples", "byGeneration", "byAge")
"""Fields of the plan that are in the report but not on the terminal."""
_COUNTS = (
    *("referenceSourceCount", "references", "blobCount", "blobBytes", "orphans", "orphanBytes"),
    *("bytes", "candidates", "restored"),
)


class BlobGc(Duty[GcPlan]):
    """A run records candidates. A later run that still finds no reference deletes them."""

    plan_type = GcPlan
    items = "blobs"
    bulky = frozenset({*_LONG, GROUPS, EXPIRES})

    def __init__(
        self,
        sleep: Callable[[float], None] = time.sleep,
        key_ranges: Callable[[BlobStore], list[KeyRange]] = key_ranges,
    ) -> None:
        self._sleep, self._key_ranges = sleep, key_ranges

    def plan(self, run: Run) -> GcPlan:
        """Raises BadSetting, BadInput, ClockSkew, StoreUnavailable, Refused (a missing source)."""
        return make_plan(run, self._key_ranges)

    def retained(self, run: Run) -> Collection[str]:
        """The files in the candidate record, if an earlier apply of this run wrote it."""
        earlier = recorded_candidates(run.folder.artifacts)
        if earlier is None or earlier.run != run.request.run:
            return ()
        return {group.file for group in earlier.groups}

    def check(self, run: Run, plan: GcPlan) -> Iterable[Frame]:
        params = run.params(Params)
        share = run.settings.gc.max_share if params.max_share is None else params.max_share
        yield gates.sources(plan, run.settings, params.max_shrink)
        yield gates.view(plan, run.settings, params.max_shrink)
        yield gates.totals(plan, share)
        yield gates.deletes(run, plan)
        yield from usual_frames(run, plan.planned, gates.MANY, unusual=params.unusual)

    def apply(self, run: Run, plan: GcPlan, progress: Progress) -> None:
        """Records the groups that are done. After a kill the next run restores referenced blobs."""
        collect(run, plan, progress, self._sleep)

    def verify(self, run: Run, plan: GcPlan, result: Result) -> Iterable[Frame]:
        """Asks S3 about the planned blobs, independently of apply's result."""
        if plan.planned or plan.restores.rows or result.fields["notRestored"]:
            yield gates.after(run, plan, result)

    def describe(self, steps: Summaries) -> str:
        result, fields = steps.result, steps.result.fields
        words = []
        if result.applied:
            words.append(f"{result.applied} blobs deleted ({fields['bytesDeleted']} bytes)")
        if fields["keptUntil"]:
            words.append(f"kept until {fields['keptUntil']}")
        if fields["candidates"]:
            words.append(
                f"{fields['candidates']} candidates recorded, to be deleted by a later run"
            )
        if fields["restored"]:
            words.append(f"{fields['restored']} put back, as they are referred to")
        if fields["expiredCopies"]:
            words.append(f"{fields['expiredCopies']} kept copies were over and are deleted")
        return "; ".join([*words, *result.rest()])

    def nothing(self, steps: Summaries) -> str:
        return f"nothing to do: {super().nothing(steps)}"

    def problem(self, steps: Summaries) -> str | None:
        """Names blobs that could not be restored first, and copies that could not be deleted."""
        fields = steps.result.fields
        if missed := fields["notRestored"]:
            count = fields.get("blobsMissing", len(missed))
            return (
                f"{count} deleted blobs are referred to and could not be put back, "
                f"such as {missed[0]}"
            )
        problem = super().problem(steps)
        if copies := fields["copiesNotDeleted"]:
            problem = problem or f"{copies} kept copies that are over could not be deleted"
        return problem and f"{problem}; the next run tries them again"

    def report_fields(self, steps: Summaries) -> dict[str, Any]:
        """`gcedBlobCount` and `errorCount` are James' names. `failures` is a list for scripts."""
        plan, result = steps.plan, steps.result
        known = {**plan, **result.fields}
        not_done = known.get("blobsMissing", 0) + known.get("copiesNotDeleted", 0)
        return {
            **{name: plan[name] for name in _LONG if name in plan},
            **{name: known.get(name, 0) for name in _COUNTS},
            "gcedBlobCount": result.applied,
            "errorCount": result.failed + not_done,
            "failures": [f"{key}: {why}" for key, why in result.failures.items()][:NAMED],
            "spent": {**plan.get("spent", {}), **result.fields.get("spent", {})},
        }


DUTY = BlobGc()
