"""James' routes as Airflow's API server has them, on real stores. Airflow's scheduler is a double
that does a run of mail_actions at once: tests/acceptance/test_airflow_actions.py has a real one.
"""

import json
from datetime import timedelta
from pathlib import Path

import pytest
from fastapi import Request
from fastapi.testclient import TestClient

from mailslice.actions.request import ActionRequest
from mailslice.actions.run import ActionRun
from mailslice.airflow.dag_tasks import DagQueues, DagTasks
from mailslice.airflow.runs import DagRunState
from mailslice.cockpit.facts import Facts
from mailslice.cockpit.rights import Right
from mailslice.model.clock import system_clock
from mailslice.model.errors import MailsliceError, Refused
from mailslice.webadmin.app import webadmin
from tests.acceptance.command import Cli

pytestmark = pytest.mark.new_keyspaces


class Scheduler:
    """Runs of mail_actions, done at their start."""

    def __init__(self, settings):
        self.settings, self.runs, self.paused = settings, {}, False

    def start(self, dag, conf, who, run=None):
        if self.paused:
            raise Refused(f"the DAG {dag} is paused in Airflow: unpause it first")
        run = run or f"manual__{len(self.runs)}"
        began = system_clock()
        context = {"who": who, "reason": conf["reason"]}
        state = "success"
        try:
            todo = ActionRun.of_dag(ActionRequest.of(conf), run, conf["digest"], **context)
            todo.select(self.settings)
            todo.act(self.settings)
        except MailsliceError:
            state = "failed"
        ended = began + timedelta(seconds=1)
        self.runs[run] = DagRunState(dag, run, state, conf, began, began, ended, None)
        return run

    def find(self, dags, run):
        found = self.runs.get(run)
        return found if found and found.dag in dags else None

    def newest(self, dags, _like, most):
        return [run for run in self.runs.values() if run.dag in dags][::-1][:most]

    def fail(self, one, note):
        raise AssertionError((one, note))


@pytest.fixture(scope="module")
def scheduler(fresh_module):
    return Scheduler(fresh_module.settings)


@pytest.fixture(scope="module")
def client(fresh_module, scheduler):
    facts = Facts(lambda: fresh_module.settings)

    def op(request: Request):
        request.state.who = "ada"

    tasks = DagTasks(scheduler, facts, str)
    app = webadmin(DagQueues(facts, scheduler, str), tasks, dict.fromkeys(Right, op))
    with TestClient(app) as client:
        yield client
    facts.close()


@pytest.fixture
def cli(fresh_module):
    return Cli(fresh_module.env).inside().own_queue()


def add(cli, count=1, sender="alice@example.org", delay=()):
    for number in range(count):
        words = ("--sender", sender, "--recipient", "bob@example.net", *delay)
        cli("mail", "enqueue", "spool", "-", *words, stdin=b"Subject: %d\r\n\r\nbody" % number)


def awaited(client, answer):
    assert answer.status_code == 201, answer.text
    task = answer.json()["taskId"]
    assert answer.headers["location"] == f"/tasks/{task}"
    done = client.get(f"/tasks/{task}/await?timeout=10s")
    assert done.status_code == 200, done.text
    return done.json()


def test_a_delete_by_sender_is_a_run_whose_id_is_the_task(client, cli, scheduler, fresh_module):
    add(cli, 2, sender="spam@example.org")
    add(cli)
    path = f"/mailQueues/{cli.spool}"
    done = awaited(client, client.delete(f"{path}/mails?sender=SPAM@example.org&reason=flood"))
    assert done["status"] == "completed"
    assert done["additionalInformation"] | {"timestamp": None} == {
        "type": "delete-mails-from-mail-queue",
        "timestamp": None,
        "mailQueueName": cli.spool,
        "queue": cli.spool,
        "sender": "SPAM@example.org",
        "name": None,
        "recipient": None,
        "initialCount": 3,
        "remainingCount": 1,
    }
    assert client.get(path).json()["size"] == 1
    assert done["taskId"] in scheduler.runs
    assert done["taskId"] in {task["taskId"] for task in client.get("/tasks").json()}
    (decision,) = (
        found
        for file in Path(fresh_module.env["MAILSLICE_ARTIFACTS"], "decisions").rglob("*.json")
        if (found := json.loads(file.read_text()))["queue"] == cli.spool
        and found["action"] == "queue delete"
    )
    assert (decision["who"], decision["reason"], decision["deleted"]) == ("ada", "flood", 2)


def test_a_clear_deletes_all_and_a_name_with_a_star_is_a_name(client, cli):
    add(cli, 2)
    path = f"/mailQueues/{cli.spool}/mails"
    done = awaited(client, client.delete(f"{path}?name=*"))
    assert done["additionalInformation"]["remainingCount"] == 2
    assert done["additionalInformation"]["name"] == "*"
    done = awaited(client, client.delete(path))
    assert (done["type"], done["status"]) == ("clear-mail-queue", "completed")
    assert client.get(f"/mailQueues/{cli.spool}").json()["size"] == 0


def test_a_flush_is_a_run_for_which_nobody_waits(client, cli):
    add(cli, delay=("--delay", "1h"))
    path = f"/mailQueues/{cli.spool}/mails?delayed=true"
    assert client.patch(path, json={"delayed": "false"}).status_code == 204
    assert client.get(path).json() == []


def test_a_paused_dag_is_said_and_nothing_waits_for_ever(client, cli, scheduler):
    scheduler.paused = True
    try:
        answer = client.delete(f"/mailQueues/{cli.spool}/mails")
    finally:
        scheduler.paused = False
    assert answer.status_code == 503
    assert "paused in Airflow: unpause it" in answer.json()["message"]


def test_a_run_that_failed_says_why(client, cli, scheduler, monkeypatch):
    def gone(*_):
        raise Refused("the configuration differs")

    monkeypatch.setattr("mailslice.actions.run.perform", gone)
    done = awaited(client, client.delete(f"/mailQueues/{cli.spool}/mails"))
    assert done["status"] == "failed"
    assert done["additionalInformation"]["error"] == "the configuration differs"
