"""The sweep: rows before contentStart and marks without a row."""

import json
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mailslice.admin.quarantine import Quarantine
from mailslice.engine import mark_deletion as spark_marks
from mailslice.maintenance.artifacts import RunFolder, artifacts, queue_folder
from mailslice.model.clock import system_clock
from mailslice.model.errors import PlanRefused
from mailslice.model.mail import BlobId, QueueName
from mailslice.stores.cassandra.own import WorkerRecord
from mailslice.stores.cassandra.own.quarantine import State
from tests.services.duties.queue_cleanup.test_kill import later
from tests.services.duties.queue_cleanup.test_marks import seen_empty, soon


def test_dead_rows_before_content_start_go_and_the_starts_stay(view):
    view.start_at(5)
    left = view.insert(1, dead=True)
    view.insert(6, dead=False)
    assert view.clean()["planned"] == 0
    report = view.clean(sweep=True)
    assert (report["applied"], view.rows(1), view.is_marked(left)) == (1, set(), False)
    assert view.content_start >= view.at(5)


def test_a_row_without_a_mark_before_content_start_is_reported_and_kept(view):
    view.start_at(5)
    stray = view.insert(1, dead=False)
    report = view.clean(sweep=True)
    assert view.rows(1) == {stray}
    assert report["strays"] == [
        {"slice": view.at(1).isoformat().replace("+00:00", "Z"), "enqueueId": str(stray)}
    ]
    assert report["after"]["live"] == 0


def test_a_mark_without_a_row_goes_when_the_queue_was_seen_empty_after_the_sweep(shared_view):
    view = shared_view
    view.start_at(0)
    row = view.insert(3, dead=True)
    view.insert(3, dead=False)
    orphan = uuid.uuid4()
    view.mark(orphan)
    seen_empty(view, datetime.now(UTC))
    assert view.clean(sweep=True)["marks"]["listed"] == 1
    report = view.clean()
    assert (report["marks"]["waiting"], view.is_marked(orphan)) == (1, True)
    assert "not seen empty since the marks were read" in report["marks"]["why"][0]
    seen_empty(view, soon())
    assert view.clean()["marks"]["dropped"] == 1
    assert (view.is_marked(orphan), view.is_marked(row)) == (False, True)
    assert view.clean()["marks"] == {
        "dropped": 0,
        "waiting": 0,
        "why": [],
        "proof": None,
        "listed": 0,
    }


@pytest.mark.parametrize("number", [-3, 10, 40])
def test_a_mark_whose_row_came_after_the_sweep_stays(shared_view, number):
    """Before contentStart, in a slice that is closed, in one that is open: wherever it is."""
    view = shared_view
    view.start_at(0)
    orphan = uuid.uuid4()
    view.mark(orphan)
    view.clean(sweep=True)
    view.insert(min(number, open_slice(view)), dead=False, enqueue_id=orphan)
    seen_empty(view, soon())
    assert view.clean()["marks"]["dropped"] == 0
    assert view.is_marked(orphan)


def open_slice(view):
    return int((datetime.now(UTC) - view.base) / timedelta(seconds=10))


def test_marks_of_a_mail_alone_are_not_swept_at_once_on_an_own_queue(view, monkeypatch):
    """A failed enqueue leaves a mark, and its message may still come.

    The worker's own check begins when the slice is over.
    """
    view.start_at(0)
    orphan = uuid.uuid4()
    view.mark(orphan)
    view.clean(sweep=True)
    report = view.clean()
    assert view.is_marked(orphan)
    assert "they have no row" in report["marks"]["why"][0]
    assert later(view, monkeypatch)["marks"]["dropped"] == 1
    assert not view.is_marked(orphan)


def candidates(view):
    """The note, and the file that it names."""
    world = artifacts(view.settings)
    parent = Path(world.uri(queue_folder("queue_cleanup", view.queue)))
    note = parent / "candidates.json"
    value = json.loads(note.read_text())
    return note, parent / value["run"] / "marks" / value["files"][0]["file"]


def edit_note(note, _):
    value = json.loads(note.read_text())
    value["listedAt"] = "2020-01-01T00:00:00Z"
    note.write_text(json.dumps(value))


def edit_list(_, file):
    other = pa.array([uuid.uuid4().bytes], pa.binary(16))
    pq.write_table(pa.table({"enqueue_id": other}), file)


def remove_list(_, file):
    file.unlink()


@pytest.mark.parametrize("harm", [edit_note, edit_list, remove_list])
def test_a_list_that_broke_or_was_edited_drops_nothing_and_the_next_sweep_lists_anew(
    shared_view, harm
):
    view = shared_view
    view.start_at(0)
    orphan = uuid.uuid4()
    view.mark(orphan)
    view.clean(sweep=True)
    harm(*candidates(view))
    seen_empty(view, soon())
    report = view.clean()
    assert (report["status"], report["marks"]["dropped"]) != ("failed", 1)
    assert view.is_marked(orphan)
    assert view.clean(sweep=True)["marks"]["listed"] == 1
    view.clean()
    assert not view.is_marked(orphan)


def test_a_plan_whose_list_of_marks_was_edited_is_refused(shared_view):
    view = shared_view
    view.start_at(0)
    view.mark(uuid.uuid4())
    view.clean(sweep=True)
    request = view.request()
    view.steps(request, "plan", "check")
    folder = RunFolder(artifacts(view.settings), request.duty, request.queue, request.run)
    plan = folder.read_json("plan.json")
    plan["decided"]["candidates"]["listedAt"] = "2020-01-01T00:00:00Z"
    folder.write_json("plan.json", plan)
    with pytest.raises(PlanRefused, match="was changed"):
        view.steps(request, "apply")


def test_a_sweep_lists_the_marks_that_its_own_run_could_not_prove(shared_view):
    """On a queue that is never empty at night."""
    view = shared_view
    view.start_at(0)
    waits, orphan = view.insert(3, dead=True), uuid.uuid4()
    view.mark(orphan)
    report = view.clean(sweep=True)
    assert (report["marks"]["waiting"], report["marks"]["listed"]) == (1, 2)
    assert view.clean(sweep=True)["marks"]["listed"] == 2  # each mark once, however many sweeps
    seen_empty(view, soon())
    assert view.clean()["marks"]["dropped"] == 2
    assert (view.is_marked(orphan), view.is_marked(waits)) == (False, False)


def test_a_sweep_lists_only_the_marks_of_its_queue_that_have_no_row(view, monkeypatch):
    view.start_at(0)
    other = replace(view, queue=QueueName(f"{view.queue}-other"))
    other.mark(uuid.uuid4())
    for _ in range(30):
        view.insert(3, dead=True)
    view.insert(3, dead=False)
    monkeypatch.setattr(spark_marks, "IDS_A_GROUP", 1)
    orphans = [uuid.uuid4() for _ in range(3)]
    for each in orphans:
        view.mark(each)
    assert view.clean(sweep=True, dry_run=True)["status"] == "dry run"
    assert view.clean()["marks"]["waiting"] == 0
    assert view.clean(sweep=True)["marks"]["listed"] == 3
    assert later(view, monkeypatch)["marks"]["dropped"] == 3
    assert [view.is_marked(each) for each in orphans] == [False] * 3


def test_a_sweep_in_spark_lists_and_drops(view, with_spark, monkeypatch):
    view.start_at(0)
    view.insert(3, dead=False)
    orphans = [uuid.uuid4() for _ in range(500)]
    for each in orphans:
        view.mark(each)
    assert view.clean(sweep=True)["marks"]["listed"] == 500
    assert later(view, monkeypatch)["marks"]["dropped"] == 500
    assert not view.stores.tables.deleted.marked(view.queue, orphans)


def test_a_sweep_of_an_empty_queue_is_no_error(view):
    report = view.clean(sweep=True)
    assert (report["status"], report["strays"]) == ("nothing to do", [])


def stray_of(view, content="same"):
    """A row without a mark before browseStart, with its content. `content`: as of `start_at`."""
    view.stores.own_blobs.ensure_bucket()
    for blob, text in (("h", b"Subject: lost\r\n\r\n"), ("b", b"found\r\n")):
        view.stores.blobs.put(BlobId(blob), text)
    view.start_at(5, content)
    view.insert(6, dead=False)
    return view.insert(1, dead=False)


def test_a_row_without_a_mark_is_offered_and_only_a_person_sets_it_aside(view):
    stray = stray_of(view)
    offered = view.clean(sweep=True)
    assert "1 rows without a mark" in offered["message"]
    assert "--sweep --aside" in offered["message"]
    assert (view.is_marked(stray), list(view.stores.own.quarantine.list(view.queue))) == (False, [])

    report = view.clean(sweep=True, aside=True, dry_run=True)
    assert (report["aside"], view.is_marked(stray)) == (0, False)

    report = view.clean(sweep=True, aside=True)
    assert (report["status"], report["aside"], view.is_marked(stray)) == ("done", 1, True)
    quarantine = Quarantine(view.stores, view.queue, system_clock)
    [kept] = quarantine.waiting()
    assert (kept.enqueue_id, kept.action, kept.run, quarantine.content(kept)) == (
        stray,
        "stray",
        report["run"],
        b"Subject: lost\r\n\r\nfound\r\n",
    )
    again = quarantine.release(kept)
    assert again != stray
    later = view.clean(sweep=True)
    assert (later["applied"], later["strays"], view.rows(1)) == (1, [], set())


def test_a_row_without_a_mark_between_the_starts_of_an_own_queue_is_set_aside(
    view,
):
    stray, live = stray_of(view, content=0), view.insert(5, dead=False)
    assert [view.clean()["strays"], view.content_start] == [[], view.at(1)]
    report = view.clean(sweep=True)
    assert [row["enqueueId"] for row in report["strays"]] == [str(stray)]
    report = view.clean(sweep=True, aside=True)
    assert (report["status"], report["aside"]) == ("done", 1)
    assert (view.is_marked(stray), view.is_marked(live)) == (True, False)
    quarantine = Quarantine(view.stores, view.queue, system_clock)
    [kept] = quarantine.waiting()
    assert (kept.enqueue_id, kept.state, quarantine.content(kept)) == (
        stray,
        State.KEPT,
        b"Subject: lost\r\n\r\nfound\r\n",
    )
    assert (view.clean()["applied"], view.rows(1), view.content_start) == (1, set(), view.at(5))


def test_between_the_starts_of_a_shared_queue_a_row_without_a_mark_may_be_of_a_clear(shared_view):
    stray = stray_of(shared_view, content=0)
    report = shared_view.clean(sweep=True, aside=True)
    assert (report["strays"], report["aside"], shared_view.is_marked(stray)) == ([], 0, False)


def test_between_the_starts_nothing_is_set_aside_once_a_worker_of_the_last_day_shared_the_queue(
    view,
):
    """As on the day after `config shared false`: James may have dropped marks, and left rows."""
    stray = stray_of(view, content=0)
    request = view.request(sweep=True, aside=True)
    assert len(view.steps(request, "plan")["strays"]) == 1
    view.steps(request, "check")
    now = datetime.now(UTC)
    record = WorkerRecord("w1", "host", 1, now, timedelta(seconds=3), 1, shared=True, ended=True)
    view.stores.own.worker_records.save_future(view.queue, record).result()
    assert view.steps(request, "apply")["aside"] == 0
    assert not view.is_marked(stray)
    assert view.clean(sweep=True)["strays"] == []


@pytest.mark.parametrize("content", ["same", 0])
def test_what_was_marked_or_became_live_since_the_plan_is_left_alone(view, content):
    first = stray_of(view, content)
    second = view.insert(2, dead=False)
    request = view.request(sweep=True, aside=True)
    view.steps(request, "plan", "check")
    view.mark(first)
    view.james_writes_browse_start(view.at(2))
    assert view.steps(request, "apply")["aside"] == 0
    assert (view.is_marked(second), list(view.stores.own.quarantine.list(view.queue))) == (
        False,
        [],
    )


def test_strays_of_an_edited_plan_are_refused(view):
    stray_of(view)
    live = view.insert(7, dead=False)
    request = view.request(sweep=True, aside=True)
    view.steps(request, "plan", "check")
    folder = RunFolder(artifacts(view.settings), request.duty, request.queue, request.run)
    plan = folder.read_json("plan.json")
    plan["decided"]["strays"][0]["enqueueId"] = str(live)
    folder.write_json("plan.json", plan)
    with pytest.raises(PlanRefused, match="was changed"):
        view.steps(request, "apply")
    assert not view.is_marked(live)


def test_a_row_whose_earlier_copy_is_just_being_withdrawn_is_not_marked(view, monkeypatch):
    """stuck_mails withdraws what a killed sweep left 10 minutes ago.

    A mark then would be of a mail that is nowhere.
    """
    stray, keep = stray_of(view), Quarantine.keep

    def withdrawn_meanwhile(self, *given):
        kept = keep(self, *given)
        assert view.stores.own.quarantine.move(view.queue, kept, state=State.DISCARDING)
        return kept

    with monkeypatch.context() as patch:
        patch.setattr(Quarantine, "keep", withdrawn_meanwhile)
        assert view.clean(sweep=True, aside=True)["aside"] == 0
    assert not view.is_marked(stray)
    quarantine = Quarantine(view.stores, view.queue, system_clock)
    assert [quarantine.tidy(mail) for mail in quarantine.mails()] == [True]
    assert view.clean(sweep=True, aside=True)["aside"] == 1
    assert view.is_marked(stray)


def test_a_row_that_no_message_can_hold_stops_no_other(view):
    stray = stray_of(view)
    of_james = view.insert(1, dead=False)
    view.stores.cassandra.execute(
        f"UPDATE {view.settings.cassandra.keyspace}.enqueuedmailsv4 "
        "SET attributes = {'name': 0xff} "
        "WHERE queuename = %s AND timerangestart = %s AND bucketid = %s AND enqueueid = %s",
        (view.queue, view.at(1), 0, of_james),
    )
    report = view.clean(sweep=True, aside=True)
    assert (report["status"], report["aside"]) == ("failed", 1)
    assert f"{of_james} cannot be set aside" in report["message"]
    assert (view.is_marked(stray), view.is_marked(of_james)) == (True, False)
    assert view.rows(1) == {stray, of_james}


def test_a_copy_that_is_withdrawn_right_after_the_mark_is_kept_anew_and_the_run_fails(
    view, monkeypatch
):
    stray, keep_marked = stray_of(view), Quarantine.keep_marked

    def withdrawn_first(self, kept):
        assert self.withdraw(kept)
        return keep_marked(self, kept)

    monkeypatch.setattr(Quarantine, "keep_marked", withdrawn_first)
    report = view.clean(sweep=True, aside=True)
    assert (report["status"], report["aside"], view.is_marked(stray)) == ("failed", 1, True)
    assert f"{stray} was withdrawn from quarantine" in report["message"]
    quarantine = Quarantine(view.stores, view.queue, system_clock)
    [kept] = quarantine.waiting()
    assert (kept.enqueue_id, kept.state) == (stray, State.KEPT)
    assert quarantine.content(kept) == b"Subject: lost\r\n\r\nfound\r\n"


@pytest.mark.parametrize(
    "point", ["quarantine:copied", "aside:marked", "apply:after-aside", "apply:after-marks"]
)
def test_setting_aside_that_was_killed_is_counted_by_the_next_try(view, point):
    """As an Airflow retry of the task does."""
    stray = stray_of(view)
    request = view.request(sweep=True, aside=True)
    view.steps(request, "plan", "check")
    view.kill("apply", request, point)
    view.let_the_locks_run_out()
    report = view.steps(request, "apply", "verify", "report")
    assert (report["status"], report["aside"]) == ("done", 1)
    assert "1 rows set aside" in report["message"]
    assert "without a mark stay" not in report["message"]
    [kept] = Quarantine(view.stores, view.queue, system_clock).waiting()
    assert (kept.enqueue_id, kept.state) == (stray, State.KEPT), "a person can release it"


@pytest.mark.parametrize("point", ["quarantine:copied", "apply:after-aside"])
def test_setting_aside_that_was_killed_is_finished_by_the_next_sweep(view, point):
    stray = stray_of(view)
    request = view.request(sweep=True, aside=True)
    view.steps(request, "plan", "check")
    view.kill("apply", request, point)
    view.let_the_locks_run_out()
    view.clean(sweep=True, aside=True)
    assert view.is_marked(stray) or view.rows(1) == set()
    [kept] = Quarantine(view.stores, view.queue, system_clock).waiting()
    assert (kept.enqueue_id, kept.state) == (stray, State.KEPT)
