"""Routes without a server: a client that leaves, and what never runs on the event loop."""

import asyncio
import time
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from fastapi.testclient import TestClient

from mailslice.cockpit.rights import Right
from mailslice.webadmin.app import webadmin
from mailslice.webadmin.tasks import Status, Task, TaskType

GUARDS = dict.fromkeys(Right, lambda: None)


class SlowTask:
    """Tasks that are asked for once a minute; a task ends by `end`."""

    poll_seconds = 60.0

    def __init__(self):
        self.asked, self.status = 0, Status.IN_PROGRESS

    def get(self, task):
        self.asked += 1
        return Task(task, TaskType.CLEAR, self.status, datetime.now(UTC), "here")

    def submit(self, _request):
        raise AssertionError("nothing is started")


class Queues:
    def flush(self, *_):
        raise AssertionError("nothing is flushed")


async def passed_on(request, call_next):
    """As the plug-in's middleware, and Airflow's own: Starlette wraps what a route receives."""
    return await call_next(request)


async def awaited(tasks, *, leaves=None, middlewares=0, query=b"", body=(b"",)):
    """Statuses of an await whose client sends `body` in parts, and goes away at the event."""
    app = webadmin(Queues(), tasks, GUARDS)
    for _ in range(middlewares):
        app.middleware("http")(passed_on)
    parts, statuses = list(body), []

    async def receive():
        if parts:
            part = parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(parts)}
        await (leaves or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message):
        statuses.extend([message["status"]] if "status" in message else [])

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": f"/tasks/{uuid4()}/await",
        "query_string": query,
        "headers": [],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    await asyncio.wait_for(app(scope, receive, send), 10)
    return statuses


@pytest.mark.parametrize("body", [(b"",), (b"a", b"b", b"c")])
@pytest.mark.parametrize("middlewares", [0, 1, 2])
async def test_an_await_ends_as_soon_as_its_client_has_left(middlewares, body):
    tasks, leaves = SlowTask(), asyncio.Event()
    asyncio.get_running_loop().call_later(0.3, leaves.set)
    assert await awaited(tasks, leaves=leaves, middlewares=middlewares, body=body) == [408]
    assert tasks.asked == 2
    assert leaves.is_set()
    assert not asyncio.all_tasks() - {asyncio.current_task()}


@pytest.mark.parametrize("middlewares", [0, 1])
async def test_an_await_ends_with_its_task_and_at_its_timeout(middlewares):
    tasks = SlowTask()
    begun = time.monotonic()
    assert await awaited(tasks, middlewares=middlewares, query=b"timeout=1s") == [408]
    assert 0.9 < time.monotonic() - begun < 8
    tasks.poll_seconds, tasks.asked = 0.05, 0
    asyncio.get_running_loop().call_later(0.3, setattr, tasks, "status", Status.COMPLETED)
    assert await awaited(tasks, middlewares=middlewares) == [200]
    assert tasks.asked > 2
    assert not asyncio.all_tasks() - {asyncio.current_task()}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("DELETE", "/mailQueues/spool/mails", None),
        ("DELETE", "/blobs?scope=unreferenced", None),
        ("PATCH", "/mailQueues/spool?delayed=true", '{"delayed": false}'),
        ("POST", "/mailQueues/spool?action=updateBrowseStart", None),
        ("POST", "/mailboxes?action=RecomputeMailboxCounters", None),
    ],
)
def test_whether_a_reason_is_required_is_asked_beside_the_event_loop(method, path, body):
    """Airflow reads it through its secrets backend."""
    asked = []

    def is_required():
        asked.append(path)
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        return True

    client = TestClient(webadmin(Queues(), SlowTask(), GUARDS, reason_required=is_required))
    answer = client.request(method, path, content=body)
    assert (answer.status_code, asked) == (400, [path])
    assert "MAILSLICE_ADMIN_REASON_REQUIRED" in answer.text
