"""Step 4: what this run deleted is gone, kept, and referred to by nothing; James and others write beside us, and that is not judged."""

from __future__ import annotations

from itertools import islice
from typing import Any

from mailslice.duties.blob_gc.classify import modified_seconds
from mailslice.duties.blob_gc.deleting import GONE
from mailslice.duties.blob_gc.kept import Kept, KeptBlobs
from mailslice.duties.blob_gc.plan_files import FOLDER, Blob, read_groups
from mailslice.duties.blob_gc.plan_note import Plan, read_plan
from mailslice.duty.context import StepContext
from mailslice.duty.gates import judged
from mailslice.model.mail import BlobId
from mailslice.quality.gate import Expectation, Frame

_MOST = 500


def run(context: StepContext) -> dict[str, Any]:
    """Whether the invariants hold. Raises GateFailed."""
    plan = read_plan(context.need("plan"), context.request.run)
    return judged(context, "verify", [_after(context, plan, context.need("apply"))])


def _after(context: StepContext, plan: Plan, applied: dict[str, Any]) -> Frame:
    """What S3 says of a sample of what was to be deleted, and of what was to be put back."""
    sample, returned = _sample(context, plan), _returned(plan, applied)
    with KeptBlobs(context.settings) as kept:
        there = kept.james.heads([blob.key for blob in sample])
        missing = [blob.key for blob in sample if there[blob.key] is None]
        # Copies are kept for longer than this: apply began after the plan was made.
        copied = context.clock() < plan.made_at + plan.keep
        copies = kept.of_keys(missing) if copied else missing
        still_lost = sum(found is None for found in kept.james.heads(returned).values())
    as_planned = sum(
        (now := there[blob.key]) is not None
        and (now.size, modified_seconds(now.modified)) == (blob.size, blob.modified_s)
        for blob in sample
    )
    gone_before = applied["skippedBy"].get(GONE, 0)
    untouched = applied["failed"] + applied["left"] + applied["skipped"] + applied["restored"]
    row = {
        "planned_still_there": as_planned,
        "deleted_without_copy": len(missing) - len(copies),
        "referred_to_and_missing": still_lost,
    }
    expect = [
        Expectation.between(
            "planned_still_there",
            0,
            untouched,
            "No planned blob is there as it was, but those that were not tried, or were put back.",
        ),
        Expectation.between(
            "deleted_without_copy", 0, gone_before, "Every deleted blob has its kept copy."
        ),
        Expectation.equal(
            "referred_to_and_missing", 0, "Every deleted blob that is referred to was put back."
        ),
    ]
    return Frame("after", [row], expect)


def _sample(context: StepContext, plan: Plan) -> list[Blob]:
    groups = plan.deletes[:: max(1, len(plan.deletes) // 10)]
    rows = read_groups(context.folder.artifacts, context.folder.file(FOLDER), groups)
    each = max(1, _MOST // max(1, len(groups)))
    return [blob for _, blobs in islice(rows, 10) for blob in blobs[:each]]


def _returned(plan: Plan, applied: dict[str, Any]) -> list[BlobId]:
    """A sample of the blobs that the plan puts back, and those that apply could not."""
    copies = plan.restores[:: max(1, len(plan.restores) // _MOST)]
    planned = [copy.key for place in copies if (copy := Kept.of(place, 0)) is not None]
    failed = [BlobId(each.partition(": ")[0]) for each in applied["notRestored"]]
    return list(dict.fromkeys([*planned, *failed]))
