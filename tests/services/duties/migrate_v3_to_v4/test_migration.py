"""migrate_v3_to_v4 on a real Cassandra, through the whole road.

What is copied, what is left out, what a second run finds.
"""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from mailslice.admin import queues
from mailslice.maintenance.lock import LockHeld, locked
from mailslice.maintenance.run_request import RunRequest
from mailslice.model.clock import system_clock
from mailslice.model.errors import ClockSkew, GateFailed, PlanRefused, Refused, UnknownQueue
from mailslice.model.mail import Partition, QueueName, RecipientHeader
from mailslice.stores import open_stores
from mailslice.stores.cassandra.ddl import tables_of
from tests.services.duties.migrate_v3_to_v4.conftest import OldView, settings_of
from tests.services.duties.world import run_all_in_process

FULL = {
    "attributes": {"a": b'{"serializer":"StringSerializer","value":"x"}'},
    "per_recipient_headers": (RecipientHeader("c@d.example", "X-A", "1"),),
    "error_message": "e",
    "last_updated_ns": 1795208361_310000000,
    "remote_addr": "10.0.0.1",
    "remote_host": "h.example",
}


def planted(old):
    """(live rows, rows that are not to be copied), over three slices and two buckets."""
    old.start_at(-3)
    live = [
        old.insert(-3, name="first"),
        old.insert(-1),
        old.insert(0, **FULL),
        old.insert(0, sender=None),
        old.insert(1, recipients=()),
    ]
    others = [old.insert(-3, dead=True), old.insert(0, dead=True), old.insert(-5)]
    return live, others


def test_live_rows_and_they_alone_are_copied_whole_with_their_times_and_counted_once(
    old, with_spark
):
    live, _ = planted(old)
    before = old.v3
    report = old.run()
    assert report["status"] == "done"
    assert (
        report["copied"],
        report["skipped"],
        report["verified"],
        report["failed"],
        report["left"],
    ) == (5, 3, 5, 0, 0)
    assert report["skippedBy"] == {"deleted mark": 2, "behind browseStart": 1}
    assert old.v4 == {row.enqueue_id: before[row.enqueue_id] for row in live}
    assert old.v3 == before
    assert [
        (each["live"], each["same"], each["v3"] == each["v4"]) for each in report["slices"]
    ] == [(1, 1, True), (1, 1, True), (2, 2, True), (1, 1, True)]
    assert old.stores.tables.browse_starts.get(old.queue).value == old.at(-3)
    assert old.stores.tables.content_starts.get(old.queue).value == old.at(-3)
    queue = old.mail_queue
    assert queue.size() == 5
    assert sorted(row.enqueue_id for row in queue.browse()) == sorted(
        row.enqueue_id for row in live
    )
    assert [(each.live, each.dead) for each in queue.slices()] == [(1, 1), (1, 0), (2, 1), (1, 0)]
    size = run_all_in_process(
        RunRequest("queue_size", old.queue, "size", params={"sample": False}), old.settings
    )
    assert (size["live"], size["dead"]) == (5, 2)
    again = old.run()
    assert (again["status"], again["copied"], again["verified"]) == ("nothing to do", 0, 5)
    assert again["skippedBy"] == {"deleted mark": 2, "in V4 already": 5, "behind browseStart": 1}
    assert "1 rows without a mark lie behind browseStart" in again["message"]


def test_repeated_it_adds_what_came_since_and_takes_over_what_was_rewritten(old):
    live, _ = planted(old)
    old.run()
    late = old.insert(-1)
    fewer = replace(
        live[2],
        item=replace(live[2].item, mail=replace(live[2].item.mail, recipients=("e@f.example",))),
    )
    old.stores.tables.v3.insert_future(fewer).result()
    report = old.run()
    assert (report["copied"], report["verified"], report["skippedBy"]["in V4 already"]) == (2, 6, 4)
    assert old.v4[late.enqueue_id] == old.v3[late.enqueue_id]
    assert old.v4[fewer.enqueue_id][0] == fewer


def test_what_is_newer_in_v4_stays(old):
    old.start_at(0)
    row = old.insert(0)
    request = old.request()
    old.steps(request, "plan", "check")
    newer = replace(
        row, item=replace(row.item, mail=replace(row.item.mail, recipients=("e@f.example",)))
    )
    old.stores.tables.v4.insert_future(newer).result()
    summary = old.steps(request, "apply", "verify")
    assert old.v4[row.enqueue_id][0] == newer
    assert (summary["newer"], summary["verified"]) == (1, 0)


def test_a_mail_deleted_after_the_plan_is_not_copied_and_one_deleted_after_its_copy_is_dead_in_both(
    old,
):
    old.start_at(0)
    first, second, third = (old.insert(0) for _ in range(3))
    request = old.request()
    old.steps(request, "plan", "check")
    old.mark(first)
    old.stores.tables.v3.delete_partition_future(
        old.queue, second.partition, 1
    ).result()  # before everything: nothing goes
    summary = old.steps(request, "apply")
    assert (summary["applied"], summary["skippedBy"]) == (2, {"deleted since the plan": 1})
    assert set(old.v4) == {second.enqueue_id, third.enqueue_id}
    old.mark(second)
    assert old.steps(request, "verify")["verified"] == 1
    assert old.mail_queue.size() == 1


def test_a_row_that_left_v3_or_fell_behind_browse_start_since_the_plan_is_not_copied(old):
    old.start_at(-3)
    early, gone, kept = old.insert(-3), old.insert(-1), old.insert(0)
    request = old.request()
    assert old.steps(request, "plan", "check")["planned"] == 3
    old.stores.tables.v3.delete_partition_future(
        old.queue, gone.partition, old.v3[gone.enqueue_id][1]
    ).result()
    old.stores.tables.browse_starts.write(old.queue, old.at(-2), 2**52)
    summary = old.steps(request, "apply", "verify", "report")
    assert set(old.v4) == {kept.enqueue_id}
    assert (summary["copied"], summary["skippedBy"]) == (
        1,
        {"left V3 since the plan": 1, "behind browseStart since the plan": 1},
    )
    assert early.enqueue_id in old.v3


def test_a_copy_that_an_older_delete_covers_is_told_and_stays_live_in_v3(old):
    old.start_at(0)
    row = old.insert(0)
    old.stores.tables.v4.delete_partition_future(
        old.queue, row.partition, old.v3[row.enqueue_id][1] + 1
    ).result()
    report = old.run()
    assert (report["status"], report["copied"], report["failed"], report["missing"]) == (
        "failed",
        0,
        1,
        1,
    )
    assert old.mail_queue.size() == 1


def test_a_slice_of_an_older_window_and_a_row_without_times_keep_their_places(old):
    old.start_at(-3)
    odd = old.row(0)
    unreachable = replace(odd, partition=Partition(old.at(0) + timedelta(minutes=10), 0))
    nowhere = replace(old.row(0), partition=Partition(old.at(0), 9))
    old.stores.tables.v3.insert_many([unreachable, nowhere])
    report = old.run()
    assert (report["status"], report["copied"], report["skippedBy"]) == (
        "nothing to do",
        0,
        {"no slice or bucket of the view": 2},
    )


def test_an_edited_plan_is_refused_and_so_is_one_whose_files_were_changed(old):
    old.start_at(0)
    old.insert(0)
    request = old.request()
    old.steps(request, "plan", "check")
    (folder,) = Path(old.settings.duty.artifacts).rglob(request.run)
    plan = folder / "plan.json"
    text = plan.read_text()
    plan.write_text(text.replace('"madeAt": "2', '"madeAt": "1', 1))
    with pytest.raises(PlanRefused):
        old.steps(request, "apply")
    plan.write_text(text)
    import pyarrow as pa
    import pyarrow.parquet as pq

    (file,) = (folder / "plan").glob("rows-*")
    table = pq.read_table(file)
    stranger = pa.array(["11111111-1111-4111-8111-111111111111"])
    pq.write_table(table.set_column(2, table.schema.field(2), stranger), file)
    with pytest.raises(PlanRefused, match="was changed"):
        old.steps(request, "apply")
    assert old.v4 == {}


def test_a_gate_that_does_not_hold_changes_nothing(old):
    import pyarrow as pa
    import pyarrow.parquet as pq

    old.start_at(0)
    old.insert(0)
    request = old.request()
    old.steps(request, "plan")
    (folder,) = Path(old.settings.duty.artifacts).rglob(request.run)
    (file,) = (folder / "plan").glob("rows-*")
    table = pq.read_table(file)
    pq.write_table(pa.concat_tables([table, table]), file)
    with pytest.raises(GateFailed, match="as many rows as were planned"):
        old.steps(request, "check")
    with pytest.raises(PlanRefused):
        old.steps(request, "apply")
    assert old.v4 == {}


def copied(old):
    """A run that has copied one row: (the request, the row, its write time)."""
    old.start_at(0)
    row = old.insert(0, name="a")
    request = old.request()
    assert old.steps(request, "plan", "check", "apply")["applied"] == 1
    return request, row, old.v3[row.enqueue_id][1]


def test_a_copy_that_is_gone_fails_verify(old):
    request, row, at = copied(old)
    old.stores.tables.v4.delete_partition_future(old.queue, row.partition, at + 1).result()
    with pytest.raises(GateFailed, match=r"Every live row of V3 is in V4.* missing is 1 "):
        old.steps(request, "verify")


def test_a_copy_that_holds_something_else_fails_verify(old):
    """Of two values that were written at one time Cassandra keeps the greater."""
    request, row, at = copied(old)
    other = replace(row, item=replace(row.item, mail=replace(row.item.mail, name="b")))
    old.stores.tables.v4.copy_many([(other, at)])
    with pytest.raises(GateFailed, match="Every copy holds what its row in V3 holds"):
        old.steps(request, "verify")


def test_a_browse_start_that_james_moves_on_while_v3_is_read_is_no_alarm(old, monkeypatch):
    from mailslice.duties.migrate_v3_to_v4 import source

    old.start_at(-3)
    old.insert(-3)
    kept = old.insert(0)
    read = source.read_partitions

    def meanwhile(*args, **kwargs):
        found = read(*args, **kwargs)
        old.stores.tables.browse_starts.write(old.queue, old.at(-2), 2**52)
        return found

    monkeypatch.setattr(source, "read_partitions", meanwhile)
    report = old.run()
    assert (report["status"], report["copied"]) == ("done", 1)
    assert set(old.v4) == {kept.enqueue_id}


def test_a_browse_start_that_james_moves_on_while_the_tables_are_compared_is_no_alarm(
    old, monkeypatch
):
    """James deletes what it has delivered: marks, and rows of V4, never those of V3."""
    from mailslice.duties.migrate_v3_to_v4 import copier

    request, row, at = copied(old)
    compare = copier.compare_partitions

    def meanwhile(*args, **kwargs):
        old.stores.tables.browse_starts.write(old.queue, old.at(1), 2**52)
        old.stores.tables.v4.delete_partition_future(old.queue, row.partition, at + 1).result()
        return compare(*args, **kwargs)

    monkeypatch.setattr(copier, "compare_partitions", meanwhile)
    assert old.steps(request, "verify")["success"]


def test_a_cleanup_and_a_migration_wait_for_each_other(old, monkeypatch):
    from mailslice.duties.migrate_v3_to_v4.duty import DUTY

    old.start_at(0)
    old.insert(0)
    request = old.request()
    old.steps(request, "plan", "check")
    monkeypatch.setattr(DUTY, "lock_patience", timedelta(0))
    with (
        locked(old.stores.own.locks, f"queue_cleanup/{old.queue}", "a-cleanup"),
        pytest.raises(LockHeld, match="a-cleanup"),
    ):
        old.steps(request, "apply")
    assert old.v4 == {}
    assert old.steps(request, "apply")["applied"] == 1


def test_a_run_whose_time_is_over_leaves_the_rest_to_the_next(old):
    old.start_at(0)
    old.insert(0)
    report = old.run(time_limit="0s")
    assert (report["status"], report["copied"], report["left"], report["verified"]) == (
        "done",
        0,
        1,
        0,
    )
    assert old.run()["copied"] == 1


def test_a_dry_run_copies_nothing(old):
    live, _ = planted(old)
    report = old.run(dry_run=True)
    assert (report["status"], report["planned"], report["copied"], report["verified"]) == (
        "dry run",
        len(live),
        0,
        0,
    )
    assert old.v4 == {}


def test_what_lies_behind_browse_start_is_left_out_and_said(old):
    old.start_at(0)
    old.insert(-2)
    report = old.run()
    assert (report["status"], report["copied"], report["skippedBy"]) == (
        "nothing to do",
        0,
        {"behind browseStart": 1},
    )
    assert report["message"].endswith(
        "; 1 rows without a mark lie behind browseStart and are left out"
    )
    assert old.v4 == {}


def test_without_v3_there_is_nothing_to_do_and_without_v4_it_is_made_when_the_settings_want_it(
    make_fresh,
):
    fresh = make_fresh(new_keyspaces=True)
    settings = settings_of(fresh)
    with open_stores(settings) as stores:
        here = OldView(settings, stores, queues.create(stores, "spool"))
        report = here.run()
        assert (report["status"], report["copied"], report["skipped"], report["verified"]) == (
            "nothing to do",
            0,
            0,
            0,
        )
        assert "enqueuedMailsV3" in report["message"]
        here.queue = QueueName("nobody")
        with pytest.raises(UnknownQueue):
            here.run()
    fresh = make_fresh(new_keyspaces=True)
    old_settings = settings_of(fresh, MAILSLICE_QUEUE_TABLE="v3")
    with open_stores(old_settings) as stores:
        here = OldView(old_settings, stores, queues.create(stores, "spool"))
        here.start_at(0)
        row = here.insert(0)
        with pytest.raises(Refused, match="MAILSLICE_QUEUE_TABLE=v3"):
            here.run()
    settings = settings_of(fresh)
    with open_stores(settings) as stores:
        here = OldView(settings, stores, QueueName("spool"))
        before = tables_of(stores.cassandra, settings.cassandra.keyspace)
        assert here.run(dry_run=True)["planned"] == 1
        assert tables_of(stores.cassandra, settings.cassandra.keyspace) == before
        assert here.run()["copied"] == 1
        assert set(here.v4) == {row.enqueue_id}


def test_a_cleanup_after_the_migration_empties_both_tables(old):
    old.start_at(-3)
    rows = [old.insert(-3), old.insert(-3)]
    old.run()
    old.mark(*rows)
    report = run_all_in_process(
        RunRequest("queue_cleanup", old.queue, "clean", params={"grace": "15m"}), old.settings
    )
    assert report["applied"] == 4
    assert (old.v3, old.v4) == ({}, {})


def test_a_plan_by_a_clock_that_is_off_is_refused(old):
    """Rows that are newer than the plan are not judged."""
    planted(old)
    with pytest.raises(ClockSkew):
        old.steps(old.request(), "plan", clock=lambda: system_clock() + timedelta(hours=1))
