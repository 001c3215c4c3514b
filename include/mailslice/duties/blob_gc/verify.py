"""Checks that deleted blobs are gone and have copies, and that restored blobs exist.

Concurrent writes of others are not checked.
"""

from __future__ import annotations

from itertools import islice

from mailslice.checks.expectations import Expectation, Frame
from mailslice.duties.blob_gc.blob_files import PlannedBlob, blobs_of
from mailslice.duties.blob_gc.classify import modified_seconds
from mailslice.duties.blob_gc.deletes import ALREADY_DELETED
from mailslice.duties.blob_gc.plan import CopyToRestore, GcPlan
from mailslice.duties.blob_gc.trash import Kept, KeptBlobs
from mailslice.maintenance.result import Result
from mailslice.maintenance.row_file import read_groups
from mailslice.maintenance.run import Run
from mailslice.model.mail import BlobId

_MOST, _GROUPS = 500, 10


def after(run: Run, plan: GcPlan, result: Result) -> Frame:
    """What S3 says of a sample of what was to be deleted, and of what was to be put back."""
    sample, returned = _sample(run, plan), _returned(run, plan, result)
    with KeptBlobs(run.settings) as trash:
        stored = trash.james.heads([blob.key for blob in sample])
        missing = [blob.key for blob in sample if stored[blob.key] is None]
        # Apply began after the plan was made, so copies expire later than this.
        copied = run.clock() < plan.made_at + plan.keep
        copies = len(trash.of_keys(missing) if copied else missing)
        still_lost = sum(blob is None for blob in trash.james.heads(returned).values())
    as_planned = sum(
        (now := stored[blob.key]) is not None
        and (now.size, modified_seconds(now.modified)) == (blob.size, blob.modified_s)
        for blob in sample
    )
    limits = (
        (
            "planned_still_there",
            as_planned,
            result.not_done + result.fields["restored"],
            "No planned blob is there as it was, but those that were not tried, or were put back.",
        ),
        (
            "deleted_without_copy",
            len(missing) - copies,
            result.skipped.get(ALREADY_DELETED, 0),
            "Every deleted blob has its kept copy.",
        ),
        (
            "referred_to_and_missing",
            still_lost,
            0,
            "Every deleted blob that is referred to was put back.",
        ),
    )
    facts = (
        (value, Expectation.between(column, 0, most, sentence))
        for column, value, most, sentence in limits
    )
    return Frame.facts("after", *facts)


def _sample(run: Run, plan: GcPlan) -> list[PlannedBlob]:
    groups = plan.deletes[:: max(1, len(plan.deletes) // _GROUPS)]
    tables = read_groups(run.folder.artifacts, run.folder.name, groups)
    most = max(1, _MOST // max(1, len(groups)))
    return [blob for _, rows in islice(tables, _GROUPS) for blob in blobs_of(rows[:most])]


def _returned(run: Run, plan: GcPlan, result: Result) -> list[BlobId]:
    """A sample of the blobs that the plan puts back, and those that apply could not."""
    rows = run.read_rows(plan.restores, CopyToRestore)[:: max(1, plan.restores.rows // _MOST)]
    planned = [copy.key for row in rows if (copy := Kept.of(row.key, 0)) is not None]
    failed = [BlobId(problem.partition(": ")[0]) for problem in result.fields["notRestored"]]
    return list(dict.fromkeys([*planned, *failed]))
