"""Which rows go, and which never do (I1, I8)."""

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from mailslice.admin import queues
from mailslice.duties.queue_cleanup import duty, reads
from mailslice.duties.queue_cleanup import view as views
from mailslice.maintenance.artifacts import RunFolder, artifacts
from mailslice.maintenance.run import Run
from mailslice.model.errors import BadInput, StoreUnavailable
from mailslice.model.mail import EnqueueId, Partition, QueueName
from mailslice.model.slices import slice_start
from mailslice.stores import open_stores
from mailslice.stores.cassandra.enqueued_mails import EnqueuedMails
from tests.services.duties.queue_cleanup.conftest import View, micros, store_configuration


def test_a_stuck_mail_pins_browse_start_and_nothing_else(view, with_spark):
    view.start_at(0)
    stuck = view.insert(0, dead=False)
    for number in (1, 2, 5):
        view.insert(number, dead=True)
    report = view.clean()
    assert view.browse_start == view.at(0)
    assert (report["applied"], report["after"]["live"], report["after"]["dead"]) == (3, 1, 0)
    assert [view.rows(number) for number in (0, 1, 2, 5)] == [{stuck}, set(), set(), set()]


def test_a_slice_with_one_live_row_keeps_all_its_rows(view):
    view.start_at(0)
    dead, live = view.insert(0, dead=True), view.insert(0, dead=False)
    report = view.clean()
    assert view.rows(0) == {dead, live}
    assert (report["planned"], report["after"]["dead"]) == (0, 1)
    assert view.is_marked(dead)


def test_a_slice_is_planned_over_all_its_buckets(own_view):
    store_configuration(own_view, timedelta(seconds=10), buckets=3)
    own_view.start_at(0)
    dead = own_view.insert(0, dead=True, bucket=0)
    live = own_view.insert(0, dead=False, bucket=2)
    own_view.insert(1, dead=True, bucket=1)
    own_view.insert(1, dead=True, bucket=2)
    report = own_view.clean()
    assert own_view.rows(0, 0) | own_view.rows(0, 2) == {dead, live}
    assert own_view.rows(1, 1) | own_view.rows(1, 2) == set()
    assert report["applied"] == 2


def test_a_slice_that_is_not_closed_stays(view):
    view.params = {"grace": "10m"}
    view.start_at(0)
    dead = view.insert(0, dead=True)
    report = view.clean()
    assert view.rows(0) == {dead}
    assert report["status"] == "nothing to do"
    assert view.browse_start == view.at(0)


def test_a_smaller_window_leaves_slices_open_for_nodes_that_still_have_the_larger_one(make_fresh):
    """History 600 s, then 10 s.

    A slice of today's window that ended minutes ago is open while a node of James may still write
    with 600 s.
    """
    fresh = make_fresh().but(MAILSLICE_QUEUE_SLICE_WINDOW="600s", MAILSLICE_QUEUE_SHARED="false")
    with open_stores(fresh.settings) as stores:
        queue = queues.create(stores, "first")
        old = View(
            fresh.settings,
            stores,
            queue,
            base=slice_start(datetime.now(UTC), timedelta(seconds=600)) - timedelta(seconds=1800),
        )
        store_configuration(old, timedelta(seconds=10))
        old.start_at(0)
        closed, still_open = (
            old.insert(0, dead=True),
            old.insert(int((datetime.now(UTC) - old.base) / timedelta(seconds=10)) - 20, dead=True),
        )
        request = old.request()
        shown = old.steps(request, "plan")
        plan = RunFolder(
            artifacts(old.settings), request.duty, request.queue, request.run
        ).read_json("plan.json")
        assert "slices" not in shown  # long lists stay in the file
        assert (
            plan["decided"]["shape"]["window"],
            plan["decided"]["shape"]["largestWindow"],
            plan["planned"],
        ) == (
            10,
            600,
            1,
        )
        assert datetime.fromisoformat(plan["newBrowseStart"]).timestamp() % 600 == 0
        old.steps(request, "check", "apply", "verify")
        there = {
            row.enqueue_id
            for world in stores.tables.v4.partitions(queue)
            for row in stores.tables.v4.ids(queue, world)
        }
        assert there == {still_open}
        assert closed not in there

        # An operator says that no node of James has the larger window any more.
        # Today's window closes the slice.
        restarted = {"restarted": (datetime.now(UTC) - timedelta(seconds=3)).isoformat()}
        confirmed = old.clean(**restarted)
        assert (confirmed["applied"], list(stores.tables.v4.partitions(queue))) == (1, [])
        assert old.browse_start >= slice_start(
            datetime.now(UTC), timedelta(seconds=10)
        ) - timedelta(seconds=60)


def test_a_restart_that_lies_ahead_is_refused(view):
    view.start_at(0)
    with pytest.raises(BadInput, match=r"restarted=.* lies ahead"):
        view.clean(restarted=(datetime.now(UTC) + timedelta(minutes=1)).isoformat())


def test_a_marked_row_without_a_write_time_keeps_its_slice(view):
    """Nothing bounds its delete: no column of it but the key was written."""
    view.start_at(0)
    bare, dead = EnqueueId(uuid.uuid4()), view.insert(1, dead=True)
    keyspace = view.settings.cassandra.keyspace
    insert = view.stores.cassandra.prepare(
        f"INSERT INTO {keyspace}.enqueuedmailsv4 "
        "(queuename, timerangestart, bucketid, enqueueid) VALUES (?, ?, 0, ?)"
    )
    view.stores.cassandra.execute(insert, [view.queue, int(view.at(0).timestamp() * 1000), bare])
    view.mark(bare)
    report = view.clean()
    assert (report["applied"], report["undated"]) == (1, 1)
    assert view.is_marked(bare)
    assert not view.is_marked(dead)
    assert {
        row.enqueue_id for row in view.stores.tables.v4.ids(view.queue, Partition(view.at(0), 0))
    } == {bare}


def test_a_row_of_a_clock_that_is_ahead_keeps_its_slice_until_that_time_has_come(view):
    """The delete's write time would be in the future.

    A late insert of today would not survive it.
    """
    view.start_at(0)
    ahead = view.insert(0, dead=True)
    row = view.stores.tables.v4.row(view.queue, Partition(view.at(0), 0), ahead)
    in_a_while = micros(datetime.now(UTC) + timedelta(minutes=5))
    view.stores.tables.v4.copy_many([(row, in_a_while)])
    view.insert(1, dead=True)
    report = view.clean()
    assert (report["applied"], report["undated"], view.rows(0), view.rows(1)) == (
        1,
        1,
        {ahead},
        set(),
    )
    late = view.insert(0, dead=False)
    view.clean()
    assert view.rows(0) == {ahead, late}


def test_rows_of_the_old_window_are_found_after_it_became_smaller(own_view):
    own_view.start_at(0)
    own_view.insert(0, dead=True)
    store_configuration(own_view, timedelta(seconds=5))
    own_view.insert(2, dead=True)
    report = own_view.clean()
    assert (report["applied"], own_view.rows(0), own_view.rows(2)) == (2, set(), set())


def test_a_row_without_a_mark_behind_browse_start_is_never_deleted_and_never_counted_live(view):
    view.start_at(3, content=0)
    unproven = view.insert(1, dead=False)
    beside = view.insert(1, dead=True)
    view.insert(2, dead=True)
    report = view.clean()
    assert view.rows(1) == {unproven, beside}
    assert view.rows(2) == set()
    assert (report["unproven"], report["before"]["live"], report["before"]["dead"]) == (1, 0, 2)
    assert view.content_start == view.at(1)


def test_a_clear_of_james_that_stopped_half_way_leaves_rows_that_are_not_live(view):
    """James' clear writes browseStart, then deletes marks, then rows.

    Here it died before the rows.
    """
    view.start_at(0)
    rows = {view.insert(number, dead=True) for number in (0, 1)}
    view.james_writes_browse_start(view.at(5))
    for each in rows:
        view.unmark(each)
    report = view.clean()
    assert view.browse_start >= view.at(5)
    assert report["before"]["live"] == 0
    assert view.rows(0) | view.rows(1) == rows
    assert view.content_start == view.at(0)


def test_james_clearing_between_plan_and_apply_loses_nothing_and_hides_nothing(view):
    view.start_at(0)
    view.insert(0, dead=True)
    half = view.insert(1, dead=True)
    live = view.insert(8, dead=False)
    request = view.request()
    view.steps(request, "plan", "check")
    view.james_writes_browse_start(view.at(8))
    view.unmark(half)
    view.steps(request, "apply", "verify")
    report = view.steps(request, "report")
    assert report["skippedBy"] == {"live again": 1}
    assert view.rows(1) == {half}
    assert view.rows(8) == {live}
    assert view.content_start == view.at(1)


def test_a_late_insert_into_a_planned_slice_keeps_the_whole_slice(view):
    view.start_at(0)
    planned = view.insert(0, dead=True)
    view.insert(1, dead=True)
    request = view.request()
    view.steps(request, "plan", "check")
    late = view.insert(0, dead=False)
    view.steps(request, "apply", "verify")
    report = view.steps(request, "report")
    assert report["skippedBy"] == {"changed since plan": 1}
    assert (report["planned"], report["applied"], report["skipped"], report["failed"]) == (
        2,
        1,
        1,
        0,
    )
    assert view.rows(0) == {planned, late}
    assert view.is_marked(planned)
    assert view.browse_start == view.at(0)


def test_a_late_insert_with_a_slow_clock_after_the_second_read_survives_the_delete(
    view, monkeypatch
):
    view.start_at(0)
    view.insert(0, dead=True)
    late = []
    delete = duty.delete_partitions

    def insert_first(*args, **kwargs):
        late.append(view.insert(0, dead=False))
        return delete(*args, **kwargs)

    monkeypatch.setattr(duty, "delete_partitions", insert_first)
    report = view.clean()
    assert view.rows(0) == set(late)
    assert report["applied"] == 1
    assert view.content_start == view.at(0)  # it keeps the slice in reach of the next run


def test_a_partition_is_deleted_up_to_the_greatest_write_time_of_its_planned_rows(
    view, monkeypatch
):
    view.start_at(0)
    view.insert(0, dead=True)
    view.insert(0, dead=True)
    newest = max(
        row.written_us for row in view.stores.tables.v4.ids(view.queue, Partition(view.at(0), 0))
    )
    seen = []
    delete = EnqueuedMails.delete_partition_future

    def remember(self, queue, world, timestamp_us):
        seen.append((world, timestamp_us))
        return delete(self, queue, world, timestamp_us)

    monkeypatch.setattr(EnqueuedMails, "delete_partition_future", remember)
    view.clean()
    assert seen == [(Partition(view.at(0), 0), newest)]


def test_a_mark_that_is_gone_since_the_plan_keeps_its_slice(view):
    view.start_at(0)
    once = view.insert(0, dead=True)
    request = view.request()
    view.steps(request, "plan", "check")
    view.unmark(once)
    view.steps(request, "apply", "verify")
    assert view.steps(request, "report")["skippedBy"] == {"live again": 1}
    assert view.rows(0) == {once}
    assert view.browse_start == view.at(0)


def test_a_delete_that_fails_is_counted_and_stops_no_other(view, monkeypatch):
    view.start_at(0)
    first, second = view.insert(0, dead=True), view.insert(1, dead=True)
    delete = EnqueuedMails.delete_partition_future

    def fail_once(self, queue, world, timestamp_us):
        future = delete(
            self,
            queue,
            world if world.slice_start != view.at(0) else Partition(view.at(25), 0),
            timestamp_us,
        )
        if world.slice_start == view.at(0):
            future.result()
            future.result = lambda: (_ for _ in ()).throw(StoreUnavailable("no answer"))
        return future

    monkeypatch.setattr(EnqueuedMails, "delete_partition_future", fail_once)
    report = view.clean()
    assert (report["applied"], report["failed"], report["status"]) == (1, 1, "failed")
    assert view.rows(0) == {first}
    assert (view.is_marked(first), view.is_marked(second)) == (True, False)
    assert view.content_start == view.at(0)
    monkeypatch.undo()
    assert view.clean()["applied"] == 1
    assert (view.rows(0), view.is_marked(first)) == (set(), False)


def test_a_dry_run_changes_nothing(view):
    view.start_at(0)
    dead = view.insert(0, dead=True)
    report = view.clean(dry_run=True, reason="just looking")
    assert (report["status"], report["planned"], report["applied"], report["reason"]) == (
        "dry run",
        1,
        0,
        "just looking",
    )
    assert (view.rows(0), view.browse_start, view.is_marked(dead)) == ({dead}, view.at(0), True)


def test_a_clean_queue_is_a_run_that_says_so(view):
    view.start_at(0)
    view.insert(0, dead=False)
    report = view.clean()
    assert report["status"] == "nothing to do"
    assert report["message"].startswith("nothing to do")


@pytest.mark.parametrize("most_keys", [0, 50_000])
def test_slices_are_found_by_key_or_by_a_scan_of_the_keys(view, monkeypatch, most_keys):
    monkeypatch.setattr(views, "MAX_KEYS", most_keys)
    view.start_at(0)
    view.insert(0, dead=True)
    live = view.insert(4, dead=False)
    report = view.clean()
    assert (report["applied"], view.browse_start, view.content_start) == (1, view.at(4), view.at(4))
    assert view.rows(4) == {live}


def test_closed_slices_are_remembered_with_their_survivors(view):
    view.start_at(0)
    live = view.insert(2, dead=False)
    view.insert(2, dead=True)
    view.clean()
    (remembered,) = view.stores.own.slice_statistics.list(view.queue)
    assert (remembered.slice_start, remembered.live, remembered.dead, remembered.survivors) == (
        view.at(2),
        1,
        1,
        (live,),
    )


def test_a_row_of_another_queue_in_the_same_slice_is_not_touched(view):
    other = replace(view, queue=QueueName(f"{view.queue}-other"))
    view.start_at(0)
    other.start_at(0)
    view.insert(0, dead=True)
    foreign = other.insert(0, dead=True)
    view.clean()
    assert other.rows(0) == {foreign}
    assert other.is_marked(foreign)
    assert other.browse_start == view.at(0)


def test_a_range_cleans_its_slices_and_leaves_the_starts(view):
    view.start_at(0)
    outside, _ = view.insert(0, dead=True), view.insert(2, dead=True)
    run = {"slices_from": view.at(1).isoformat(), "slices_before": view.at(3).isoformat()}
    report = view.clean(**run)
    assert (report["applied"], view.rows(0), view.rows(2)) == (1, {outside}, set())
    assert (view.browse_start, view.content_start) == (view.at(0), view.at(0))
    again = view.clean(**run)
    assert (again["status"], again["planned"]) == ("nothing to do", 0)
    assert "clean already" in again["message"]


def test_many_rows_in_one_slice_are_compared_in_their_own_order(view, with_spark):
    """More than one page and one row group would need 50,000 rows.

    6,000 are two pages, whose order the walk relies on.
    """
    view.start_at(0)
    world = Partition(view.at(0), 0)
    ids = [uuid.uuid4() for _ in range(6000)]
    session = view.stores.cassandra
    keyspace = view.settings.cassandra.keyspace
    insert = session.prepare(
        f"INSERT INTO {keyspace}.enqueuedmailsv4 "
        "(queuename, timerangestart, bucketid, enqueueid, enqueuedtime) VALUES (?, ?, ?, ?, ?)"
    )
    millis = int(world.slice_start.timestamp() * 1000)
    session.run_many(insert, ([view.queue, millis, 0, one, millis] for one in ids))
    view.stores.tables.deleted.mark_many(view.queue, ids)
    report = view.clean()
    assert (report["planned"], report["applied"], report["skipped"]) == (6000, 6000, 0)
    assert (view.rows(0), view.stores.tables.deleted.marked(view.queue, ids)) == (set(), set())


def test_a_run_whose_time_is_over_takes_nothing_new_and_the_next_one_goes_on(view):
    view.start_at(0)
    ids = [view.insert(number, dead=True) for number in range(4) for _ in range(3)]
    report = view.clean(time_limit="0s")
    assert (report["status"], report["planned"], report["applied"], report["skippedBy"]) == (
        "done",
        12,
        0,
        {"time limit": 12},
    )
    assert all(view.rows(number) for number in range(4))
    report = view.clean()
    assert (report["planned"], report["applied"], report["failed"]) == (12, 12, 0)
    assert not any(view.is_marked(each) for each in ids)


def test_a_run_whose_reads_would_take_all_its_time_deletes_what_it_has_read(
    view, with_spark, monkeypatch
):
    """Each slice that apply reads takes four of twenty seconds."""
    read_slices = []
    compare = reads.compare

    def timed(spark, spec, keys):
        read_slices.extend({key.slice_start for key in keys})
        return compare(spark, spec, keys)

    monkeypatch.setattr(reads, "compare", timed)
    monkeypatch.setattr(Run, "time_left", lambda _: 20.0 - 4 * len(read_slices))
    view.start_at(0)
    ids = [view.insert(number, dead=True) for number in range(8)]
    live = view.insert(8, dead=False)
    report = view.clean()
    first = report["applied"]
    assert 0 < first < 8
    assert (report["status"], report["skippedBy"]) == ("done", {"time limit": 8 - first})
    assert [len(view.rows(number)) for number in range(8)] == [0] * first + [1] * (8 - first)
    assert (view.browse_start, view.content_start) == (view.at(first), view.at(first))
    assert all(view.is_marked(each) for each in ids)
    monkeypatch.undo()
    report = view.clean()
    assert (report["applied"], report["after"]["live"], view.rows(8)) == (8 - first, 1, {live})
    assert (view.browse_start, view.content_start) == (view.at(8), view.at(8))
    assert [view.is_marked(each) for each in ids] == [True] * first + [False] * (8 - first)


def test_of_two_runs_at_once_the_second_says_that_the_first_was_faster(shared_view):
    view = shared_view
    view.start_at(0)
    ids = [view.insert(number, dead=True) for number in (0, 1)]
    first, second = view.request(), view.request()
    for request in (first, second):
        view.steps(request, "plan", "check")
    view.steps(first, "apply", "verify")
    left = view.insert(1, dead=True)
    view.steps(second, "apply", "verify")
    reports = [view.steps(request, "report") for request in (first, second)]
    assert [(report["planned"], report["applied"], report["skippedBy"]) for report in reports] == [
        (2, 2, {}),
        (2, 0, {"gone since plan": 1, "changed since plan": 1}),
    ]
    assert reports[1]["marks"]["waiting"] == 2  # those of the first run, once
    assert view.rows(1) == {left}
    assert all(view.is_marked(each) for each in ids)
