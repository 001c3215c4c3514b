"""Step 2: the gate over the plan. Fails -> the run stops here, and nothing was changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from mailslice.codec.blob_ids import BlobIds, is_active, is_blob_id, parse
from mailslice.duties.blob_gc.params import Params
from mailslice.duties.blob_gc.plan_files import FOLDER
from mailslice.duties.blob_gc.plan_note import Plan, read_plan
from mailslice.duty.context import StepContext
from mailslice.duty.gates import judged, planned_rows
from mailslice.duty.plans import OLDEST_PLAN, reading
from mailslice.duty.usual import usual_frames
from mailslice.model.settings import Settings
from mailslice.quality.gate import Expectation, Frame

if TYPE_CHECKING:
    import pyarrow as pa

_MANY = 10_000
"""So many blobs may go whatever is usual."""
VOLATILE = ("deadLetters", "ownBucket", "own.")
"""Sources that come and go: letters are redriven, delayed mails delivered."""


def run(context: StepContext) -> dict[str, Any]:
    """Whether the plan may be applied.

    Raises GateFailed naming the expectation, the value and the row count.
    """
    plan = read_plan(context.need("plan"), context.request.run)
    with reading(plan.run):
        frames = [
            sources(plan, context.settings, context.params(Params).max_shrink),
            totals(plan, _share(context), context.clock()),
        ]
    frames.append(deletes(context, plan))
    frames += usual_frames(context, plan.planned, _MANY, unusual=context.params(Params).unusual)
    return {
        **judged(context, "check", frames),
        "planDigest": plan.digest,
        "planned": plan.planned,
    }


def _share(context: StepContext) -> float:
    told = context.params(Params).max_share
    return context.settings.gc.max_share if told is None else told


def sources(plan: Plan, settings: Settings, most: float) -> Frame:
    """One row a source: its scan was whole, and it lost few references since the last run."""
    volatile = {name.lower() for name in settings.gc.volatile_sources}
    rows = [
        {
            "source": each["source"],
            "parts_unread": each["parts"] - each["read"],
            "parts_read_twice": each["twice"],
            "holes": each["holes"],
            "lost_share": 0.0 if _may_shrink(each["source"], volatile) else _lost(each),
        }
        for each in plan.scans
    ]
    expect = [
        Expectation.equal(
            "parts_unread",
            0,
            "Every part of every source was read to its end: an unread one is not an empty one.",
        ),
        Expectation.equal("parts_read_twice", 0, "No part of a source was counted twice."),
        Expectation.equal(
            "holes", 0, "The token ranges of a source tile the ring: no row is left out."
        ),
        Expectation.between(
            "lost_share",
            0,
            most,
            f"No source lost more than {most:g} of its references since the last run (max_shrink).",
        ),
    ]
    return Frame("sources", rows, expect)


def _may_shrink(source: str, volatile: set[str]) -> bool:
    return source.startswith(VOLATILE) or source.lower() in volatile


def _lost(scan: Mapping[str, Any]) -> float:
    return max(0.0, lost_share(scan["before"], scan["references"], scan.get("cleaned", 0)))


def lost_share(before: int | None, now: int, cleaned: int = 0) -> float:
    """The share of the last run's references that is gone and that no cleanup of ours explains.

    It is 0 when there is nothing to compare.
    """
    return (before - now - cleaned) / before if before else 0.0


def totals(plan: Plan, share: float, now: datetime) -> Frame:
    """One row: the plan as a whole."""
    listing, unread = plan.listing, plan.unread_columns
    row = {
        "ranges_unread": listing["wanted"] - listing["read"],
        "ranges_read_twice": listing["twice"],
        "ranges_holes": listing["holes"],
        "unread_columns": len(unread),
        "planned_share": plan.planned / plan.blobs if plan.blobs else 0.0,
        "age_hours": (now - plan.made_at) / timedelta(hours=1),
    }
    expect = [
        Expectation.equal("ranges_unread", 0, "Every range of keys was listed to its end."),
        Expectation.equal("ranges_read_twice", 0, "No range of keys was listed twice."),
        Expectation.equal("ranges_holes", 0, "The ranges of keys cover every key there can be."),
        Expectation.equal(
            "unread_columns",
            0,
            "Every column that is named like a blob id is read (MAILSLICE_GC_SOURCES) or excused "
            f"(MAILSLICE_GC_UNREAD_COLUMNS); not: {', '.join(unread) or 'none'}.",
        ),
        Expectation.between(
            "planned_share", 0, share, f"At most {share:g} of all blobs are to go (max_share)."
        ),
        Expectation.between(
            "age_hours", -1, OLDEST_PLAN / timedelta(hours=1), "The plan is not older than a day."
        ),
    ]
    return Frame("totals", [row], expect)


def deletes(context: StepContext, plan: Plan) -> Frame:
    """The rows that are to go, one by one."""
    import pyarrow as pa

    blob = context.settings.blob
    derive = Judged(blob.family, BlobIds(blob, lambda: plan.made_at).generation())
    schema = pa.schema(
        [
            ("key", pa.string()),
            ("modified_s", pa.int64()),
            ("since_ms", pa.int64()),
            ("collectable", pa.int64()),
        ]
    )
    files = dict.fromkeys(f"{FOLDER}/{group.file}" for group in plan.deletes)
    rows = planned_rows(context, list(files), schema, derive)
    modified = (plan.made_at - plan.grace).timestamp()
    since = (plan.made_at - plan.delete_after).timestamp() * 1000
    expect = [
        Expectation.unique("key", "No blob is to go twice."),
        Expectation.equal(
            "collectable", 1, "Every key is a blob id, and of no generation that is in use."
        ),
        Expectation.between(
            "modified_s", None, modified, "Every blob was last written before the grace."
        ),
        Expectation.between(
            "since_ms", None, since, "Every blob has been a candidate for delete_after."
        ),
    ]
    return Frame("deletes", rows, expect, may_be_empty=not plan.planned)


@dataclass(frozen=True, slots=True)
class Judged:
    """Adds to planned rows whether their keys may be collected. Pickles: workers do it."""

    family: int
    generation: int

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        found = [
            int(is_blob_id(key) and not is_active(parse(key), self.family, self.generation))
            for key in batch.column("key").to_pylist()
        ]
        columns = [*batch.columns, pa.array(found, pa.int64())]
        return pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, "collectable"])
