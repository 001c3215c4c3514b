"""The gate over a plan: facts of the scans, and each row of the plan's files."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from mailslice.duties.blob_gc.gates import deletes, sources, totals, view
from mailslice.duties.blob_gc.orphans import DELETE, BlobWriter, PlannedBlob
from mailslice.duties.blob_gc.plan import GcPlan, Listing, SourceScan
from mailslice.engine.row_files import RowFile
from mailslice.maintenance.gates import gate_summary
from mailslice.maintenance.run_request import NO_QUEUE
from mailslice.model.errors import GateFailed
from mailslice.model.mail import BlobId
from tests.services.duties.running import without_pages
from tests.unit.duties.judging import IN_PROCESS, broken, run_of

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
GRACE, DELETE_AFTER = timedelta(hours=1), timedelta(days=1)
OLD_S = round((NOW - timedelta(days=9)).timestamp())
SCAN = {
    "source": "messageV3",
    "references": 90,
    "before": 100,
    "parts": 8,
    "read": 8,
    "twice": 0,
    "holes": 0,
}
LISTING = {"inventory": None, "wanted": 3, "read": 3, "twice": 0, "holes": 0}


@pytest.fixture
def context(tmp_path):
    """What a check needs of its run: a folder, and the engine of this process."""
    return run_of(tmp_path, "blob_gc", queue=NO_QUEUE, engine=IN_PROCESS, evaluator=without_pages)


def orphan(**changes):
    """A row that may go."""
    values = {"key": str(uuid4()), "size": 7, "modified_s": OLD_S, "since_ms": OLD_S * 1000}
    return PlannedBlob(**{**values, **changes})


def planned(context, rows, scan=None, listing=None, unread=(), live=0):
    writer = BlobWriter(context.folder.artifacts, context.folder.name, DELETE)
    for row in rows:
        writer.add(row)
    return GcPlan(
        run="r-1",
        bucket="b",
        made_at=NOW,
        grace=GRACE,
        delete_after=DELETE_AFTER,
        keep=timedelta(days=7),
        blobs=20,
        deletes=tuple(writer.close()),
        candidates=(),
        restores=RowFile("plan/restores.parquet", 0, "0-0-0"),
        scans=(SourceScan(**{**SCAN, **(scan or {})}),),
        listing=Listing(**{**LISTING, **(listing or {})}),
        unread_columns=tuple(unread),
        live_mails=live,
    )


def run_gate(context, plan, share=0.1):
    frames = [
        sources(plan, context.settings, 0.5),
        view(plan, context.settings, 0.5),
        totals(plan, share),
        deletes(context, plan),
    ]
    return gate_summary(context, "check", frames)


def test_a_plan_that_is_right_passes_and_so_does_one_that_deletes_nothing(context):
    assert run_gate(context, planned(context, [orphan(), orphan()]))["success"]
    assert run_gate(context, planned(context, []))["success"]


KEY = str(uuid4())


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([orphan(key=BlobId(KEY)), orphan(key=BlobId(KEY), size=8)], "No blob is to go twice"),
        ([orphan(key=BlobId("readme.txt"))], "Every key is a blob id"),
        ([orphan(), orphan(key=BlobId(f"1_692_{KEY}"))], "no generation that is in use"),
        ([orphan(modified_s=round((NOW - GRACE / 2).timestamp()))], "written before the grace"),
        ([orphan(since_ms=round((NOW - DELETE_AFTER / 2).timestamp() * 1000))], "a candidate for"),
        ([orphan(), orphan(since_ms=None)], "Every row has a value of since_ms"),
    ],
)
def test_a_row_of_the_plans_files_that_must_not_go_is_refused(context, rows, sentence):
    with pytest.raises(GateFailed, match=sentence):
        run_gate(context, planned(context, rows))


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"scan": {"read": 7}}, "an unread one is not an empty one"),
        ({"scan": {"twice": 1}}, "No part of a source was counted twice"),
        ({"scan": {"holes": 1}}, "tile the ring"),
        ({"scan": {"references": 49}}, r"lost more than 0\.5 of its references"),
        ({"listing": {"read": 2}}, "Every range of keys was listed to its end"),
        ({"listing": {"twice": 1}}, "No range of keys was listed twice"),
        ({"listing": {"holes": 1}}, "cover every key"),
        ({"unread": ["avatars.blobid"]}, r"not: avatars\.blobid"),
    ],
)
def test_a_scan_that_was_not_whole_is_refused_by_the_sentence(context, facts, sentence):
    with pytest.raises(GateFailed, match=sentence):
        run_gate(context, planned(context, [orphan()], **facts))


BUSY = {"source": "enqueuedMailsV4", "before": 1_000_000, "cleaned": 7_000_000}
"""A week of a queue whose cleanups deleted each night as many rows as there had been."""


@pytest.mark.parametrize("references", [0, 1998])
def test_a_view_that_lost_live_mails_is_refused_however_much_was_cleaned(context, references):
    plan = planned(context, [orphan()], scan={**BUSY, "references": references}, live=1999)
    with pytest.raises(GateFailed, match=r"two references for each of 1999 live mails"):
        run_gate(context, plan)


@pytest.mark.parametrize(("references", "live"), [(0, 0), (1999, 1999), (9, 2)])
def test_a_view_that_has_its_live_mails_passes(context, references, live):
    plan = planned(context, [orphan()], scan={**BUSY, "references": references}, live=live)
    assert run_gate(context, plan)["success"]


def test_a_view_that_others_clean_may_lose_its_mails(context):
    plan = planned(context, [], scan={**BUSY, "references": 0}, live=9)
    gc = context.settings.gc.model_copy(update={"volatile_sources": ("EnqueuedMailsV4",)})
    assert broken(view(plan, context.settings, 0.5)) == {"view_references"}
    assert not broken(view(plan, context.settings.model_copy(update={"gc": gc}), 0.5))


def test_a_view_that_is_not_read_any_more_has_none_of_its_live_mails(context):
    gone = {"source": "enqueuedMailsV4", "references": 0, "before": None, "vanished": True}
    with pytest.raises(GateFailed, match="view_references is 0"):
        run_gate(context, planned(context, [], scan=gone, live=1))
    assert run_gate(context, planned(context, [], scan=gone))["success"]


def test_more_than_the_share_is_refused(context):
    with pytest.raises(GateFailed, match=r"At most 0\.1 of all blobs"):
        run_gate(context, planned(context, [orphan() for _ in range(3)]))
