"""The gate fails for what is wrong in the plan's files, in the stores, or beside what is usual."""

import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mailslice.duties.queue_cleanup import decide, gates, plan, planner
from mailslice.engine import partition_scan as spark_slices
from mailslice.maintenance.artifacts import RunFolder, artifacts
from mailslice.model.errors import BadInput, GateFailed
from mailslice.model.mail import Partition
from tests.services.duties.queue_cleanup.conftest import micros


@pytest.fixture
def full(view):
    """(view with dead rows in slices 0 and 1 and a live one in 3, a request, the dead ids)."""
    view.start_at(0)
    dead = [view.insert(number, dead=True) for number in (0, 0, 1)]
    view.insert(3, dead=False)
    return view, view.request(), dead


def planned(view, request, monkeypatch, change):
    """The plan step, of which `change` makes other rows, (enqueue ids, write times)."""
    add = spark_slices.PlanWriter.add

    def changed(self, table, slice_ms, bucket, chunks):
        return add(self, *change(table, slice_ms, bucket, list(chunks)))

    with monkeypatch.context() as patch:
        patch.setattr(spark_slices.PlanWriter, "add", changed)
        view.steps(request, "plan")


def test_a_plan_as_it_should_be_passes(full):
    view, request, _ = full
    view.steps(request, "plan")
    assert view.steps(request, "check")["success"]


def later(table, slice_ms, bucket, chunks):
    written = micros(datetime.now(UTC) + timedelta(hours=1))
    return table, slice_ms, bucket, [(ids, times * 0 + written) for ids, times in chunks]


def undated(table, slice_ms, bucket, chunks):
    return table, slice_ms, bucket, [(ids, times * 0) for ids, times in chunks]


def twice(table, slice_ms, bucket, chunks):
    return table, slice_ms, bucket, [(ids.repeat(2, axis=0), t.repeat(2)) for ids, t in chunks]


def elsewhere(table, slice_ms, bucket, chunks):
    return "enqueuedmailsv9", slice_ms, bucket, chunks


def no_bucket(table, slice_ms, bucket, chunks):
    return table, slice_ms, 77, chunks


def still_open(table, slice_ms, bucket, chunks):
    return table, slice_ms + 3_600_000, bucket, chunks


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (later, "written before the plan was made"),
        (undated, "written before the plan was made"),
        (twice, "No row is planned twice"),
        (elsewhere, "Every row is in a table of the view"),
        (no_bucket, "Every row is in a bucket of the view"),
        (still_open, "Every planned slice is closed"),
    ],
)
def test_rows_of_the_plans_files_that_no_cleanup_may_delete_fail(full, monkeypatch, change, words):
    view, request, _ = full
    with monkeypatch.context() as patch:
        if (
            change is twice
        ):  # the sum of the plan says what its files hold, as a plan step that is wrong would
            patch.setattr(
                plan.PlannedPartition, "of", _as_many_as_its_files(plan.PlannedPartition.of)
            )
        planned(view, request, patch, change)
    with pytest.raises(GateFailed, match=words):
        view.steps(request, "check")


def test_a_file_with_fewer_rows_than_were_planned_fails(full):
    view, request, _ = full
    view.steps(request, "plan")
    folder = RunFolder(artifacts(view.settings), request.duty, request.queue, request.run)
    for path in Path(folder.uri).rglob("part-*.parquet"):
        file = pq.ParquetFile(path)
        groups = [file.read_row_group(number) for number in range(file.num_row_groups)]
        with pq.ParquetWriter(path, file.schema_arrow) as writer:
            for group in groups:
                writer.write_table(group.slice(0, 1))
    with pytest.raises(GateFailed, match="as many rows as were planned"):
        view.steps(request, "check")


def _as_many_as_its_files(of):
    def world(found):
        from dataclasses import replace

        return replace(of(found), rows=found.digest.count)

    return world


@pytest.mark.parametrize("with_real_spark", [pytest.param(True, marks=pytest.mark.soak), False])
def test_a_planned_mail_that_is_not_marked_now_fails(full, request, with_real_spark):
    if with_real_spark:
        request.getfixturevalue("with_spark")
    view, run, dead = full
    view.steps(run, "plan")
    view.unmark(dead[2])
    with pytest.raises(GateFailed, match="sampled_unmarked is 1 "):
        view.steps(run, "check")


def test_james_cleaning_up_behind_a_start_that_it_moves_on_is_no_alarm(full):
    """It moves browseStart, drops marks, then rows."""
    view, run, dead = full
    view.steps(run, "plan")
    view.james_writes_browse_start(view.at(2))
    for one in dead:
        view.unmark(one)
    assert view.steps(run, "check")["success"]
    for number in (0, 1):
        world = Partition(view.at(number), 0)
        view.stores.tables.v4.delete_partition_future(
            view.queue, world, micros(datetime.now(UTC))
        ).result()
    report = view.steps(run, "apply", "verify", "report")
    assert (report["status"], report["applied"]) == ("done", 0)


def test_another_cleanup_that_was_faster_is_no_alarm(full):
    view, run, _ = full
    view.steps(run, "plan")
    assert view.clean()["applied"] == 3
    assert view.steps(run, "check")["success"]


def test_a_planned_slice_that_is_open_now_fails(full, monkeypatch):
    """The plan's own idea of it does not count."""
    view, request, _ = full
    number = int((datetime.now(UTC) - view.base) / timedelta(seconds=10))
    view.insert(number, dead=True)
    with monkeypatch.context() as patch:
        patch.setattr(decide, "closed", lambda *_, **__: True)
        view.steps(request, "plan")
    with pytest.raises(GateFailed, match="slice is closed"):
        view.steps(request, "check")


def test_a_slice_that_is_closed_by_the_planning_clock_alone_fails(view):
    """That of another host, which is ahead by less than a plan tolerates."""
    request, now = view.request(grace="10m"), datetime.now(UTC)
    number = (now - timedelta(minutes=9) - view.base) // timedelta(seconds=10)
    view.start_at(number)
    view.insert(number, dead=True)
    view.steps(request, "plan", clock=lambda: now + timedelta(minutes=2))
    with pytest.raises(GateFailed, match="Of a random sample, every slice is closed now"):
        view.steps(request, "check")


def test_a_plan_of_yesterday_fails(full):
    view, request, _ = full
    view.steps(request, "plan")
    tomorrow = datetime.now(UTC) + timedelta(hours=25)
    with pytest.raises(GateFailed, match="not older than"):
        view.steps(request, "check", clock=lambda: tomorrow)


def test_a_browse_start_that_would_pass_a_live_mail_fails(full, monkeypatch):
    view, request, _ = full
    with monkeypatch.context() as patch:
        patch.setattr(decide, "oldest_live", lambda *_: None)
        view.steps(request, "plan")
    with pytest.raises(GateFailed, match="does not pass a slice with a live mail"):
        view.steps(request, "check")


@pytest.mark.parametrize(("found", "words"), [(-1, "an unread one is not"), (1, "counted twice")])
def test_a_place_that_was_not_read_or_read_twice_stops_the_run(full, monkeypatch, found, words):
    view, request, _ = full
    scan = planner.scan

    def other(*args):
        partitions = scan(*args)
        if found < 0:
            return partitions[:found]
        one, other = [each for each in partitions if not each.digest.count][:2]
        return [one if each is other else each for each in partitions]

    with monkeypatch.context() as patch:
        patch.setattr(planner, "scan", other)
        view.steps(request, "plan")
    with pytest.raises(GateFailed, match=words):
        view.steps(request, "check")


def test_far_more_rows_than_usual_wait_for_a_person(view, monkeypatch):
    monkeypatch.setattr(gates, "MANY", 1)
    view.start_at(0)
    view.insert(9, dead=False)
    for number in (10, 11, 12):
        view.insert(number, dead=True)
        assert view.clean()["applied"] == 1
    for _ in range(40):
        view.insert(13, dead=True)
    with pytest.raises(GateFailed, match="at most 10 times what the last runs did"):
        view.clean()
    with pytest.raises(BadInput, match="reason"):
        view.clean(unusual=True)
    report = view.clean(unusual=True, reason="a week without cleanups")
    assert (report["status"], report["applied"]) == ("done", 40)


def test_a_mail_with_rows_in_two_slices_is_no_double(view):
    view.start_at(0)
    twice_there = view.insert(0, dead=True)
    view.insert(1, dead=True, enqueue_id=twice_there)
    view.insert(2, dead=True, enqueue_id=uuid.uuid4())
    assert view.clean()["applied"] == 3
