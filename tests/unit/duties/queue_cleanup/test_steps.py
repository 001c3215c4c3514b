"""The five steps over a view in memory.

What a run counts, keeps for its next try, and is blamed for.
"""

import hashlib
import json
import uuid
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import count
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest

from mailslice.bench.clearing import drop_marks
from mailslice.codec.row import epoch_us
from mailslice.duties.queue_cleanup import candidates, marks, plan, planner, reads
from mailslice.duties.queue_cleanup import duty as duties
from mailslice.duties.queue_cleanup import view as views
from mailslice.duties.queue_cleanup.duty import DUTY
from mailslice.duties.queue_cleanup.params import Params
from mailslice.duties.queue_cleanup.plan import Candidates
from mailslice.duties.queue_cleanup.reads import SecondRead
from mailslice.duties.queue_cleanup.view import move_browse_start
from mailslice.engine import id_arrays, partition_scan, plan_comparison
from mailslice.engine import mark_deletion as spark_marks
from mailslice.engine.frames import InProcess
from mailslice.engine.row_files import RowGroup
from mailslice.maintenance import drained, gates, runner
from mailslice.maintenance.artifacts import FILES, iso
from mailslice.maintenance.engine import Engine
from mailslice.maintenance.lock import LockLost
from mailslice.maintenance.plan import digest_of
from mailslice.maintenance.progress import Progress
from mailslice.maintenance.rate_limit import Throttle
from mailslice.maintenance.run import Run
from mailslice.model import crash
from mailslice.model.errors import ClockSkew, GateFailed, PlanRefused, StoreUnavailable
from mailslice.model.mail import BlobId, EnqueueId, Mail, Partition, QueuedMail, QueueName, ViewRow
from mailslice.model.names import QueueTable
from mailslice.model.settings import Settings
from mailslice.model.slices import slice_start
from mailslice.stores.cassandra.ids import pack
from mailslice.stores.cassandra.own import QueueSample
from mailslice.testing.memory import MemoryDeletedMails, MemoryEnqueuedMails, MemoryStores
from mailslice.view import sharing
from tests.killed import Killed
from tests.services.duties.running import judged_plainly
from tests.unit.duties.judging import NOW, QUEUE, Locks, run_of

HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)
BASE = slice_start(NOW, HOUR) - 30 * HOUR


class Statistics(list):
    def save(self, _queue, statistic):
        self.append(statistic)

    def delete_before(self, *_):
        self.clear()


class View:
    """A queue whose slices are numbered, and the steps of its cleanup."""

    def __init__(self, folder):
        queue = Settings().queue.model_copy(update={"shared": False, "table": QueueTable.V4})
        self.settings = Settings().model_copy(update={"queue": queue})
        written = epoch_us(NOW - HOUR)
        stores = MemoryStores(self.settings, now_us=lambda: written)
        stores.rabbitmq.declare(QUEUE)
        stores.own = stores.records = SimpleNamespace(locks=Locks(), slice_statistics=Statistics())
        stores.cassandra = SimpleNamespace(require_clock=lambda *_: None)
        self.folder, self.stores, self.tables = folder, stores, stores.tables
        self.dissenters = []
        self.files = run_of(folder, "queue_cleanup").folder

    def at(self, number):
        return BASE + number * HOUR

    def insert(self, number, *, dead):
        enqueue_id = EnqueueId(uuid.uuid4())
        item = QueuedMail(enqueue_id, Mail("mail", None, ()), BlobId("h"), BlobId("b"))
        partition = Partition(self.at(number), 0)
        self.tables.v4.insert_future(ViewRow(QUEUE, partition, self.at(number), item)).result()
        if dead:
            self.tables.deleted.mark_many(QUEUE, [enqueue_id])
        return enqueue_id

    def rows(self, number):
        return {row.enqueue_id for row in self.tables.v4.ids(QUEUE, Partition(self.at(number), 0))}

    def start_at(self, number):
        self.tables.browse_starts.insert_first(QUEUE, self.at(number))
        self.tables.content_starts.insert_first(QUEUE, self.at(number))

    def james_writes_browse_start(self, number):
        self.tables.browse_starts.write(QUEUE, self.at(number), epoch_us(NOW + HOUR))

    def take(self, *steps, params=None, **more):
        summary = {}
        for step in steps:
            params = params or Params(grace=HOUR)
            parts = {"settings": self.settings, "stores": self.stores, **more}
            context = run_of(self.folder, "queue_cleanup", params, **parts)
            summary = runner.step_of(DUTY, step)(context)
            self.files.write_json(FILES[step], {**summary, "step": step, "seconds": 1})
        return summary


def _written_ids(pages):
    for page in pages:
        if page:
            packed = id_arrays.of_packed(pack(row.enqueue_id for row, _ in page))
            yield packed, np.array([written for _, written in page], np.int64)


@pytest.fixture
def view(tmp_path, monkeypatch):
    view = View(tmp_path)
    for module in (partition_scan, plan_comparison, spark_marks):
        monkeypatch.setattr(module, "stores_of", lambda _: view.stores)
    monkeypatch.setattr(partition_scan, "written_ids", _written_ids)
    read = vars(MemoryEnqueuedMails)["written_rows_of"]
    monkeypatch.setattr(MemoryEnqueuedMails, "packed_written_ids_of", read, raising=False)
    monkeypatch.setattr(sharing, "stored", lambda _: False)
    monkeypatch.setattr(sharing, "workers_that_differ", lambda *_, **__: view.dissenters)
    monkeypatch.setattr(planner, "table_repairs", lambda *_: ())
    monkeypatch.setattr(duties, "usual_frames", lambda *_, **__: [])
    monkeypatch.setattr(Run, "session", lambda _: InProcess())

    def gate(name, frames, docs, *_):
        result = judged_plainly(name, frames, docs)
        for one in result.findings:
            if not one.success:
                raise GateFailed(f"{one.column}: {one.observed}")
        return result

    monkeypatch.setattr(gates, "run_gate", gate)
    return view


def test_a_run_from_plan_to_report(view):
    view.start_at(0)
    gone = [view.insert(number, dead=True) for number in (0, 0, 1, 5)]
    live = view.insert(3, dead=False)
    report = view.take("plan", "check", "apply", "verify", "report")
    assert [view.rows(number) for number in (0, 1, 3, 5)] == [set(), set(), {live}, set()]
    assert not view.tables.deleted.marked(QUEUE, gone)
    assert view.tables.browse_starts.get(QUEUE).value == view.at(3)
    assert view.tables.content_starts.get(QUEUE).value == view.at(3)
    counts = {
        name: report[name] for name in ("planned", "applied", "skipped", "failed", "remaining")
    }
    assert counts == {"planned": 4, "applied": 4, "skipped": 0, "failed": 0, "remaining": 0}
    assert (report["status"], report["message"]) == (
        "done",
        (
            "4 rows deleted, browseStart and contentStart moved, "
            "4 deleted marks dropped (cleaned_check)"
        ),
    )
    assert report["before"]["dead"] == 4
    assert report["after"] == {
        "browseStart": report["newBrowseStart"],
        "contentStart": report["newBrowseStart"],
        "live": 1,
        "dead": 0,
    }
    assert (
        not {"slices", "decided", "skippedSlices", "closedSlices", "deletesBegun"} & report.keys()
    )
    [remembered] = view.stores.own.slice_statistics
    assert remembered.survivors == (live,)


@pytest.mark.parametrize(
    ("report", "is_alarm"),
    [
        ({"finished": iso(NOW)}, False),
        ({"started": iso(NOW - 30 * HOUR)}, False),
        ({"started": iso(NOW - 49 * HOUR)}, True),
        ({"finished": iso(NOW - SECOND)}, True),
        ({"finished": iso(NOW), "params": {"dry_run": True}}, True),
        ({"finished": iso(NOW), "run": "r-1"}, True),
    ],
)
def test_a_live_mail_without_row_and_mark_is_an_alarm_unless_another_cleanup_worked(
    view, report, is_alarm
):
    view.start_at(0)
    view.insert(0, dead=False)
    gone = view.insert(3, dead=False)
    view.take("plan", "check", "apply")
    before = {"run": "r-0", "started": iso(NOW - 50 * HOUR), "finished": None, **report}
    rows = [SimpleNamespace(report=json.dumps(before))]
    view.stores.existing_runs = lambda: SimpleNamespace(list=lambda *_: rows)
    assert gone in view.rows(3)
    view.tables.v4.delete_partition_future(QUEUE, Partition(view.at(3), 0), epoch_us(NOW)).result()
    with pytest.raises(GateFailed, match="survivors_lost: 1") if is_alarm else nullcontext():
        view.take("verify")


def test_another_cleanup_that_drops_row_and_mark_while_verify_reads_is_no_alarm(view, monkeypatch):
    """The mail was done behind a start of ours. Verify has read its row, then asks for marks."""
    view.start_at(0)
    done = view.insert(3, dead=False)
    view.take("plan", "check")
    view.tables.deleted.mark_many(QUEUE, [done])
    monkeypatch.setattr(SecondRead, "browse_start", lambda *_: view.at(5))
    view.take("apply")
    ids = MemoryEnqueuedMails.ids

    def meanwhile(table, queue, partition):
        read = list(ids(table, queue, partition))
        table.delete_partition_future(QUEUE, Partition(view.at(3), 0), epoch_us(NOW)).result()
        drop_marks(view.tables.deleted, QUEUE, [done])
        return iter(read)

    monkeypatch.setattr(MemoryEnqueuedMails, "ids", meanwhile)
    view.take("verify")
    assert not view.tables.deleted.is_marked(QUEUE, done)


def test_rows_that_changed_since_the_plan_are_counted_by_reason(view):
    view.start_at(0)
    again, late = view.insert(0, dead=True), [view.insert(1, dead=True)]
    faster = view.insert(2, dead=True)
    view.insert(4, dead=True)
    view.take("plan", "check")
    drop_marks(view.tables.deleted, QUEUE, [again])
    late.append(view.insert(1, dead=False))
    view.tables.v4.delete_partition_future(QUEUE, Partition(view.at(2), 0), epoch_us(NOW)).result()
    report = view.take("apply", "verify", "report")
    assert report["skippedBy"] == {
        "live again": 1,
        "changed since plan": 1,
        "gone since plan": 1,
    }
    assert (report["planned"], report["applied"], report["skipped"]) == (4, 1, 3)
    assert (view.rows(0), view.rows(1), view.rows(4)) == ({again}, set(late), set())
    assert not view.tables.deleted.is_marked(QUEUE, faster)
    assert view.tables.browse_starts.get(QUEUE).value == view.at(0)


def test_a_queue_without_browse_start_is_left_alone(view):
    view.insert(0, dead=True)
    report = view.take("plan", "check", "apply", "verify", "report")
    assert (report["status"], len(view.rows(0))) == ("nothing to do", 1)
    assert "no browseStart" in report["message"]
    assert view.stores.own.locks.taken == []


def test_a_dry_run_says_what_it_would_do(view):
    view.start_at(0)
    view.insert(0, dead=True)
    dry = Params(grace=HOUR, dry_run=True)
    report = view.take("plan", "check", "report", params=dry)
    assert (report["status"], report["planned"], report["applied"]) == ("dry run", 1, 0)
    assert report["after"] == report["before"]
    assert report["marks"]["dropped"] == 0


def killed_at(view, monkeypatch, name):
    """An apply that ends where it comes to `name`."""
    with monkeypatch.context() as patch:
        patch.setattr(duties, name, lambda *_: 1 / 0)
        with suppress(ZeroDivisionError):
            view.take("apply")


def test_what_a_killed_try_deleted_is_counted_by_the_next_as_its_own(view, monkeypatch):
    view.start_at(0)
    for number in (0, 1):
        view.insert(number, dead=True)
    view.take("plan", "check")
    killed_at(view, monkeypatch, "read_remaining")
    killed_at(view, monkeypatch, "second_read")  # the try after it knows of the first one, too
    report = view.take("apply", "verify", "report")
    assert (report["applied"], report["skipped"], report["failed"]) == (2, 0, 0)


STEPS = ("plan", "check", "apply", "verify", "report")


class Hours:
    """A time limit of which each slice that apply reads takes one hour, or so many seconds.

    `cheap`: slices before this one take no time.
    """

    def __init__(self, monkeypatch, limit, seconds=3600.0, cheap=None):
        self.limit, self.slices, self.rounds, self.cheap = limit, [], [], cheap
        for name in ("compare", "read_after"):
            monkeypatch.setattr(reads, name, self._counted(getattr(reads, name)))
        monkeypatch.setattr(Run, "time_left", lambda _: (self.limit - self.spent) * seconds)

    @property
    def spent(self):
        return sum(self.cheap is None or one >= self.cheap for one in self.slices)

    def _counted(self, read):
        def counted(session, spec, keys):
            slices = sorted({key.slice_start for key in keys})
            self.slices += slices
            self.rounds.append(len(slices))
            return read(session, spec, keys)

        return counted

    def over(self, limit):
        self.limit = limit + self.spent


def test_reads_that_would_take_all_the_time_end_early_and_each_run_goes_on_from_there(
    view, monkeypatch
):
    view.start_at(0)
    gone = [view.insert(number, dead=True) for number in range(10)]
    view.insert(12, dead=False)
    hours = Hours(monkeypatch, 4)
    view.take("plan", "check")
    late = view.insert(5, dead=False)  # into a slice that this run does not come to
    report = view.take("apply", "verify", "report")
    assert hours.slices[:3] == [view.at(0), view.at(1), view.at(2)]
    assert (report["status"], report["applied"], report["failed"]) == ("done", 3, 0)
    assert report["skippedBy"] == {"time limit": 7}
    assert [len(view.rows(number)) for number in range(5)] == [0, 0, 0, 1, 1]
    starts = view.tables.browse_starts, view.tables.content_starts
    assert [table.get(QUEUE).value for table in starts] == [view.at(3)] * 2
    assert (report["marks"]["why"], report["after"]) == (["3: time limit"], None)
    assert view.tables.deleted.marked(QUEUE, gone) == set(gone)
    applied = []
    while len(applied) < 9 and any(map(view.rows, (3, 4, 6, 7, 8, 9))):
        hours.over(4)
        applied.append(view.take(*STEPS)["applied"])
    assert applied == [3, 3]
    assert view.rows(5) == {gone[5], late}
    hours.over(99)
    assert view.take(*STEPS)["after"]["live"] == 2
    assert [table.get(QUEUE).value for table in starts] == [view.at(5)] * 2


def test_a_run_without_time_reads_nothing_and_deletes_nothing(view, monkeypatch):
    view.start_at(0)
    gone = view.insert(0, dead=True)
    hours = Hours(monkeypatch, 0)
    monkeypatch.setattr(Run, "time_left", lambda _: -0.5)
    report = view.take(*STEPS)
    assert (report["status"], report["skippedBy"]) == ("done", {"time limit": 1})
    assert (hours.slices, view.rows(0)) == ([], {gone})
    starts = view.tables.browse_starts, view.tables.content_starts
    assert [table.get(QUEUE).value for table in starts] == [view.at(0)] * 2


def test_the_third_read_ends_with_the_time_and_starts_and_marks_wait_for_what_it_left(
    view, monkeypatch
):
    """Slices with deletes are read back whatever the time."""
    monkeypatch.setattr(candidates, "record", lambda *_: 1 / 0)
    view.start_at(0)
    stuck = view.insert(0, dead=False)
    gone = [view.insert(number, dead=True) for number in (1, 2, 4)]
    view.insert(5, dead=False)
    hours = Hours(monkeypatch, 5)
    report = view.take(*STEPS, params=Params(grace=HOUR, sweep=True))
    assert (report["status"], report["after"]) == ("failed", None)
    assert report["message"] == "the sweep listed no marks: time limit"
    planned, between = [view.at(number) for number in (1, 2, 4)], [view.at(0), view.at(3)]
    assert (hours.slices[:3], hours.slices[3:6]) == (planned, planned)
    assert report["applied"] == 3
    assert (report["marks"]["why"], report["marks"]["listed"]) == (["3: time limit"], 0)
    assert view.tables.deleted.marked(QUEUE, gone) == set(gone)
    assert view.tables.content_starts.get(QUEUE).value == view.at(0)
    # James is done with the oldest mail: contentStart goes as far as the read came.
    view.tables.deleted.mark_many(QUEUE, [stuck])
    hours.slices.clear()
    hours.over(22)
    report = view.take(*STEPS)
    assert (report["applied"], report["after"]) == (1, None)
    assert set(between) <= set(hours.slices)
    assert view.tables.browse_starts.get(QUEUE).value == view.at(5)
    assert view.tables.content_starts.get(QUEUE).value == view.at(5)


def at_point(point, act):
    crash.arm(lambda name: act() if name == f"apply:{point}" else None)


@pytest.fixture
def disarmed():
    yield
    crash.arm(None)


def test_deletes_that_the_time_limit_ended_are_verified_as_far_as_they_came(
    view, monkeypatch, disarmed
):
    view.start_at(0)
    for number in (0, 1, 2):
        view.insert(number, dead=True)
    hours = Hours(monkeypatch, 99)
    at_point("inside-deletes", lambda: hours.over(0))
    report = view.take(*STEPS)
    assert (report["status"], report["applied"]) == ("done", 1)
    assert report["skippedBy"] == {"time limit": 2}
    assert hours.slices.count(view.at(0)) == 2
    assert hours.slices.count(view.at(1)) == 1
    assert view.tables.browse_starts.get(QUEUE).value == view.at(29)
    assert view.tables.content_starts.get(QUEUE).value == view.at(1)


def test_content_start_passes_no_row_that_the_third_read_did_not_come_to(
    view, monkeypatch, disarmed
):
    view.start_at(0)
    for number in (0, 1, 2):
        view.insert(number, dead=True)
    view.insert(3, dead=False)
    view.take("plan", "check")
    view.insert(1, dead=True)
    hours = Hours(monkeypatch, 99)
    at_point("after-deletes", lambda: hours.over(0))
    report = view.take("apply", "verify", "report")
    assert (report["applied"], report["skippedBy"]) == (2, {"changed since plan": 1})
    assert view.tables.browse_starts.get(QUEUE).value == view.at(3)
    assert view.tables.content_starts.get(QUEUE).value == view.at(1)


def test_after_a_second_read_that_was_cut_only_deletes_are_read_back_and_no_mark_goes(
    view, monkeypatch, disarmed
):
    """Nobody has compared the other rows of the plan's files, nor read all ids."""
    view.start_at(0)
    gone = [view.insert(number, dead=True) for number in range(9)]
    hours = Hours(monkeypatch, 4)
    at_point("after-deletes", lambda: hours.over(99))
    report = view.take(*STEPS)
    assert hours.slices == [view.at(number) for number in (0, 1, 2)] * 2
    assert (report["marks"]["dropped"], report["marks"]["why"]) == (0, ["3: time limit"])
    assert view.tables.deleted.marked(QUEUE, gone) == set(gone)


def test_a_round_of_slices_that_was_quick_is_followed_by_a_larger_one(view, monkeypatch):
    view.start_at(0)
    for number in range(20):
        view.insert(number, dead=True)
    view.insert(20, dead=False)
    hours = Hours(monkeypatch, 999, seconds=3.0)
    assert view.take(*STEPS)["applied"] == 20
    assert hours.rounds[:5] == [1, 2, 4, 4, 4]


def test_after_rounds_of_several_slices_a_cut_second_read_is_followed_by_its_slices_alone(
    view, monkeypatch, disarmed
):
    view.start_at(0)
    gone = [view.insert(number, dead=True) for number in range(20)]
    hours = Hours(monkeypatch, 14, seconds=3.0)
    view.take("plan", "check")
    view.insert(1, dead=True)
    at_point("after-deletes", lambda: hours.over(99))
    report = view.take("apply", "verify", "report")
    assert hours.rounds == [1, 2, 4, 1, 2, 3]
    assert hours.slices[:7] == [view.at(number) for number in range(7)]
    assert hours.slices[7:] == [view.at(number) for number in (0, 2, 3, 4, 5, 6)]
    assert report["skippedBy"] == {"changed since plan": 1, "time limit": 13}
    assert (report["marks"]["why"], report["after"]) == (["6: time limit"], None)
    assert view.tables.deleted.marked(QUEUE, gone) == set(gone)


def test_a_last_slice_with_deletes_does_not_take_those_that_nobody_asked_for(view, monkeypatch):
    """The slices without deletes begin with a small round: how long they take nobody knows."""
    view.start_at(0)
    stuck = view.insert(0, dead=False)
    for number in range(1, 6):
        view.insert(number, dead=True)
    view.insert(6, dead=False)
    hours = Hours(monkeypatch, 11, seconds=3.0)
    report = view.take(*STEPS)
    assert hours.rounds == [1, 2, 2, 1, 2, 2, 1]
    assert hours.slices == [view.at(number) for number in (1, 2, 3, 4, 5)] * 2 + [view.at(0)]
    assert (report["applied"], report["after"]) == (5, None)
    assert view.rows(0) == {stuck}


def test_a_round_after_many_quick_slices_has_a_limit(view, monkeypatch):
    view.start_at(-200)
    for number in range(-200, 20):
        view.insert(number, dead=True)
    hours = Hours(monkeypatch, 16, cheap=view.at(0))
    view.take(*STEPS)
    assert max(hours.rounds) == 16
    assert hours.slices.count(view.at(0)) == 2
    assert hours.slices.count(view.at(16)) == 0


def test_a_read_back_of_the_version_before_is_whole(view):
    view.start_at(0)
    view.insert(0, dead=True)
    live = view.insert(3, dead=False)
    view.take("plan", "check", "apply")
    saved = view.files.read_json("left.json")
    del saved["unreadFrom"]
    view.files.write_json("left.json", saved)
    assert view.take("verify", "report")["after"]["live"] == 1
    assert view.rows(3) == {live}


def test_a_sweep_that_had_the_time_at_its_second_try_has_not_failed(view, monkeypatch):
    monkeypatch.setattr(candidates, "estimated_marks", lambda _: 0)
    monkeypatch.setattr(candidates, "token_ranges", lambda *_: ["all"])
    view.start_at(0)
    for number in range(9):
        view.insert(number, dead=True)
    hours, sweep = Hours(monkeypatch, 4), Params(grace=HOUR, sweep=True)
    view.take("plan", "check", "apply", params=sweep)
    hours.over(99)
    report = view.take("apply", "verify", "report", params=sweep)
    assert (report["status"], report["failed"]) == ("done", 0)
    assert not any(map(view.rows, range(9)))


def test_verify_judges_what_both_tries_of_an_apply_passed(view, monkeypatch):
    view.start_at(0)
    for number in range(9):
        view.insert(number, dead=True)
    view.insert(12, dead=False)
    hours = Hours(monkeypatch, 6)
    view.take("plan", "check")
    unknown = view.insert(1, dead=True)
    killed_at(view, monkeypatch, "quarantine_rows")
    passed = view.tables.browse_starts.get(QUEUE).value
    assert view.at(1) < passed < view.at(12)
    drop_marks(view.tables.deleted, QUEUE, [unknown])
    hours.over(99)
    view.take("apply")
    assert view.tables.browse_starts.get(QUEUE).value == view.at(12)
    with pytest.raises(GateFailed, match="live_rows_passed: 1"):
        view.take("verify")


def test_rows_of_a_file_that_was_changed_are_refused_by_a_run_that_reads_some_of_them(
    view, monkeypatch
):
    view.start_at(0)
    for number in range(9):
        view.insert(number, dead=True)
    view.take("plan", "check")
    (path,) = view.folder.rglob("part-*.parquet")
    groups = pq.ParquetFile(path)
    tables = [groups.read_row_group(number) for number in range(groups.num_row_groups)]
    tables[1] = tables[2]
    with pq.ParquetWriter(path, tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table)
    Hours(monkeypatch, 4)
    with pytest.raises(PlanRefused, match="files of the plan were changed"):
        view.take("apply")
    assert all(view.rows(number) for number in range(9))


def kill_apply(view, monkeypatch, point):
    """Nothing is saved at the end of a killed process."""

    def kill(name):
        if name == f"apply:{point}":
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "__exit__", lambda *_: None)
        crash.arm(kill)
        try:
            with pytest.raises(Killed):
                view.take("apply")
        finally:
            crash.arm(None)


@pytest.mark.parametrize("again", [("apply",), ("plan", "check", "apply")])
@pytest.mark.parametrize(
    "point",
    [
        "after-second-read",
        "after-browse-start",
        "inside-deletes",
        "after-deletes",
        "after-read-back",
        "after-marks",
        "after-content-start",
    ],
)
def test_a_run_that_the_time_limit_cut_and_a_kill_ended_is_gone_on_with(
    view, monkeypatch, point, again
):
    view.start_at(0)
    for number in range(9):
        view.insert(number, dead=True)
    live = view.insert(12, dead=False)
    hours = Hours(monkeypatch, 6)
    view.take("plan", "check")

    kill_apply(view, monkeypatch, point)
    assert all(view.rows(number) for number in range(7, 9))
    hours.over(99)
    assert view.take(*again, "verify", "report")["failed"] == 0
    assert view.take(*STEPS)["after"]["live"] == 1
    assert not any(view.rows(number) for number in range(9))
    assert view.rows(12) == {live}
    starts = view.tables.browse_starts, view.tables.content_starts
    assert [table.get(QUEUE).value for table in starts] == [view.at(12)] * 2


@pytest.mark.parametrize("again", [("apply",), ("plan", "check", "apply")])
@pytest.mark.parametrize(
    "point",
    [
        "after-second-read",
        "after-browse-start",
        "after-aside",
        "inside-deletes",
        "after-deletes",
        "after-read-back",
        "inside-marks",
        "after-marks",
        "after-content-start",
    ],
)
def test_whatever_a_kill_leaves_the_next_try_or_run_ends_in_the_same_state(
    view, monkeypatch, point, again
):
    """Nothing is saved at the end of a killed process. Marks without a row are the next sweep's."""
    view.start_at(0)
    gone = [view.insert(number, dead=True) for number in (0, 0, 1, 2, 5)]
    stays = [view.insert(3, dead=True), view.insert(3, dead=False)]
    view.take("plan", "check")

    kill_apply(view, monkeypatch, point)
    report = view.take(*again, "verify", "report")
    assert report["failed"] == 0
    assert [view.rows(number) for number in (0, 1, 2, 3, 5)] == [set()] * 3 + [set(stays), set()]
    marked = view.tables.deleted.marked(QUEUE, [*gone, *stays])
    assert marked == {stays[0]} or len(again) > 1
    starts = view.tables.browse_starts.get(QUEUE), view.tables.content_starts.get(QUEUE)
    assert [start.value for start in starts] == [view.at(3)] * 2
    if again == ("apply",):
        assert (report["status"], report["applied"], report["skipped"]) == ("done", 5, 0)


def test_a_start_that_a_killed_try_wrote_is_judged(view, monkeypatch):
    view.start_at(0)
    view.insert(0, dead=True)
    view.insert(3, dead=False)
    view.take("plan", "check")
    with monkeypatch.context() as patch:
        patch.setattr(SecondRead, "browse_start", lambda *_: view.at(5))
        killed_at(view, patch, "quarantine_rows")
    killed_at(view, monkeypatch, "second_read")
    view.take("apply")
    with pytest.raises(GateFailed, match="live_rows_passed: 1"):
        view.take("verify")


def test_a_start_that_james_moved_on_before_a_killed_try_is_not_judged(view, monkeypatch):
    """James was killed, too: it has dropped marks behind its start, and left the rows."""
    view.start_at(0)
    dead = view.insert(0, dead=True)
    live = view.insert(3, dead=False)
    view.insert(5, dead=False)
    view.take("plan", "check")
    view.tables.deleted.mark_many(QUEUE, [live])
    # It was about to write its own when James was faster.
    with monkeypatch.context() as patch:
        patch.setattr(views, "move_browse_start", lambda *_: 1 / 0)
        patch.setattr(SecondRead, "browse_start", lambda *_: view.at(5))
        with suppress(ZeroDivisionError):
            view.take("apply")
    view.james_writes_browse_start(7)
    drop_marks(view.tables.deleted, QUEUE, [live, dead])
    view.take("apply")
    assert view.take("verify")["success"]


def test_a_james_whose_clock_is_behind_moves_the_starts_that_a_cleanup_wrote(view):
    """It drops marks behind its browseStart, and does not look whether that was taken."""
    starts = (view.tables.browse_starts, view.tables.content_starts)
    view.start_at(0)
    view.insert(0, dead=True)
    view.insert(3, dead=False)
    view.take("plan", "check", "apply")
    assert [table.get(QUEUE).value for table in starts] == [view.at(3)] * 2
    for table in starts:
        table.write(QUEUE, view.at(5), epoch_us(NOW - 5 * MINUTE))
    assert [table.get(QUEUE).value for table in starts] == [view.at(5)] * 2


def test_of_two_tries_to_move_a_start_the_later_one_is_newer(view):
    """On a tie Cassandra takes the greater value, which may have passed what came since."""
    table, other = view.tables.browse_starts, QueueName("other")
    for queue, at in ((QUEUE, NOW), (other, NOW + 10 * SECOND)):
        table.write(queue, view.at(0), epoch_us(NOW - HOUR))
        move_browse_start(view.stores, queue, view.at(3), lambda at=at: at)
    assert table.get(other).written_us == table.get(QUEUE).written_us + 10
    assert table.get(QUEUE).written_us < epoch_us(NOW - HOUR) + 1_000_000


def test_a_row_that_no_message_can_hold_goes_as_any_other(view):
    view.start_at(0)
    partition = Partition(view.at(0), 0)
    row = view.tables.v4.row(QUEUE, partition, view.insert(0, dead=True))
    mail = replace(row.item.mail, attributes={"name": b"\xff"})
    view.tables.v4.insert_future(replace(row, item=replace(row.item, mail=mail)))
    assert view.take("plan")["planned"] == 1


def test_what_a_row_takes_is_measured_by_a_few_ids_and_fails_no_plan(view, monkeypatch):
    """Pages of whole rows may be larger than Cassandra reads in time."""

    def unanswered(*_):
        raise StoreUnavailable("no answer")

    view.start_at(0)
    view.insert(0, dead=True)
    monkeypatch.setattr(MemoryEnqueuedMails, "rows_of", unanswered)
    assert view.take("plan")["bytes"] > 0
    monkeypatch.setattr(MemoryEnqueuedMails, "by_ids", unanswered)
    assert view.take("plan")["bytes"] == 0


def test_content_start_passes_no_slice_that_was_open_when_it_was_read(view, monkeypatch):
    """What comes into it later is found by the next run."""
    view.start_at(0)
    view.insert(0, dead=True)
    drop, late = duties.drop_proved_marks, []

    def meanwhile(*given):
        view.tables.browse_starts.write(QUEUE, view.at(31), epoch_us(NOW + HOUR))
        late.append(view.insert(30, dead=True))
        return drop(*given)

    monkeypatch.setattr(duties, "drop_proved_marks", meanwhile)
    view.take("plan", "check", "apply", "verify", "report")
    assert view.tables.content_starts.get(QUEUE).value == view.at(29)
    assert view.take("plan", clock=lambda: NOW + 3 * HOUR)["planned"] == 1


@pytest.mark.parametrize("step", ["read_remaining", "drop_proved_marks"])
@pytest.mark.parametrize(("live", "in_view"), [(3, False), (0, True)], ids=["behind", "in view"])
def test_a_mark_that_goes_before_its_row_is_an_alarm_in_view_alone(
    view, monkeypatch, live, in_view, step
):
    """Also one that this run drops, after it read what is left. Behind the browseStart of this run
    a clear of James drops marks, then rows.
    """
    view.start_at(0)
    dead = view.insert(1, dead=True)
    view.insert(live, dead=False)
    take = getattr(duties, step)

    def unmarked(*args):
        drop_marks(view.tables.deleted, QUEUE, [dead])
        return take(*args)

    monkeypatch.setattr(duties, step, unmarked)
    monkeypatch.setattr(duties, "delete_partitions", lambda *_: (0, {}))
    view.take("plan", "check", "apply")
    assert view.rows(1) == {dead}
    if in_view:
        with pytest.raises(GateFailed, match="planned_rows_left_without_mark: 1"):
            view.take("verify")
    else:
        assert view.take("verify")["success"]


def test_a_row_of_a_slice_that_stays_loses_its_mark_only_with_an_alarm(view, monkeypatch):
    view.start_at(0)
    dead = [view.insert(1, dead=True), view.insert(1, dead=True)]
    view.insert(0, dead=False)
    view.take("plan", "check")
    view.insert(1, dead=True)  # so that the slice stays
    view.take("apply")
    assert view.take("verify")["success"]
    drop_marks(view.tables.deleted, QUEUE, dead)
    with pytest.raises(GateFailed, match="planned_rows_left_without_mark: 2"):
        view.take("verify")


def test_only_the_rows_of_the_plan_are_judged_and_acted_on(view):
    view.start_at(0)
    view.insert(0, dead=True)
    view.take("plan", "check")
    file = view.files.file("plan/partitions.parquet")
    other = view.files.artifacts.read(file)
    view.insert(1, dead=True)
    view.take("plan", "check")
    view.files.artifacts.write(file, other)
    for step in ("apply", "check"):
        with pytest.raises(PlanRefused, match=r"partitions\.parquet of the plan was changed"):
            view.take(step)
    assert len(view.rows(0)) == len(view.rows(1)) == 1


def test_partitions_that_do_not_hold_what_the_plan_says_are_refused(view, monkeypatch):
    view.start_at(0)
    view.insert(0, dead=True)
    of = plan.PlannedPartition.of
    with monkeypatch.context() as patch:
        patch.setattr(plan.PlannedPartition, "of", lambda found: replace(of(found), rows=2))
        view.take("plan")
    with pytest.raises(PlanRefused, match="hold 2 rows, its digest says 1"):
        view.take("check")


def test_a_sweep_that_is_planned_again_keeps_what_it_has_listed(view, monkeypatch):
    sweep = Params(grace=HOUR, sweep=True)
    view.start_at(0)
    view.insert(3, dead=False)
    listed = []

    def record(run, _rows, _grace):
        file = RowGroup("marks-1.parquet", 0, 1, "0")
        run.folder.artifacts.write(run.folder.file("marks/marks-1.parquet"), b"x")
        found = Candidates(run=run.request.run, listed_at=NOW, files=(file,))
        value = found.as_json()
        note = json.dumps({**value, "digest": digest_of(value)}).encode()
        run.folder.artifacts.write("runs/queue_cleanup/spool/candidates.json", note)
        listed.append(found)
        return found

    monkeypatch.setattr(candidates, "record", record)
    report = view.take("plan", "check", "apply", "verify", "report", params=sweep)
    assert report["marks"]["listed"] == 1
    view.take("plan", params=sweep)
    assert view.files.artifacts.exists(view.files.file("marks/marks-1.parquet"))
    decided = view.files.read_json("plan.json")["decided"]
    assert decided["candidates"] == listed[0].as_json()


def test_marks_that_a_sweep_lists_go_by_a_later_run(view, monkeypatch):
    """Rows before contentStart go with the sweep; one without a mark is reported."""
    monkeypatch.setattr(candidates, "estimated_marks", lambda _: 0)
    monkeypatch.setattr(candidates, "token_ranges", lambda *_: ["all"])
    view.start_at(5)
    before, stray = view.insert(1, dead=True), view.insert(2, dead=False)
    view.insert(6, dead=False)
    held, orphan = view.insert(6, dead=True), EnqueueId(uuid.uuid4())
    view.tables.deleted.mark_many(QUEUE, [orphan])
    steps = ("plan", "check", "apply", "verify", "report")
    report = view.take(*steps, params=Params(grace=HOUR, sweep=True))
    assert (report["applied"], report["marks"]["listed"]) == (1, 1)
    assert [row["enqueueId"] for row in report["strays"]] == [str(stray)]
    assert "1 rows without a mark stay (--sweep" in report["message"]
    deleted = view.tables.deleted
    assert [deleted.is_marked(QUEUE, one) for one in (before, held, orphan)] == [False, True, True]
    assert view.take(*steps)["marks"]["waiting"] == 1  # a slice of that time is not closed
    report = view.take(*steps, clock=lambda: NOW + 3 * HOUR)
    assert (report["marks"]["dropped"], report["marks"]["waiting"]) == (1, 0)
    assert [deleted.is_marked(QUEUE, one) for one in (held, orphan)] == [True, False]
    assert candidates.recorded(run_of(view.folder, "queue_cleanup")) is None


def remove(path):
    path.unlink()


def shorten(path):
    path.write_bytes(path.read_bytes()[:-20])


def rewrite(path, order):
    groups = [pq.ParquetFile(path).read_row_group(number) for number in range(3)]
    with pq.ParquetWriter(path, groups[0].schema) as writer:
        for number in order:
            writer.write_table(groups[number])


def of_an_earlier_version(path):
    """A list of one file, its marks and their SHA-256."""
    note = path.parents[2] / "candidates.json"
    value = json.loads(note.read_text())
    value["files"] = [[path.name, 3, hashlib.sha256(path.read_bytes()).hexdigest()]]
    del value["digest"]
    note.write_text(json.dumps({**value, "digest": digest_of(value)}))


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (remove, "cannot be read, it was changed or removed"),
        (shorten, "cannot be read, it was changed or removed"),
        (lambda path: rewrite(path, [1, 0, 2]), "the rows of its group 0 have another digest"),
        (lambda path: rewrite(path, [1, 2]), "the rows of its group 0 have another digest"),
        (of_an_earlier_version, None),
    ],
)
def test_a_list_of_marks_that_differs_drops_nothing_and_is_made_anew(view, monkeypatch, harm, why):
    monkeypatch.setattr(candidates, "estimated_marks", lambda _: 0)
    monkeypatch.setattr(candidates, "token_ranges", lambda *_: ["all"])
    monkeypatch.setattr(spark_marks, "IDS_A_GROUP", 1)
    orphans = [EnqueueId(uuid.uuid4()) for _ in range(3)]
    pages = [pack([one]) for one in orphans]
    monkeypatch.setattr(MemoryDeletedMails, "packed_ids_of", lambda *_: pages)
    view.start_at(5)
    view.insert(6, dead=False)
    view.tables.deleted.mark_many(QUEUE, orphans)
    steps, sweep = ("plan", "check", "apply", "verify", "report"), Params(grace=HOUR, sweep=True)
    assert view.take(*steps, params=sweep)["marks"]["listed"] == 3
    (path,) = view.folder.rglob("marks-*.parquet")
    harm(path)
    report = view.take(*steps, clock=lambda: NOW + 3 * HOUR)["marks"]
    assert (report["dropped"], report["waiting"]) == (0, 3 if why else 0)
    assert not why or (why in report["why"][0] and f"the file {path.name} " in report["why"][0])
    assert view.tables.deleted.marked(QUEUE, orphans) == set(orphans)
    assert view.take(*steps, params=sweep)["marks"]["listed"] == 3
    assert view.take(*steps, clock=lambda: NOW + 3 * HOUR)["marks"]["dropped"] == 3


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("sweep", [False, True])
def test_a_sweep_names_rows_without_a_mark_between_the_starts_where_no_james_cleans(
    view, monkeypatch, sweep, shared
):
    monkeypatch.setattr(candidates, "estimated_marks", lambda _: 0)
    queue = view.settings.queue.model_copy(update={"shared": shared})
    view.settings = view.settings.model_copy(update={"queue": queue})
    view.start_at(2)
    view.tables.browse_starts.write(QUEUE, view.at(5), epoch_us(NOW))
    before, between, _ = (view.insert(number, dead=False) for number in (1, 4, 5))
    view.insert(4, dead=True)
    report = view.take("plan", params=Params(grace=HOUR, sweep=sweep))
    named = ([before] if shared else [before, between]) if sweep else []
    assert [row["enqueueId"] for row in report["strays"]] == [str(one) for one in named]


def strays_between_the_starts(view, monkeypatch):
    monkeypatch.setattr(candidates, "estimated_marks", lambda _: 0)
    view.start_at(2)
    view.tables.browse_starts.write(QUEUE, view.at(5), epoch_us(NOW))
    return [view.insert(number, dead=False) for number in (1, 4)]


def test_between_the_starts_a_row_may_be_of_a_clear_while_a_worker_of_the_last_day_was_shared(
    view, monkeypatch
):
    """As after `config shared false`: James may have dropped its mark, and was ended then."""
    before, _ = strays_between_the_starts(view, monkeypatch)
    view.dissenters = ["a worker of yesterday"]
    report = view.take("plan", params=Params(grace=HOUR, sweep=True))
    assert [row["enqueueId"] for row in report["strays"]] == [str(before)]


def test_what_a_sweep_says_of_rows_without_a_mark_does_not_contradict_itself(view, monkeypatch):
    strays_between_the_starts(view, monkeypatch)
    message = view.take("plan", params=Params(grace=HOUR, sweep=True))["message"]
    assert "2 rows without a mark lie behind browseStart; `--sweep --aside` sets 2 rows" in message


def test_a_sweep_that_finds_more_rows_without_a_mark_than_it_names_says_so(view, monkeypatch):
    monkeypatch.setattr(candidates, "estimated_marks", lambda _: 0)
    monkeypatch.setattr(candidates, "token_ranges", lambda *_: ["all"])
    for module in (planner, duties):
        monkeypatch.setattr(module, "MAX_ORPHAN_ROWS", 1)
    view.start_at(5)
    view.insert(1, dead=True)
    for slice_ in (2, 3, 6):
        view.insert(slice_, dead=False)
    steps, sweep = ("plan", "check", "apply", "verify", "report"), Params(grace=HOUR, sweep=True)
    report = view.take(*steps, params=sweep)
    assert len(report["strays"]) == 1
    assert "1 or more rows without a mark stay (--sweep" in report["message"]


@pytest.fixture
def rounds(monkeypatch):
    """One key a round of marks; the function is called after each."""
    monkeypatch.setattr(marks, "marks_a_round", lambda *_: 1)

    def after_each(act):
        crash.arm(lambda name: act() if name == "apply:inside-marks" else None)

    yield after_each
    crash.arm(None)


def test_the_time_limit_ends_the_marks_after_a_round_and_content_start_moves(
    view, monkeypatch, rounds
):
    view.start_at(0)
    gone = [view.insert(number, dead=True) for number in (0, 0, 1, 2)]
    view.insert(3, dead=False)
    late = []
    monkeypatch.setattr(Run, "out_of_time", lambda _: bool(late))
    rounds(lambda: late.append(True))
    report = view.take("plan", "check", "apply", "verify", "report")
    assert (report["status"], report["applied"]) == ("done", 4)
    assert report["marks"]["dropped"] == 2
    assert (report["marks"]["waiting"], report["marks"]["why"]) == (2, ["2: time limit"])
    assert view.tables.deleted.marked(QUEUE, gone) == set(gone[2:])
    assert view.tables.content_starts.get(QUEUE).value == view.at(3)


def test_no_mark_goes_once_the_time_is_over(view, monkeypatch):
    view.start_at(0)
    gone = view.insert(0, dead=True)
    late = []
    monkeypatch.setattr(Run, "out_of_time", lambda _: bool(late))
    with monkeypatch.context() as patch:
        patch.setattr(duties, "drop_proved_marks", late_first(late))
        report = view.take("plan", "check", "apply", "verify", "report")
    assert (report["marks"]["dropped"], report["marks"]["why"]) == (0, ["1: time limit"])
    assert view.tables.deleted.is_marked(QUEUE, gone)


def late_first(late):
    def drop(*given):
        late.append(True)
        return marks.drop_proved_marks(*given)

    return drop


def test_a_lock_that_is_lost_ends_the_marks_after_a_round(view, monkeypatch, rounds):
    view.start_at(0)
    gone = [view.insert(number, dead=True) for number in (0, 1, 2)]
    lost = []

    def require_lock(_):
        if lost:
            raise LockLost("it was not renewed")

    monkeypatch.setattr(Run, "require_lock", require_lock)
    rounds(lambda: lost.append(True))
    view.take("plan", "check")
    with pytest.raises(LockLost):
        view.take("apply")
    assert view.tables.deleted.marked(QUEUE, gone) == set(gone[1:])


@pytest.mark.parametrize(
    ("point", "done"),
    [("second-read", 0), ("browse-start", 1), ("aside", 1), ("read-back", 2), ("marks", 3)],
)
def test_a_lock_that_is_lost_lets_no_further_change_through(view, monkeypatch, point, done):
    """Another run may work on the queue by then."""
    view.start_at(0)
    gone = [view.insert(number, dead=True) for number in (0, 1, 2)]
    lost = set()

    def require_lock(_):
        if f"apply:after-{point}" in lost:
            raise LockLost("it was not renewed")

    def state():
        starts = view.tables.browse_starts, view.tables.content_starts
        browse, content = (table.get(QUEUE).value for table in starts)
        rows = [view.rows(number) for number in (0, 1, 2)]
        return [browse, rows, view.tables.deleted.marked(QUEUE, gone), content]

    monkeypatch.setattr(Run, "require_lock", require_lock)
    monkeypatch.setattr("mailslice.model.crash.point", lost.add)
    view.take("plan", "check")
    before = state()
    with pytest.raises(LockLost):
        view.take("apply")
    changed = [one != other for one, other in zip(before, state(), strict=True)]
    assert changed == [True] * done + [False] * (4 - done)


def test_a_list_of_marks_that_the_time_limit_left_is_gone_on_with(view, monkeypatch, rounds):
    monkeypatch.setattr(candidates, "estimated_marks", lambda _: 0)
    monkeypatch.setattr(candidates, "token_ranges", lambda *_: ["all"])
    monkeypatch.setattr(spark_marks, "IDS_A_GROUP", 1)

    orphans = [EnqueueId(uuid.uuid4()) for _ in range(3)]

    def pages(self, queue, *_):
        return [pack([one]) for one in orphans if self.is_marked(queue, one)]

    monkeypatch.setattr(MemoryDeletedMails, "packed_ids_of", pages)
    view.start_at(5)
    view.insert(6, dead=False)
    view.tables.deleted.mark_many(QUEUE, orphans)
    steps = ("plan", "check", "apply", "verify", "report")
    assert view.take(*steps, params=Params(grace=HOUR, sweep=True))["marks"]["listed"] == 3
    late = []
    monkeypatch.setattr(Run, "out_of_time", lambda _: bool(late))
    rounds(lambda: late.append(True))
    report = view.take(*steps, clock=lambda: NOW + 3 * HOUR)
    assert (report["marks"]["dropped"], report["marks"]["why"]) == (1, ["2: time limit"])
    assert candidates.recorded(run_of(view.folder, "queue_cleanup")).marks == 2
    late.clear()
    rounds(lambda: None)
    report = view.take(*steps, clock=lambda: NOW + 3 * HOUR)
    assert (report["marks"]["dropped"], report["marks"]["waiting"]) == (2, 0)
    assert not view.tables.deleted.marked(QUEUE, orphans)
    assert candidates.recorded(run_of(view.folder, "queue_cleanup")) is None


def test_a_round_is_of_keys_that_together_are_not_many_or_of_one_a_slot():
    keys = [("a", 3), ("b", 4), ("c", 9), ("d", 1)]
    assert list(marks.rounds(keys, 7, 1)) == [(0, keys[:2]), (2, keys[2:3]), (3, keys[3:])]
    assert list(marks.rounds(keys, 7, 3)) == [(0, keys[:3]), (3, keys[3:])]
    assert list(marks.rounds(keys, 99, 1)) == [(0, keys)]
    assert list(marks.rounds([], 7, 1)) == []


@pytest.mark.parametrize(
    ("rate", "intensity", "most"),
    [(None, 1.0, 50_000), (None, 0.1, 50_000), (1000, 1.0, 8000), (1000, 0.5, 4000)],
)
def test_a_round_is_of_a_few_seconds(rate, intensity, most):
    assert marks.marks_a_round(Throttle(rate, intensity), 2) == most


def test_the_rate_holds_over_rounds(view, monkeypatch, rounds):
    """A worker's copy of a throttle lets its first marks through at once."""
    paused = []
    monkeypatch.setattr(duties, "delete_partitions", unhurried(duties.delete_partitions))
    throttle = Throttle(2, clock=lambda: 10.0, sleep=paused.append)
    monkeypatch.setattr(Run, "throttle", lambda *_: throttle)
    view.start_at(0)
    for number in (0, 0, 0, 0, 1, 2):
        view.insert(number, dead=True)
    report = view.take("plan", "check", "apply", "verify", "report")
    assert report["marks"]["dropped"] == 6
    assert paused == [1.75, 2.25]


@pytest.mark.parametrize(("skew", "stored"), [(3, 1), (20, 0)])
def test_a_run_with_a_large_grace_stores_no_sample_that_runs_with_the_usual_one_would_trust(
    view, monkeypatch, skew, stored
):
    """A quarter of the usual 15 minutes is allowed; a quarter of this run's 2 hours is more."""
    saved, ticks = [], count()
    monkeypatch.setattr(marks, "take_sample", partial(drained.take_sample, sleep=lambda _: None))
    samples = SimpleNamespace(get=lambda _: None, save=lambda _, sample: saved.append(sample))
    view.stores.own.queue_samples, view.stores.management = samples, None
    queue = view.settings.queue.model_copy(update={"shared": True})
    view.settings = view.settings.model_copy(update={"queue": queue})

    def require_clock(_clock, allowed, remedy):
        if timedelta(minutes=skew) > allowed:
            raise ClockSkew(remedy)

    view.stores.cassandra = SimpleNamespace(require_clock=require_clock)
    monkeypatch.setattr(drained, "shows_no_messages", lambda *_: True)
    monkeypatch.setattr(marks, "dead_letter_ids", lambda *_: set())
    view.start_at(0)
    view.insert(0, dead=True)
    view.take(
        *("plan", "check", "apply"),
        params=Params(grace=2 * HOUR),
        clock=lambda: NOW + next(ticks) * timedelta(seconds=16),
    )
    report = view.files.read_json("applied.json")
    assert (report["marks"]["dropped"], report["marks"]["proof"]) == (1, "drained")
    assert len(saved) == stored


@pytest.mark.parametrize(
    ("early", "reading", "dropped"),
    [(SECOND, 0 * SECOND, 0), (0 * SECOND, 0 * SECOND, 1), (0 * SECOND, SECOND, 0)],
)
def test_a_sample_of_another_run_is_trusted_by_the_larger_of_both_graces(
    view, monkeypatch, early, reading, dropped
):
    """Another run's clock may differ by a quarter of the usual grace, whatever this one's is.

    A mark may be written while the plan reads marks: the end of `reading` counts.
    """
    scan, began = planner.scan, []

    def scanned(*args):
        began.append(NOW)
        return scan(*args)

    monkeypatch.setattr(planner, "scan", scanned)
    seen = NOW + view.settings.duty.grace / 2 - early
    samples = SimpleNamespace(get=lambda _: QueueSample(seen, seen))
    view.stores.own.queue_samples, view.stores.management = samples, None
    queue = view.settings.queue.model_copy(update={"shared": True})
    view.settings = view.settings.model_copy(update={"queue": queue})
    monkeypatch.setattr(drained, "shows_no_messages", lambda *_: False)
    monkeypatch.setattr(marks, "dead_letter_ids", lambda *_: set())
    view.start_at(0)
    view.insert(0, dead=True)
    clock = lambda: NOW + reading * bool(began)
    view.take("plan", "check", "apply", params=Params(grace=SECOND), clock=clock)
    assert view.files.read_json("applied.json")["marks"]["dropped"] == dropped


@pytest.mark.parametrize(("grace", "later"), [(HOUR / 60, 0 * HOUR), (5 * HOUR / 4, HOUR / 4)])
def test_a_sweep_with_a_large_grace_dates_its_list_later(view, monkeypatch, grace, later):
    """Its clock may be behind by a quarter of that grace; later runs allow for the usual one."""
    monkeypatch.setattr(candidates, "estimated_marks", lambda _: 0)
    monkeypatch.setattr(candidates, "token_ranges", lambda *_: ["all"])
    view.start_at(0)
    view.tables.deleted.mark_many(QUEUE, [EnqueueId(uuid.uuid4())])
    view.take("plan", "check", "apply", params=Params(grace=grace, sweep=True))
    listed = candidates.recorded(run_of(view.folder, "queue_cleanup"))
    assert listed.listed_at == NOW + later


@pytest.mark.parametrize(("early", "dropped"), [(SECOND, 0), (0 * SECOND, 1)])
def test_a_list_of_an_own_queue_waits_for_the_usual_grace_however_short_that_of_the_run_is(
    view, monkeypatch, early, dropped
):
    """Worker, enqueuer and sweep may be wrong by a quarter of the usual grace each."""
    monkeypatch.setattr(candidates, "estimated_marks", lambda _: 0)
    monkeypatch.setattr(candidates, "token_ranges", lambda *_: ["all"])
    view.start_at(0)
    orphan = EnqueueId(uuid.uuid4())
    view.tables.deleted.mark_many(QUEUE, [orphan])
    view.take("plan", "check", "apply", params=Params(grace=SECOND, sweep=True))
    later = NOW + HOUR + view.settings.duty.grace - early
    view.take("plan", "check", "apply", params=Params(grace=SECOND), clock=lambda: later)
    assert view.files.read_json("applied.json")["marks"]["dropped"] == dropped
    assert view.tables.deleted.is_marked(QUEUE, orphan) is not bool(dropped)


@pytest.mark.parametrize("meanwhile", ["a live row", "James raises it"])
def test_the_warning_about_repairs_is_by_the_browse_start_after_apply(view, monkeypatch, meanwhile):
    """Slices after it are emptied; the planned start may be another than the one that came."""
    unrepaired = SimpleNamespace(is_recent=lambda _: False, sentence=lambda: "never repaired")
    monkeypatch.setattr(planner, "table_repairs", lambda *_: [unrepaired])
    view.start_at(0)
    if meanwhile == "James raises it":
        view.insert(0, dead=False)
    for number in (1, 5):
        view.insert(number, dead=True)
    view.take("plan", "check")
    planned = view.files.read_json("plan.json")["unrepaired"]
    if meanwhile == "a live row":
        view.insert(0, dead=False)
    else:
        view.james_writes_browse_start(6)
    report = view.take("apply", "verify", "report")
    assert report["applied"] == 2
    is_risk = meanwhile != "James raises it"
    assert (planned, report["unrepaired"]) == (
        ([], ["never repaired"]) if is_risk else (["never repaired"], [])
    )
    assert ("never repaired" in report["message"]) is is_risk


def unhurried(delete):
    return lambda run, partitions, _: delete(run, partitions, Throttle(None))


@pytest.mark.parametrize(("marks", "used"), [(10, "process"), (11, "Spark")])
def test_a_sweep_over_many_marks_is_no_small_run(view, monkeypatch, marks, used):
    """Nothing else of it is large."""
    monkeypatch.setattr(candidates, "estimated_marks", lambda _: marks)
    view.start_at(0)
    view.insert(3, dead=False)
    engine = Engine(view.settings, "cleanup", 10, in_process=True)
    view.take("plan", params=Params(grace=HOUR, sweep=True), engine=engine)
    assert engine.used == used


def test_many_marks_of_an_earlier_sweep_are_no_small_run(view, monkeypatch):
    found = Candidates(run="r-0", listed_at=NOW, files=(RowGroup("f", 0, 11, "0"),))
    monkeypatch.setattr(candidates, "recorded", lambda _: found)
    view.start_at(0)
    engine = Engine(view.settings, "cleanup", 10, in_process=True)
    view.take("plan", engine=engine)
    assert engine.used == "Spark"


def failing_deletes(view, monkeypatch, error):
    """Those of the slices 0 and 1 end in this error."""

    def result():
        raise error

    delete = MemoryEnqueuedMails.delete_partition_future

    def fail(self, queue, partition, timestamp_us):
        if partition.slice_start > view.at(1):
            return delete(self, queue, partition, timestamp_us)
        return SimpleNamespace(result=result)

    monkeypatch.setattr(MemoryEnqueuedMails, "delete_partition_future", fail)


def test_partitions_that_failed_are_named_and_counted(view, monkeypatch):
    view.start_at(0)
    for number in (0, 1, 2):
        view.insert(number, dead=True)
    failing_deletes(view, monkeypatch, StoreUnavailable("no answer"))
    monkeypatch.setattr(duties, "MAX_NAMED", 1)
    report = view.take("plan", "check", "apply", "verify", "report")
    assert (report["status"], report["applied"], report["failed"]) == ("failed", 1, 2)
    assert report["failures"] == {
        f"v4 {iso(view.at(0))} bucket 0": "no answer",
        "1 more partitions": "as these",
    }


def test_a_fault_of_ours_is_raised_not_told_of_a_partition(view, monkeypatch):
    view.start_at(0)
    view.insert(0, dead=True)
    view.take("plan", "check")
    failing_deletes(view, monkeypatch, TypeError("a fault"))
    with pytest.raises(TypeError, match="a fault"):
        view.take("apply")
