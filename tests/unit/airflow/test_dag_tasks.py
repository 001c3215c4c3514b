"""James' tasks as runs: which run does a task, and what a run's state is in James' words."""

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from mailslice.actions.request import ActionRequest
from mailslice.airflow.dag_tasks import CANCELED, DagTasks, conf_of
from mailslice.airflow.runs import DagRunState, TaskState
from mailslice.cockpit.facts import Facts
from mailslice.maintenance.artifacts import RunFolder, artifacts
from mailslice.maintenance.file_stores import DiskFiles
from mailslice.maintenance.run_request import NO_QUEUE, run_of_dag
from mailslice.model.errors import BadInput, StoreUnavailable, TryAgain
from mailslice.model.mail import QueueName
from mailslice.model.settings import DutySettings, Settings
from mailslice.webadmin.tasks import Status, TaskRequest, TaskType

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
ID = UUID("0b5a7d56-5c1c-4f7b-9c1e-3f0c2d5a9b11")
DELETE = {"queue": "spool", "action": "delete", "digest": "any", "sender": "a@b.example"}


class Runs:
    """Airflow's runs, by hand."""

    def __init__(self):
        self.runs, self.failed = {}, []

    def add(self, state="queued", dag="x_mail_actions", conf=None, run=str(ID), **more):
        values = {"queued": NOW, "started": None, "ended": None, "note": None, **more}
        self.runs[run] = DagRunState(dag, run, state, DELETE if conf is None else conf, **values)

    def start(self, dag, conf, who, run=None):
        self.add(dag=dag, conf={**conf, "by": who}, run=run)
        return run

    def find(self, dags, run):
        found = self.runs.get(run)
        return found if found and found.dag in dags else None

    def newest(self, dags, _like, most):
        return [run for run in self.runs.values() if run.dag in dags][:most]

    def fail(self, one, note):
        self.failed.append((one.run, note))
        return True


@pytest.fixture
def runs():
    return Runs()


@pytest.fixture
def tasks(runs, tmp_path):
    return tasks_of(runs, tmp_path)


def tasks_of(runs, path, **duty):
    """No store is opened: the ledger finds a run by reading the keys of all."""
    settings = Settings(duty=DutySettings(artifacts=str(path), **duty))
    facts = Facts(lambda: settings, open_stores=lambda _settings: 1 / 0)
    return DagTasks(runs, facts, lambda name: f"x_{name}")


def request(type_, queue=None, reason=None, **params):
    return TaskRequest(ID, type_, queue, "ada", NOW, params, reason)


@pytest.mark.parametrize(
    ("asked", "dag", "conf"),
    [
        (
            request(TaskType.DELETE, "spool", "flood", sender=None, name="a*", recipient=None),
            "mail_actions",
            {"queue": "spool", "action": "delete", "digest": "any", "reason": "flood"}
            | {"name": r"a\*"},
        ),
        (
            request(TaskType.CLEAR, "spool"),
            "mail_actions",
            {"queue": "spool", "action": "clear", "digest": "any", "reason": "webadmin"},
        ),
        (
            request(TaskType.REPUBLISH, "spool", olderThan="86400s", acceptDuplicates=False),
            "mail_actions",
            {"queue": "spool", "action": "republish", "digest": "any", "reason": "webadmin"}
            | {"older_than": "86400s", "accept_duplicates": False},
        ),
        (
            request(TaskType.BROWSE_START, "spool"),
            "queue_cleanup",
            {"queues": ["spool"], "dry_run": False, "reason": "webadmin"},
        ),
        (request(TaskType.BLOB_GC), "blob_gc", {"dry_run": False, "reason": "webadmin"}),
        (
            request(TaskType.COUNTERS, trustMessageProjection=True),
            "counter_repair",
            {"dry_run": False, "reason": "webadmin", "trust_projection": True},
        ),
    ],
)
def test_each_task_is_a_run_of_a_dag_with_the_id_of_the_task(tasks, runs, asked, dag, conf):
    assert conf_of(asked) == (dag, conf)
    if dag == "mail_actions":
        assert ActionRequest.of(conf).queue == "spool"
    tasks.submit(asked)
    assert runs.runs[str(ID)].conf == {**conf, "by": "ada"}
    found = tasks.get(ID)
    assert (found.type, found.status, found.submitted) == (asked.type, Status.WAITING, NOW)


@pytest.mark.parametrize("given", [{"name": ""}, {"name": "a" * 1001}, {"name": "\ud800"}])
def test_what_the_run_would_refuse_is_refused_at_the_request(tasks, runs, given):
    with pytest.raises(BadInput):
        tasks.submit(request(TaskType.DELETE, "spool", **given))
    assert not runs.runs


@pytest.mark.parametrize(
    ("state", "note", "status"),
    [
        ("queued", None, Status.WAITING),
        ("running", None, Status.IN_PROGRESS),
        ("success", None, Status.COMPLETED),
        ("failed", None, Status.FAILED),
        ("failed", "looked at by bob", Status.FAILED),
        ("failed", CANCELED, Status.CANCELED),
    ],
)
def test_the_state_of_a_run_is_the_status_of_its_task(tasks, runs, state, note, status):
    started, ended = NOW + timedelta(seconds=1), NOW + timedelta(seconds=2)
    times = {"started": None if state == "queued" else started, "ended": ended}
    runs.add(state, note=note, **times)
    found = tasks.get(ID)
    assert (found.status, found.ended) == (status, ended if status.is_final else None)
    answer = found.as_json()
    assert answer["taskId"] == str(ID)
    assert answer["additionalInformation"]["sender"] == "a@b.example"
    assert ("error" in answer["additionalInformation"]) is (status is Status.FAILED)
    assert (answer["cancelledFrom"] is not None) is (status is Status.CANCELED)


def test_a_recount_names_the_mailboxes_that_failed(runs, tasks, tmp_path):
    runs.add("failed", dag="x_counter_repair", conf={})
    assert tasks.get(ID).information["failedMailboxes"] == []
    keep_report(tmp_path)
    about = tasks.get(ID).information
    assert (about["processedMailboxes"], about["failedMailboxes"]) == (3, ["m1", "m2"])


def test_a_report_that_is_damaged_hides_no_task(runs, tasks, tmp_path):
    runs.add("success", dag="x_counter_repair", conf={})
    artifacts(Settings(duty=DutySettings(artifacts=str(tmp_path)))).write(
        keep_report(tmp_path), b"{"
    )
    assert "processedMailboxes" not in tasks.get(ID).information


def test_a_result_that_is_damaged_hides_no_task(runs, tasks, tmp_path):
    runs.add("success", run=str(uuid4()))
    runs.add("failed", conf=REPUBLISHED)
    keep_result(tmp_path, str(ID), failed="no census")
    (file,) = tmp_path.rglob("result.json")
    file.write_text("{")
    assert "its log in Airflow has more" in tasks.get(ID).information["error"]
    assert len(tasks.newest()) == 2


@pytest.mark.parametrize("age", ["soon", "99999999d"])
def test_a_run_that_somebody_started_with_a_wrong_age_hides_no_other_task(tasks, runs, age):
    conf = {"queue": "spool", "action": "republish", "older_than": age}
    runs.add("failed", run=str(uuid4()), conf=conf)
    runs.add()
    assert ID in {task.id for task in tasks.newest()}


REPUBLISHED = {"queue": "spool", "action": "republish", "older_than": "1d"}


def keep_report(path):
    """As counter_repair writes it; the file."""
    location = artifacts(Settings(duty=DutySettings(artifacts=str(path))))
    run = run_of_dag("counter_repair", NO_QUEUE, str(ID))
    folder = RunFolder(location, "counter_repair", NO_QUEUE, run)
    failures = {"m2": "away", "m1": "away"}
    folder.write_json("report.json", {"run": "r", "processedMailboxes": 3, "failures": failures})
    return folder.file("report.json")


def keep_result(path, run, **result):
    """As mail_actions writes it."""
    location = artifacts(Settings(duty=DutySettings(artifacts=str(path))))
    run = run_of_dag("mail_actions", "spool", run)
    RunFolder(location, "mail_actions", QueueName("spool"), run).write_json("result.json", result)


def test_the_list_has_the_figures_that_a_task_by_itself_has(runs, tmp_path):
    done, waits, failed = (str(uuid4()) for _ in range(3))
    runs.add("success", run=done, conf=REPUBLISHED)
    runs.add("queued", run=waits, conf=REPUBLISHED)
    runs.add("failed", run=failed, conf=REPUBLISHED)
    runs.add("success", dag="x_counter_repair", conf={})
    keep_result(tmp_path, done, information={"nbRequeuedMails": 7})
    keep_result(tmp_path, failed, failed="the audit found no census")
    keep_report(tmp_path)
    tasks = tasks_of(runs, tmp_path)
    shown = tasks.newest()
    about = {str(task.id): task.information for task in shown}
    assert [about[run]["nbRequeuedMails"] for run in (done, waits, failed)] == [7, 0, 0]
    assert about[failed]["error"] == "the audit found no census"
    assert about[str(ID)]["processedMailboxes"] == 3
    assert [tasks.get(task.id) for task in shown] == list(shown)


def test_figures_that_are_gone_are_not_0(runs, tasks):
    runs.add("success", conf=REPUBLISHED)
    runs.add("success", dag="x_blob_gc", conf={}, run=str(uuid4()))
    for task in tasks.newest():
        assert not {"nbRequeuedMails", "blobCount"} & task.information.keys()
        assert tasks.get(task.id) == task


def test_a_store_that_is_away_is_asked_once_and_hides_no_task(runs, tasks, monkeypatch):
    asked = []

    def away(_files, name):
        asked.append(name)
        raise StoreUnavailable("S3 does not answer")

    monkeypatch.setattr(DiskFiles, "read", away)
    for _ in range(3):
        runs.add("failed", dag="x_blob_gc", conf={}, run=str(uuid4()))
    shown = tasks.newest()
    assert (len(shown), len(asked)) == (3, 1)
    assert tasks.get(shown[0].id) == shown[0]
    assert "its log in Airflow has more" in shown[0].information["error"]


def test_runs_that_no_script_started_are_no_tasks(tasks, runs):
    runs.add(run="manual__2026-11-23T12:00:00+00:00")
    runs.add(run=str(ID).upper())
    runs.add(run=str(uuid4()), conf={"queue": "spool", "action": "move"})
    runs.add(run=str(uuid4()), dag="x_queue_size")
    assert list(tasks.newest()) == []
    runs.add()
    assert [task.id for task in tasks.newest()] == [ID]
    assert tasks.get(uuid4()) is None


def began(*ids, running=None):
    return frozenset(TaskState(one, running=one == running) for one in ids)


@pytest.mark.parametrize(
    ("state", "tasks_of_run", "ends"),
    [
        ("queued", began(), True),
        ("running", began("select", running="select"), True),
        ("running", began("select", "act"), False),
        ("success", began(), False),
        ("failed", began(), False),
    ],
)
def test_a_run_is_ended_unless_it_has_begun_to_change_something(
    tasks, runs, state, tasks_of_run, ends
):
    runs.add(state, began=tasks_of_run)
    tasks.cancel(ID)
    tasks.cancel(uuid4())
    assert runs.failed == ([(str(ID), CANCELED)] if ends else [])


CLEANUP = {"queues": ["spool"], "dry_run": False}
PLANNED = began("plan_cleanup", "check_plan")


def keep_progress(path, duty, queue):
    """As apply does before its first change."""
    location = artifacts(Settings(duty=DutySettings(artifacts=str(path))))
    run = run_of_dag(duty, queue, str(ID))
    RunFolder(location, duty, queue, run).write_json("progress.json", {"applied": 0})


@pytest.mark.parametrize(
    ("duty", "conf", "tasks_of_run", "applies", "ends"),
    [
        ("queue_cleanup", CLEANUP, began("list_queues"), False, True),
        ("queue_cleanup", CLEANUP, began("plan_cleanup", running="plan_cleanup"), False, False),
        ("queue_cleanup", CLEANUP, PLANNED, False, True),
        ("queue_cleanup", CLEANUP, PLANNED, True, False),
        ("queue_cleanup", {"dry_run": False}, PLANNED, False, False),
        ("queue_cleanup", CLEANUP, PLANNED | began("apply_cleanup"), False, False),
        ("blob_gc", {"dry_run": False}, began("plan_blobs", running="plan_blobs"), False, True),
    ],
)
def test_a_plan_that_does_all_steps_of_small_work_is_not_ended(
    tasks, runs, tmp_path, duty, conf, tasks_of_run, applies, ends
):
    """Its task applies, too, and looks like any plan from outside."""
    runs.add("running", dag=f"x_{duty}", conf=conf, began=tasks_of_run)
    if applies:
        keep_progress(tmp_path, duty, "spool")
    tasks.cancel(ID)
    assert runs.failed == ([(str(ID), CANCELED)] if ends else [])


def test_a_plan_of_a_queue_whose_name_ends_in_a_blank_is_looked_at_by_that_name(
    tasks, runs, tmp_path
):
    conf = {"queues": ["spool "], "dry_run": False}
    runs.add("running", dag="x_queue_cleanup", conf=conf, began=PLANNED)
    keep_progress(tmp_path, "queue_cleanup", "spool ")
    tasks.cancel(ID)
    assert runs.failed == []


def test_where_small_work_is_done_in_spark_too_a_plan_is_ended(runs, tmp_path):
    tasks = tasks_of(runs, tmp_path, small_rows=0)
    plan = began("plan_cleanup", running="plan_cleanup")
    runs.add("running", dag="x_queue_cleanup", conf=CLEANUP, began=plan)
    tasks.cancel(ID)
    assert runs.failed == [(str(ID), CANCELED)]


def test_a_task_that_begins_between_the_look_and_the_end_is_looked_at_too(tasks, runs):
    runs.add("running", began=began("select"))
    fail = runs.fail

    def begins(one, note):
        runs.add("running", began=began("select", "act"))
        return one.began == began("select", "act") and fail(one, note)

    runs.fail = begins
    tasks.cancel(ID)
    assert runs.failed == []
    runs.add("running", began=began("select"))
    runs.fail = lambda *_: False
    with pytest.raises(TryAgain, match="begin one after the other"):
        tasks.cancel(ID)
