"""The plan's gate: whether its scans were complete, and every blob to delete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mailslice.checks.expectations import Expectation, Frame
from mailslice.codec.blob_ids import BlobIds, is_active, is_blob_id, parse
from mailslice.duties.blob_gc.plan import GcPlan, SourceScan
from mailslice.maintenance.context import StepContext
from mailslice.maintenance.gates import planned_rows
from mailslice.model.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

MANY = 10_000
"""A plan of up to this many blobs is never unusual."""
VOLATILE = ("deadLetters", "ownBucket", "own.")
"""Sources whose references vanish normally: letters are redriven, delayed mails delivered."""


def sources(plan: GcPlan, settings: Settings, max_shrink: float) -> Frame:
    """One row for each source: its scan was complete, and it lost few references."""
    volatile = {name.lower() for name in settings.gc.volatile_sources}
    rows = [
        {
            "source": scan.source,
            "parts_unread": scan.parts - scan.read,
            "parts_read_twice": scan.twice,
            "holes": scan.holes,
            "lost_share": 0.0 if _may_shrink(scan.source, volatile) else lost_share(scan),
        }
        for scan in plan.scans
    ]
    zeros = {
        "parts_unread": "Every part of every source was read to its end: "
        "an unread one is not an empty one.",
        "parts_read_twice": "No part of a source was counted twice.",
        "holes": "The token ranges of a source tile the ring: no row is left out.",
    }
    lost = (
        f"No source lost more than {max_shrink:g} of its references since the last run "
        "(max_shrink)."
    )
    expect = [Expectation.equal(column, 0, sentence) for column, sentence in zeros.items()]
    expect.append(Expectation.between("lost_share", 0, max_shrink, lost))
    return Frame("sources", rows, expect)


def _may_shrink(source: str, volatile: set[str]) -> bool:
    return source.startswith(VOLATILE) or source.lower() in volatile


def lost_share(scan: SourceScan) -> float:
    """The share of the last run's references that vanished without a cleanup of mailslice.

    0 when there is nothing to compare.
    """
    if not scan.before:
        return 0.0
    return max(0.0, (scan.before - scan.references - scan.cleaned) / scan.before)


def totals(plan: GcPlan, max_share: float) -> Frame:
    """One row: the plan as a whole."""
    listing, unread = plan.listing, ", ".join(plan.unread_columns) or "none"
    unread_columns = (
        "Every column that is named like a blob id is read (MAILSLICE_GC_SOURCES) or excused "
        f"(MAILSLICE_GC_UNREAD_COLUMNS); not: {unread}."
    )
    zeros = {
        "ranges_unread": (
            listing.wanted - listing.read,
            "Every range of keys was listed to its end.",
        ),
        "ranges_read_twice": (listing.twice, "No range of keys was listed twice."),
        "ranges_holes": (listing.holes, "The ranges of keys cover every key there can be."),
        "unread_columns": (len(plan.unread_columns), unread_columns),
    }
    share = plan.planned / plan.blobs if plan.blobs else 0.0
    sentence = f"At most {max_share:g} of all blobs are to go (max_share)."
    return Frame.facts(
        "totals",
        *((value, Expectation.equal(name, 0, why)) for name, (value, why) in zeros.items()),
        (share, Expectation.between("planned_share", 0, max_share, sentence)),
    )


def deletes(context: StepContext, plan: GcPlan) -> Frame:
    """One row for each blob to delete."""
    import pyarrow as pa

    blob = context.settings.blob
    derive = AddCollectable(blob.family, BlobIds(blob, lambda: plan.made_at).generation())
    number = ("modified_s", "since_ms", "collectable")
    schema = pa.schema([("key", pa.string()), *((name, pa.int64()) for name in number)])
    files = dict.fromkeys(group.file for group in plan.deletes)
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
class AddCollectable:
    """Adds the column `collectable` to planned rows. Picklable: workers call it."""

    family: int
    generation: int

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        collectable = [
            int(is_blob_id(key) and not is_active(parse(key), self.family, self.generation))
            for key in batch.column("key").to_pylist()
        ]
        columns = [*batch.columns, pa.array(collectable, pa.int64())]
        return pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, "collectable"])
