"""What the duties behind the tasks come to, with duties that only answer."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from mailslice.maintenance.artifacts import artifacts
from mailslice.maintenance.decision_files import written_decisions
from mailslice.model.errors import GateFailed, MailsliceError
from mailslice.model.settings import Settings
from mailslice.webadmin.tasks import Status, Task, TaskRequest, TaskType
from mailslice.webadmin.work import RunningTask, TaskWork

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
PARAMS = {
    TaskType.REPUBLISH: {"olderThan": "1d", "before": "2026-11-22", "acceptDuplicates": False},
    TaskType.COUNTERS: {"trustMessageProjection": False},
}


class Duties:
    """In place of run_all: the statuses of the runs, by duty; an error is raised."""

    def __init__(self, **ends):
        self.ends = ends

    def __call__(self, run, _settings, _on_step, clock):
        assert clock() == NOW
        end = self.ends.get(run.duty, "done")
        if isinstance(end, Exception):
            raise end
        figures = {"nbRequeuedMails": 2, "errorCount": 3, "failures": {"box": "no"}}
        return {"run": run.run, "status": end, "message": f"{run.duty} is {end}", **figures}


@pytest.fixture
def settings(tmp_path):
    return Settings.model_validate({"duty": {"artifacts": str(tmp_path)}})


def worked(settings, type_, duties):
    """The request, its additionalInformation at the end, and the error or None."""
    request = TaskRequest(uuid4(), type_, None, "me", NOW, PARAMS.get(type_, {}), "because")
    watch = RunningTask(Task(request.id, type_, Status.IN_PROGRESS, NOW, "here"))
    error = None
    try:
        TaskWork(request, settings, watch, lambda: NOW, duties).perform()
    except MailsliceError as raised:
        error = raised
    return request, watch.task.information, error


@pytest.mark.parametrize("status", ["failed", "refused"])
def test_a_duty_that_did_not_end_well_is_a_task_that_failed_with_its_figures(settings, status):
    duties = Duties(blob_gc=status)
    request, information, error = worked(settings, TaskType.BLOB_GC, duties)
    assert str(error) == f"blob_gc is {status}"
    assert (information["errorCount"], information["run"]) == (3, request.run)
    _, information, error = worked(settings, TaskType.COUNTERS, Duties(counter_repair=status))
    assert (str(error), information["failedMailboxes"]) == (f"counter_repair is {status}", ["box"])
    assert worked(settings, TaskType.BLOB_GC, Duties(blob_gc="nothing"))[2] is None


@pytest.mark.parametrize("end", ["failed", "refused", GateFailed("no")])
def test_a_republish_fails_with_either_of_its_runs_and_names_that_run(settings, end):
    request, information, error = worked(settings, TaskType.REPUBLISH, Duties(queue_audit=end))
    assert error is not None
    assert (information["nbRequeuedMails"], information["run"]) == (0, f"{request.run}-audit")
    request, information, error = worked(settings, TaskType.REPUBLISH, Duties(republish_lost=end))
    assert error is not None
    requeued = 0 if isinstance(end, Exception) else 2
    assert (information["nbRequeuedMails"], information["run"]) == (requeued, request.run)


def test_a_run_that_raises_is_named_in_what_the_task_says(settings):
    duties = Duties(blob_gc=GateFailed("the gate"))
    request, information, error = worked(settings, TaskType.BLOB_GC, duties)
    assert (str(error), information["run"]) == ("the gate", request.run)


@pytest.mark.parametrize(("end", "count"), [("done", 2), ("failed", 2), (GateFailed("no"), None)])
def test_a_republish_is_a_decision_with_its_reason_whatever_came_of_it(settings, end, count):
    request, *_ = worked(settings, TaskType.REPUBLISH, Duties(republish_lost=end))
    day = timedelta(days=1)
    ((_, decision),) = written_decisions(artifacts(settings), NOW - day, NOW + day)
    assert decision == {
        "time": decision["time"],
        "who": "me",
        "action": "queue republish",
        "queue": None,
        "reason": "because",
        "task": str(request.id),
        "republished": count,
        "run": request.run,
    }
