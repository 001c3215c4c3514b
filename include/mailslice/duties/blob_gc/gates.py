"""The gates of check (complete scans, every blob to delete) and of verify (what S3 holds now).

They do not judge what other clients write at the same time.
"""

from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from mailslice.checks.expectations import Expectation, Frame
from mailslice.codec.blob_ids import BlobIds, is_active, is_blob_id, parse
from mailslice.duties.blob_gc.apply import ALREADY_DELETED, GROUPS, group_name
from mailslice.duties.blob_gc.orphans import PlannedBlob, blobs_of
from mailslice.duties.blob_gc.plan import VIEW, CopyToRestore, GcPlan, SourceScan
from mailslice.duties.blob_gc.trash import Trash, Trashed
from mailslice.engine.row_files import RowGroup, read_groups
from mailslice.maintenance.gates import planned_rows
from mailslice.maintenance.result import Result
from mailslice.maintenance.run import Run
from mailslice.model.mail import BlobId
from mailslice.model.settings import Settings

MANY = 10_000
"""A plan of up to this many blobs is never unusual."""
VOLATILE = ("deadLetters", "ownBucket", "own.")
"""Sources that normally lose references: dead letters are redriven, delayed mails delivered."""


def sources(plan: GcPlan, settings: Settings, max_shrink: float) -> Frame:
    """One row a source: whether its scan was complete, and the share of references it lost."""
    volatile = _volatile(settings)
    rows = [
        {
            "source": scan.source,
            "parts_unread": scan.parts - scan.read,
            "parts_read_twice": scan.twice,
            "holes": scan.holes,
            "lost_share": 0.0
            if scan.source.startswith(VOLATILE) or scan.source.lower() in volatile
            else lost_share(scan),
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


def _volatile(settings: Settings) -> set[str]:
    return {name.lower() for name in settings.gc.volatile_sources}


def lost_share(scan: SourceScan) -> float:
    """The share of the last run's references that disappeared without a cleanup of mailslice."""
    if not scan.before:
        return 0.0
    return max(0.0, (scan.before - scan.references - scan.cleaned) / scan.before)


def view(plan: GcPlan, settings: Settings, max_shrink: float) -> Frame:
    """Whether the scan of the queue view found the references of the mails that were live then.

    `lost_share` cannot tell: cleanups also delete rows that are newer than the last run's count.
    """
    free = _volatile(settings).intersection(map(str.lower, VIEW))
    least = 0.0 if free else 2 * plan.live_mails * (1 - max_shrink)
    sentence = (
        f"The queue view has two references for each of {plan.live_mails} live mails, less at most "
        f"{max_shrink:g} of them (max_shrink). If mails were delivered since queue_size counted "
        "them, run queue_size, then plan again."
    )
    return Frame.facts("view", view_references=(plan.view_references, least, None, sentence))


def totals(plan: GcPlan, max_share: float) -> Frame:
    listing, unread = plan.listing, ", ".join(plan.unread_columns) or "none"
    unread_columns = (
        "Every column that is named like a blob id is read (MAILSLICE_GC_SOURCES) or excused "
        f"(MAILSLICE_GC_UNREAD_COLUMNS); not: {unread}."
    )
    share = plan.planned / plan.blobs if plan.blobs else 0.0
    sentence = f"At most {max_share:g} of all blobs are to go (max_share)."
    every = "Every range of keys was listed to its end."
    once = "No range of keys was listed twice."
    whole = "The ranges of keys cover every key there can be."
    return Frame.facts(
        "totals",
        ranges_unread=(listing.wanted - listing.read, 0, 0, every),
        ranges_read_twice=(listing.twice, 0, 0, once),
        ranges_holes=(listing.holes, 0, 0, whole),
        unread_columns=(len(plan.unread_columns), 0, 0, unread_columns),
        planned_share=(share, 0, max_share, sentence),
    )


def deletes(context: Run, plan: GcPlan) -> Frame:
    blob = context.settings.blob
    generation = BlobIds(blob, lambda: plan.made_at).generation()
    derive = partial(_with_collectable, blob.family, generation)
    number = ("modified_s", "since_ms", "collectable")
    schema = pa.schema([("key", pa.string()), *((name, pa.int64()) for name in number)])
    files = dict.fromkeys(group.file for group in plan.deletes)
    rows = planned_rows(context, list(files), schema, derive)
    modified = (plan.made_at - plan.grace).timestamp()
    since = (plan.made_at - plan.delete_after).timestamp() * 1000
    expect = [
        Expectation.rows(plan.planned, "The plan's files have as many rows as were planned."),
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


def _with_collectable(family: int, generation: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    collectable = [
        int(is_blob_id(key) and not is_active(parse(key), family, generation))
        for key in batch.column("key").to_pylist()
    ]
    columns = [*batch.columns, pa.array(collectable, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, "collectable"])


_SAMPLED, _GROUPS = 500, 10


def after(run: Run, plan: GcPlan, result: Result) -> Frame:
    """What S3 holds of a sample of the blobs that apply reached, and of the planned restores."""
    outcomes, returned = result.fields[GROUPS], _returned(run, plan, result)
    sample = _sample(run, [group for group in plan.deletes if group_name(group) in outcomes])
    not_deleted = absent = 0
    for group, rows in sample:
        outcome = outcomes[group_name(group)]
        not_deleted += min(len(rows), group.rows - outcome["deleted"])
        absent += min(len(rows), outcome["skipped"][ALREADY_DELETED])
    blobs = [blob for _, rows in sample for blob in rows]
    with Trash(run.settings) as trash:
        stored = trash.james.heads([blob.key for blob in blobs])
        missing = [blob.key for blob in blobs if stored[blob.key] is None]
        # Copies expire `keep` after apply began, which is later than the plan's time.
        copied = run.clock() < plan.made_at + plan.keep
        copies = len(trash.of_keys(missing) if copied else missing)
        still_lost = sum(blob is None for blob in trash.james.heads(returned).values())
    as_planned = sum(blob.is_still(stored[blob.key]) for blob in blobs)
    unchanged = "No planned blob is stored as it was listed, except those not deleted."
    kept = "Every deleted blob has its kept copy."
    put_back = "Every deleted blob that is referred to was put back."
    return Frame.facts(
        "after",
        planned_still_there=(as_planned, 0, not_deleted, unchanged),
        deleted_without_copy=(len(missing) - copies, 0, absent, kept),
        referred_to_and_missing=(still_lost, 0, 0, put_back),
    )


def _sample(run: Run, reached: Sequence[RowGroup]) -> list[tuple[RowGroup, list[PlannedBlob]]]:
    groups = reached[:: max(1, len(reached) // _GROUPS)][:_GROUPS]
    limit = max(1, _SAMPLED // max(1, len(groups)))
    tables = read_groups(run.folder.artifacts, run.folder.name, groups)
    return [(group, blobs_of(rows[:limit])) for group, rows in tables]


def _returned(run: Run, plan: GcPlan, result: Result) -> list[BlobId]:
    """A sample of the blobs that the plan restores, and all that apply could not restore."""
    rows = run.read_rows(plan.restores, CopyToRestore)[:: max(1, plan.restores.rows // _SAMPLED)]
    planned = [copy.key for row in rows if (copy := Trashed.of(row.key, 0)) is not None]
    failed = [BlobId(problem.partition(": ")[0]) for problem in result.fields["notRestored"]]
    return list(dict.fromkeys([*planned, *failed]))
