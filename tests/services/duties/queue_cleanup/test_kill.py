"""kill -9 at every boundary of apply, and inside it.

The next run ends in the state that an undisturbed one would have (I7).
"""

import json
import signal
import subprocess
import sys
import time
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from mailslice.maintenance import runner
from mailslice.maintenance.lock import TTL
from mailslice.model.settings import clone_root
from mailslice.stores.cassandra.deleted_mails import DeletedMails
from mailslice.stores.cassandra.session import CassandraSession
from tests.services.duties.queue_cleanup.test_marks import seen_empty, soon
from tests.services.duties.world import environment

soak = pytest.mark.soak
POINTS = [
    pytest.param("apply:locked", marks=soak),
    pytest.param("apply:after-second-read", marks=soak),
    "apply:after-browse-start",
    "apply:inside-deletes",
    pytest.param("apply:after-deletes", marks=soak),
    "apply:after-read-back",
    "apply:inside-marks",
    "apply:after-marks",
    pytest.param("apply:after-content-start", marks=soak),
]


def filled(view):
    """Dead slices around a stuck mail: (ids that are to go, ids that stay)."""
    view.start_at(0)
    gone = [view.insert(number, dead=True) for number in (0, 0, 1, 2, 5)]
    stays = [view.insert(3, dead=True), view.insert(3, dead=False)]
    return gone, stays


def assert_clean(view, gone, stays):
    assert [view.rows(number) for number in (0, 1, 2, 5)] == [set()] * 4
    assert view.rows(3) == set(stays)
    assert [view.is_marked(each) for each in gone] == [False] * len(gone)
    assert [view.is_marked(each) for each in stays] == [True, False]
    assert (view.browse_start, view.content_start) == (view.at(3), view.at(3))


def later(view, monkeypatch, **params):
    """A run when the slices of now are closed: then an own queue's marks without a row may go."""
    with monkeypatch.context() as patch:
        patch.setattr(CassandraSession, "skew_of", lambda *_: timedelta(0))
        return view.clean(clock=lambda: datetime.now(UTC) + timedelta(minutes=16), **params)


@pytest.mark.parametrize("point", POINTS)
def test_the_runs_after_a_kill_end_in_the_same_state(view, point, monkeypatch):
    """Rows by the next run, marks by the next sweep and the run after it."""
    gone, stays = filled(view)
    request = view.request()
    view.steps(request, "plan", "check")
    view.kill("apply", request, point)
    view.let_the_locks_run_out()
    report = view.clean(sweep=True)
    assert report["status"] in {"done", "nothing to do"}
    later(view, monkeypatch)
    assert_clean(view, gone, stays)


@pytest.mark.parametrize(
    "point",
    [
        "apply:inside-sweep",
        pytest.param("apply:after-marks", marks=soak),
        pytest.param("apply:after-content-start", marks=soak),
    ],
)
def test_a_sweep_that_is_killed_loses_no_mark(view, point, monkeypatch):
    gone, stays = filled(view)
    orphan = uuid.uuid4()
    view.mark(orphan)
    request = view.request(sweep=True)
    view.steps(request, "plan", "check")
    view.kill("apply", request, point)
    view.let_the_locks_run_out()
    view.clean(sweep=True)
    assert view.is_marked(orphan)
    later(view, monkeypatch)
    assert_clean(view, [*gone, orphan], stays)


def test_a_run_that_is_killed_while_it_drops_what_a_sweep_listed_is_finished_by_the_next(
    view, monkeypatch
):
    orphans = [uuid.uuid4() for _ in range(3)]
    gone, stays = filled(view)
    for each in orphans:
        view.mark(each)
    view.clean(sweep=True)
    dropped = DeletedMails.drop_packed

    def one_only(self, queue, lists, in_flight=8):
        for packed in lists:
            dropped(self, queue, [packed[:20]], in_flight)
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DeletedMails, "drop_packed", one_only)
        with pytest.raises(KeyboardInterrupt):
            later(view, patch)
    assert sum(view.is_marked(each) for each in orphans) == 2
    report = later(view, monkeypatch)
    assert (report["marks"]["dropped"], report["marks"]["waiting"]) == (2, 0)
    assert_clean(view, [*gone, *orphans], stays)


def test_a_plan_that_was_killed_changed_nothing_and_the_next_run_goes_its_way(view):
    gone, stays = filled(view)
    before = [view.rows(number) for number in range(6)]
    view.kill("plan", view.request(), "plan:after-scan")
    assert [view.rows(number) for number in range(6)] == before
    assert (view.browse_start, view.content_start) == (view.at(0), view.at(0))
    assert view.clean()["status"] == "done"
    assert_clean(view, gone, stays)


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("apply:after-aside", marks=soak),
        "apply:inside-deletes",
        pytest.param("apply:after-deletes", marks=soak),
        "apply:after-marks",
    ],
)
def test_the_same_plan_applied_again_after_a_kill_ends_in_the_same_state(view, point):
    """As an Airflow retry of the task does."""
    gone, stays = filled(view)
    request = view.request()
    view.steps(request, "plan", "check")
    view.kill("apply", request, point)
    view.let_the_locks_run_out()
    view.steps(request, "apply", "verify")
    report = view.steps(request, "report")
    assert (report["planned"], report["applied"], report["failed"]) == (5, 5, 0)
    assert_clean(view, gone, stays)


AT_A_FILE = """
import json, os, signal, sys
from mailslice.maintenance import runner
from mailslice.maintenance.artifacts import Artifacts
from mailslice.maintenance.run_request import RunRequest
from mailslice.model.settings import load_settings
from tests.services.duties.world import as_set, in_process

tools = in_process(agree=as_set)
step, queue, run, params, last = sys.argv[1:]
write = Artifacts.write

def killed(artifacts, name, data):
    write(artifacts, name, data)
    if name.endswith(last):
        os.kill(os.getpid(), signal.SIGKILL)

Artifacts.write = killed
request = RunRequest("queue_cleanup", queue, run, params=json.loads(params))
if step == "all":
    runner.run_small(request, load_settings(), tools=tools)
else:
    runner.run_step(step, request, load_settings(), tools=tools)
"""


def kill_at_file(view, step, request, written):
    """The step, or all of a small run, in a process that dies once it has written that file."""
    arguments = [step, request.queue, request.run, json.dumps(dict(request.params)), written]
    done = subprocess.run(
        [sys.executable, "-c", AT_A_FILE, *arguments],
        env=environment(view.settings),
        cwd=clone_root(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr


def test_a_sweep_that_is_killed_once_its_list_has_taken_the_place_of_the_one_before_loses_no_mark(
    view, monkeypatch
):
    gone, stays = filled(view)
    first, second = uuid.uuid4(), uuid.uuid4()
    view.mark(first)
    assert view.clean(sweep=True)["marks"]["listed"] == 1
    view.mark(second)
    request = view.request(sweep=True)
    view.steps(request, "plan", "check")
    kill_at_file(view, "apply", request, "/candidates.json")
    view.let_the_locks_run_out()
    assert view.is_marked(second)
    assert later(view, monkeypatch)["marks"]["waiting"] == 0
    assert_clean(view, [*gone, first, second], stays)


@pytest.mark.parametrize(
    "written",
    [
        "applied.json",
        *(
            pytest.param(f"{step}.json", marks=soak)
            for step in ("plan", "check", "verify", "report")
        ),
    ],
)
def test_a_small_run_of_airflow_that_is_killed_between_two_steps_tells_all_it_did(view, written):
    """Its five steps are one process, whose retry goes on with the same plan."""
    gone, stays = filled(view)
    request = view.request()
    kill_at_file(view, "all", request, f"/{written}")
    runner.run_small(request, view.settings, tools=view.tools)
    report = runner.small_run_summary("report", request, view.settings)
    assert (report["status"], report["planned"], report["applied"]) == ("done", 5, 5)
    assert_clean(view, gone, stays)


def test_a_small_run_that_ended_without_airflow_hearing_of_it_stays_in_the_ledger(view):
    gone, stays = filled(view)
    request = view.request()
    for _ in range(2):
        runner.run_small(request, view.settings, tools=view.tools)
    row = view.stores.records.runs.get(request.run)
    assert (row.status, json.loads(row.report)["applied"]) == ("done", 5)
    assert_clean(view, gone, stays)


def test_marks_of_a_killed_run_wait_for_a_sweep_and_a_proof(shared_view):
    gone, stays = filled(shared_view)
    request = shared_view.request()
    shared_view.steps(request, "plan", "check")
    shared_view.kill("apply", request, "apply:after-deletes")
    shared_view.let_the_locks_run_out()
    report = shared_view.clean(sweep=True)
    assert (report["planned"], report["marks"]["listed"]) == (0, 5)
    assert shared_view.clean()["marks"]["waiting"] == 5
    seen_empty(shared_view, soon())
    assert shared_view.clean()["marks"]["dropped"] == 5
    assert_clean(shared_view, gone, stays)


def test_a_run_whose_tasks_are_cleared_plans_anew_and_loses_no_mark_of_the_first_plan(
    view, monkeypatch
):
    gone, stays = filled(view)
    request = view.request()
    view.steps(request, "plan", "check")
    view.kill("apply", request, "apply:after-deletes")
    view.let_the_locks_run_out()
    view.steps(request, "plan", "check", "apply", "verify")
    view.clean(sweep=True)
    later(view, monkeypatch)
    assert_clean(view, gone, stays)


@pytest.mark.parametrize("left", [timedelta(seconds=5), pytest.param(TTL, marks=soak)])
def test_a_killed_owners_lock_delays_the_next_run_by_what_is_left_of_a_minute(view, left):
    gone, stays = filled(view)
    request = view.request()
    view.steps(request, "plan", "check")
    view.kill("apply", request, "apply:after-browse-start")
    view.let_the_locks_run_out()
    view.stores.own.locks.acquire(
        f"queue_cleanup/{view.queue}", request.run, left
    )  # as it was, with less time left
    began = time.monotonic()
    report = view.clean()
    assert left.total_seconds() / 2 < time.monotonic() - began < left.total_seconds() + 60
    assert report["status"] == "done"
    assert_clean(view, gone, stays)
    assert timedelta(minutes=1) >= TTL
