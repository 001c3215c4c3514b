"""James' tasks as runs: which run does a task, and what a run's state is in James' words."""

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from mailslice.actions.request import ActionRequest
from mailslice.airflow.dag_tasks import CANCELED, DagTasks, conf_of
from mailslice.airflow.runs import DagRunState
from mailslice.cockpit.facts import Facts
from mailslice.maintenance.artifacts import RunFolder, artifacts
from mailslice.maintenance.run_request import run_of_dag
from mailslice.model.errors import StoreUnavailable
from mailslice.model.mail import QueueName
from mailslice.model.settings import DutySettings, Settings
from mailslice.webadmin.tasks import Status, TaskRequest, TaskType

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
ID = UUID("0b5a7d56-5c1c-4f7b-9c1e-3f0c2d5a9b11")
DELETE = {"queue": "spool", "action": "delete", "digest": "any", "sender": "a@b.example"}


class Stores:
    """Has no report of any run."""

    def close(self):
        pass

    def existing_runs(self):
        return None


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


class Reports(Stores):
    """Has one report, of every run."""

    report = '{"run": "r", "processedMailboxes": 3, "failures": {"m2": "away", "m1": "away"}}'

    def existing_runs(self):
        return self

    def get(self, _run):
        return self


@pytest.fixture
def runs():
    return Runs()


@pytest.fixture
def tasks(runs, tmp_path):
    return tasks_of(runs, tmp_path, Stores())


def tasks_of(runs, path, stores):
    settings = Settings(duty=DutySettings(artifacts=str(path)))
    facts = Facts(lambda: settings, open_stores=lambda _settings: stores)
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
    about = tasks_of(runs, tmp_path, Reports()).get(ID).information
    assert (about["processedMailboxes"], about["failedMailboxes"]) == (3, ["m1", "m2"])


@pytest.mark.parametrize("age", ["soon", "99999999d"])
def test_a_run_that_somebody_started_with_a_wrong_age_hides_no_other_task(tasks, runs, age):
    conf = {"queue": "spool", "action": "republish", "older_than": age}
    runs.add("failed", run=str(uuid4()), conf=conf)
    runs.add()
    assert ID in {task.id for task in tasks.newest()}


REPUBLISHED = {"queue": "spool", "action": "republish", "older_than": "1d"}


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
    tasks = tasks_of(runs, tmp_path, Reports())
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


def test_a_store_that_is_away_is_asked_once_and_hides_no_task(runs, tmp_path):
    asked = []

    class Away(Stores):
        def existing_runs(self):
            asked.append(self)
            raise StoreUnavailable("Cassandra does not answer")

    for _ in range(3):
        runs.add("failed", dag="x_blob_gc", conf={}, run=str(uuid4()))
    tasks = tasks_of(runs, tmp_path, Away())
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


@pytest.mark.parametrize(
    ("state", "began", "ends"),
    [
        ("queued", (), True),
        ("running", ("select",), True),
        ("running", ("plan_cleanup", "check_plan"), True),
        ("running", ("select", "act"), False),
        ("running", ("plan_cleanup", "check_plan", "apply_cleanup"), False),
        ("success", (), False),
        ("failed", (), False),
    ],
)
def test_a_run_is_ended_unless_it_has_begun_to_change_something(tasks, runs, state, began, ends):
    runs.add(state, began=frozenset(began))
    tasks.cancel(ID)
    tasks.cancel(uuid4())
    assert runs.failed == ([(str(ID), CANCELED)] if ends else [])
