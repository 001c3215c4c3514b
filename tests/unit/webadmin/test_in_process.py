"""Tasks in this process: order, cancel, failures, restarts."""

import threading
import time
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from mailslice.maintenance.artifacts import Artifacts
from mailslice.model.errors import Refused, StoreUnavailable
from mailslice.model.settings import S3Settings
from mailslice.webadmin.in_process import MAX_WAITING, InProcessTasks
from mailslice.webadmin.tasks import Status, TaskRequest, TaskType

START = datetime(2026, 11, 23, 12, tzinfo=UTC)


@pytest.fixture
def location(tmp_path):
    return Artifacts(str(tmp_path), S3Settings())


def request(seconds=0, **params):
    return TaskRequest(
        uuid4(), TaskType.CLEAR, "spool", "me", START + timedelta(seconds=seconds), params
    )


def ended(tasks, asked):
    until = time.monotonic() + 10
    while time.monotonic() < until:
        task = tasks.get(asked.id)
        if task.status.is_final:
            return task
        time.sleep(0.005)
    raise AssertionError(task)


class Work:
    """Waits for `go`, then looks whether it was canceled; raises what it is told to."""

    def __init__(self):
        self.go, self.begun = threading.Event(), threading.Event()

    def __call__(self, asked, watch):
        watch.change(information={"type": "clear-mail-queue", "remainingCount": 3})
        self.begun.set()
        assert self.go.wait(10)
        watch.check()
        if error := asked.params.get("error"):
            raise error


def test_one_task_after_the_other_and_what_waits_can_be_canceled(location):
    work = Work()
    tasks = InProcessTasks(work, location, "here")
    first, second, third = request(0), request(1), request(2)
    for one in (first, second, third):
        tasks.submit(one)
    assert work.begun.wait(10)
    assert tasks.get(first.id).status is Status.IN_PROGRESS
    assert tasks.get(second.id).status is Status.WAITING
    tasks.cancel(second.id)
    assert tasks.get(second.id).status is Status.CANCEL_REQUESTED
    work.go.set()
    assert ended(tasks, first).status is Status.COMPLETED
    assert ended(tasks, first).information["remainingCount"] == 3
    canceled = ended(tasks, second)
    assert (canceled.status, canceled.canceled_from) == (Status.CANCELED, "here")
    assert ended(tasks, third).status is Status.COMPLETED
    assert [task.id for task in tasks.newest()] == [third.id, second.id, first.id]
    tasks.cancel(first.id)
    assert tasks.get(first.id).status is Status.COMPLETED, "what has ended stays as it is"
    tasks.close()


def test_a_task_at_work_ends_canceled_at_its_next_check(location):
    work = Work()
    tasks, asked = InProcessTasks(work, location, "here"), request()
    tasks.submit(asked)
    assert work.begun.wait(10)
    tasks.cancel(asked.id)
    work.go.set()
    assert ended(tasks, asked).status is Status.CANCELED
    tasks.close()


def test_a_cancel_at_the_very_end_leaves_no_task_that_never_ends(location):
    tasks = InProcessTasks(lambda _asked, _watch: None, location, "here")
    for asked in map(request, range(100)):
        tasks.submit(asked)
        until = time.monotonic() + 10
        while not (task := tasks.get(asked.id)).status.is_final and time.monotonic() < until:
            tasks.cancel(asked.id)
        tasks.cancel(asked.id)
        assert tasks.get(asked.id).status.is_final, task
    tasks.close()


def test_a_failure_says_why_and_a_bug_says_nothing_of_its_insides(location):
    work = Work()
    work.go.set()
    tasks = InProcessTasks(work, location, "here")
    away, bug = request(error=StoreUnavailable("RabbitMQ is away")), request(error=KeyError("pw"))
    tasks.submit(away)
    tasks.submit(bug)
    assert ended(tasks, away).information["error"] == "RabbitMQ is away"
    assert ended(tasks, away).information["remainingCount"] == 3
    assert ended(tasks, bug).status is Status.FAILED
    assert "pw" not in ended(tasks, bug).information["error"]
    tasks.close()


def test_ended_tasks_are_known_after_a_restart(location):
    work = Work()
    work.go.set()
    tasks, asked = InProcessTasks(work, location, "here"), request()
    tasks.submit(asked)
    before = ended(tasks, asked)
    tasks.close()
    location.write("webadmin/0-broken.json", b"{")
    again = InProcessTasks(work, location, "here")
    assert again.get(asked.id) == before
    assert [task.id for task in again.newest()] == [asked.id]
    again.close()


def test_no_more_than_a_hundred_wait(location):
    work = Work()
    tasks = InProcessTasks(work, location, "here")
    for number in range(MAX_WAITING):
        tasks.submit(request(number))
    with pytest.raises(Refused, match="wait already"):
        tasks.submit(request(999))
    threading.Timer(0.2, work.go.set).start()
    tasks.close()
    statuses = {task.status for task in tasks.newest()}
    assert statuses <= {Status.COMPLETED, Status.CANCELED}
    assert Status.CANCELED in statuses, "those that waited were not begun"
