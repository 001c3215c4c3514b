"""The oldest and the newest Airflow that are supported, each with its own scheduler, on real
stores: a dry run, an approval, a no, no answer, and the assets of a queue.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from datetime import timedelta
from pathlib import Path
from urllib.error import HTTPError

import pytest

from mailslice.admin import queues
from mailslice.maintenance.artifacts import RunFolder, artifacts
from mailslice.maintenance.ledger import Ledger
from mailslice.model.settings import clone_root
from mailslice.stores import open_stores
from stack.airflow_versions import OLDEST, airflow_python
from stack.settings import Profile, stack_settings
from tests.acceptance.airflow_process import airflow_standalone, until
from tests.services.duties.audited import Spool

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]
CLEANUP = "test_queue_cleanup"
SETTINGS = {
    "MAILSLICE_QUEUE_SHARED": "false",
    "MAILSLICE_QUEUE_SLICE_WINDOW": "10m",
    "MAILSLICE_QUEUE_BUCKET_COUNT": "2",
}
_THINKING = 10
ASKS = """
prefix: test_
dags:
  queue_cleanup: {approve_within: 45s}
"""


@pytest.fixture(scope="module", params=["pinned", OLDEST])
def python(request):
    """The Python of a venv with that Airflow."""
    if request.param == "pinned":
        return Path(sys.executable)
    cache = stack_settings(Profile.TEST, dict(os.environ)).sizes.cache
    return airflow_python(request.param, clone_root(), cache)


@pytest.fixture(scope="module")
def world(python, fresh_module):
    del python  # a world for each
    return fresh_module.but(**SETTINGS)


@pytest.fixture(scope="module")
def stores(world):
    with open_stores(world.settings) as opened:
        opened.tables.create()
        queues.create(opened, "first")
        opened.own_blobs.ensure_bucket()
        yield opened


@pytest.fixture(scope="module")
def airflow(python, stores, world, tmp_path_factory):
    home = tmp_path_factory.mktemp("airflow")
    (home / "dags.yaml").write_text(ASKS)
    env = {**world.env, "MAILSLICE_AIRFLOW_CONFIG": str(home / "dags.yaml")}
    dags = (CLEANUP, "test_queue_size")
    with airflow_standalone(home / "home", env, dags, python) as running:
        yield running


@pytest.fixture
def queue(stores, world):
    """A queue with three dead rows."""
    queue = queues.create(stores, f"q-{uuid.uuid4().hex[:8]}")
    spool = Spool(world.settings, stores, queue)
    for number in range(3):
        spool.mark(spool.put(f"done {number}", age=timedelta(hours=9), message=False))
    return queue


@pytest.fixture
def clean(airflow, stores, world, queue):
    """Runs the cleanup, with that answer to the approval; states of the tasks, and its report."""

    def clean(answer=None, **conf):
        run = airflow.trigger(CLEANUP, {"queues": [queue], **conf})
        if answer:
            where = f"dags/{CLEANUP}/dagRuns/{run}/taskInstances/approve/0/hitlDetails"
            shown = until("the question", 200, lambda: asked(airflow, where))
            # As a person does: Airflow 3.3 asks again where an answer comes within a loop of its
            # scheduler (the executor's event of the first half then meets a queued task).
            time.sleep(_THINKING)
            body = {"chosen_options": [answer], "params_input": {}}
            airflow.api("PATCH", where, body)
        states = {task: state for (task, _), state in airflow.wait(CLEANUP, run).items()}
        report = Ledger(stores, world.settings).last("queue_cleanup", queue)
        assert report["dagRun"] == run
        return states, report, shown if answer else None

    return clean


def asked(airflow, where):
    """The question, when there is one that waits for an answer."""
    try:
        found = airflow.api("GET", where)
    except HTTPError as error:
        if error.code == 404:
            return None
        raise
    return None if found["response_received"] else found


def test_a_run_by_hand_is_dry_unless_it_says_no(clean):
    states, report, _ = clean()
    assert (report["status"], report["planned"], report["applied"]) == ("dry run", 3, 0)
    assert (states["apply_cleanup"], states["report"]) == ("skipped", "success")


def test_a_yes_applies_the_plan_that_was_shown(clean, airflow, world, queue):
    states, report, question = clean("Approve", dry_run=False, approve=True)
    assert set(states.values()) == {"success"}
    assert (report["status"], report["applied"]) == ("done", 3)
    assert question["subject"] == f"{CLEANUP}: apply the plan of queue {queue!r}?"
    assert "| planned | 3 |" in question["body"]
    assert question["defaults"] == ["Reject"]
    folder = RunFolder(artifacts(world.settings), "queue_cleanup", queue, report["run"])
    answer = folder.read_json("approval.json")
    assert (answer["by"], answer["planDigest"]) == ("admin", report["planDigest"])
    uri = f"mailslice://test_queue/cleanup/queue/{queue}"
    (event,) = [
        one
        for one in airflow.api("GET", "assets/events?order_by=-timestamp")["asset_events"]
        if one["uri"] == uri
    ]
    assert (event["extra"]["status"], event["extra"]["applied"]) == ("done", 3)


def test_a_no_and_no_answer_apply_nothing_and_are_no_success(clean, airflow, stores, queue):
    for answer, why in (("Reject", "rejected by admin"), (None, "no answer in 45s")):
        states, report, _ = clean(answer, dry_run=False, approve=True)
        assert (report["status"], report["applied"]) == ("refused", 0)
        assert report["message"] == f"approve: not approved, nothing was applied: {why}"
        assert states["approve"] == states["report"] == "failed"
        assert states["apply_cleanup"] == states["verify"] == "upstream_failed"
        assert airflow.state(CLEANUP, report["dagRun"]) == "failed"
    _, report, _ = clean(dry_run=False)
    assert report["applied"] == 3, "all three rows are still there"
