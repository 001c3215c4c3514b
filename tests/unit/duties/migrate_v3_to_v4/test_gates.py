"""What the gates of a migration stop, by the plan's own files, and what its apply refuses."""

import uuid
from dataclasses import astuple
from types import SimpleNamespace

import pyarrow as pa
import pytest

from mailslice.duties.migrate_v3_to_v4.copier import Copier
from mailslice.duties.migrate_v3_to_v4.duty import DUTY, MigrationPlan
from mailslice.duties.migrate_v3_to_v4.source import PlannedGroup, Source
from mailslice.engine.frames import InProcess
from mailslice.engine.row_files import RowWriter
from mailslice.maintenance.gates import Reads
from mailslice.maintenance.result import Result, Summaries
from mailslice.maintenance.runner import partial_report
from mailslice.model.errors import PlanRefused
from tests.unit.duties.judging import NOW, QUEUE, broken, rewritten, run_of

FILE = "plan/rows-1.parquet"


@pytest.fixture
def run(tmp_path):
    return run_of(tmp_path, "migrate_v3_to_v4", engine=SimpleNamespace(session=InProcess))


@pytest.fixture
def group(run):
    """Three rows of one partition."""
    columns = {
        "slice_ms": [0] * 3,
        "bucket": [0] * 3,
        "enqueue_id": [str(uuid.uuid4()) for _ in range(3)],
        "written_us": [5] * 3,
    }
    writer = RowWriter(run.folder.artifacts, run.folder.name, FILE)
    writer.add(pa.table(columns))
    writer.close()
    (group,) = writer.groups
    return PlannedGroup(*astuple(group), 0, 0)


@pytest.fixture
def plan(run, group):
    return MigrationPlan(
        run="r-1",
        queue="spool",
        made_at=NOW,
        rows=3,
        groups=run.write_rows("groups", [group], PlannedGroup),
        row_files=(FILE,),
        reads=Reads(1, 1, 0),
    )


def edited(run, change):
    rewritten(run.folder.artifacts.path(run.folder.file(FILE)), change)


def test_a_plan_of_rows_of_v3_passes(run, plan):
    assert broken(*DUTY.check(run, plan)) == set()
    assert plan.files() == {FILE, "plan/groups.parquet"}


@pytest.mark.parametrize(
    ("change", "columns"),
    [
        (lambda rows: rows[:2], {"rows"}),
        (lambda rows: [rows[0], rows[0], rows[1]], {"slice_ms, bucket, enqueue_id"}),
        (lambda rows: [{**row, "written_us": 0} for row in rows], {"written_us"}),
        (lambda rows: [{**rows[0], "written_us": None}, *rows[1:]], {"written_us"}),
    ],
)
def test_each_rule_fails_by_rows_of_the_plans_files(run, plan, change, columns):
    edited(run, change)
    assert broken(*DUTY.check(run, plan)) == columns


@pytest.mark.parametrize(
    ("reads", "columns"),
    [(Reads(1, 0, 0), {"places_read"}), (Reads(2, 2, 1), {"places_read_twice"})],
)
def test_a_partition_that_was_not_read_or_twice_fails(run, plan, reads, columns):
    assert broken(*DUTY.check(run, plan.model_copy(update={"reads": reads}))) == columns


def test_what_was_read_is_inside_the_digest(plan):
    others = [plan.model_copy(update={"reads": Reads(*reads)}) for reads in ((1, 0, 0), (2, 1, 0))]
    assert len({plan.digest, *(other.digest for other in others)}) == 3


def test_rows_that_were_changed_since_the_plan_are_not_copied(run, group, monkeypatch):
    """Before a store is asked anything."""
    monkeypatch.setattr("mailslice.duties.migrate_v3_to_v4.copier.stores_of", lambda _: None)
    edited(run, lambda rows: [{**rows[0], "enqueue_id": str(uuid.uuid4())}, *rows[1:]])
    source = Source(run.settings, QUEUE, run.folder.artifacts, run.folder.name)
    with pytest.raises(PlanRefused, match="was changed"):
        Copier(source, NOW - NOW).copy(InProcess(), [group])


def summaries(run, plan, result, **verified):
    summary = {"decided": plan.as_json(), "planDigest": plan.digest, "planned": plan.planned}
    run.folder.write_json("plan.json", {**summary, "message": "3 rows", "skippedBy": {"x": 2}})
    run.folder.write_json("applied.json", result.as_json())
    run.folder.write_json("verify.json", verified)
    return Summaries.load(run.folder, ())


def test_a_report_adds_up_what_plan_and_apply_skipped(run, plan):
    result = Result(plan.digest, 3, 2, {"left V3 since the plan": 1})
    steps = summaries(run, plan, result, verified=2, newer=1, missing=0, slices=[{"live": 2}])
    report = partial_report(DUTY, run.folder)
    assert (report["copied"], report["skipped"], report["newer"]) == (2, 3, 1)
    assert report["skippedBy"] == {"x": 2, "left V3 since the plan": 1}
    assert report["slices"] == [{"live": 2}]
    status, words = DUTY.outcome(run, steps)
    assert (status, words.split("; ")) == (
        "done",
        [
            "2 rows copied, 2 verified in both tables",
            "1 were written since the plan: run it again for them",
            "1 skipped: left V3 since the plan",
        ],
    )


def test_copies_that_a_delete_covers_fail_the_run(run, plan):
    result = Result(plan.digest, 3, 2, failed=1, failures={"a": "b"})
    status, words = DUTY.outcome(run, summaries(run, plan, result, verified=2, newer=0))
    assert (status, words.partition(" are ")[0]) == ("failed", "1 rows")
