"""What an operator of James scripts, against James' routes on real stores.

Statuses and JSON are those of James' MailQueueRoutesTest, RabbitMQMailQueuesRoutesTest,
TasksRoutesTest and BlobRoutesTest.
"""

import json
import re
import subprocess
import time
import uuid
from datetime import timedelta

import pytest
from fastapi import HTTPException, Request
from fastapi.testclient import TestClient

from mailslice.cockpit.facts import Facts
from mailslice.cockpit.rights import Right
from mailslice.maintenance.artifacts import artifacts
from mailslice.maintenance.decision_files import written_decisions
from mailslice.maintenance.ledger import Ledger
from mailslice.maintenance.lock import locked
from mailslice.maintenance.runner import run_all
from mailslice.model.clock import system_clock
from mailslice.model.host_port import host_port
from mailslice.model.mail import QueueName
from mailslice.model.names import RabbitNames
from mailslice.model.settings import load_settings
from mailslice.stores import open_stores
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.webadmin.app import webadmin
from mailslice.webadmin.in_process import InProcessTasks
from mailslice.webadmin.queues import Queues
from mailslice.webadmin.tasks import Status, Task, TaskRequest, TaskType
from mailslice.webadmin.work import Canceled, RunningTask, TaskWork
from tests.acceptance.command import Cli

JAMES_DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+0000")


@pytest.fixture
def cli(fresh_module):
    return Cli(fresh_module.env).inside().own_queue()


@pytest.fixture(scope="module")
def settings(fresh_module):
    return load_settings(fresh_module.env)


@pytest.fixture(scope="module")
def client(settings):
    facts = Facts(lambda: settings)
    tasks = InProcessTasks(
        lambda request, watch: TaskWork(request, settings, watch).perform(),
        artifacts(settings),
        "here",
    )

    def bearer(request: Request) -> None:
        if request.headers.get("authorization") != "Bearer token":
            raise HTTPException(401, "no")

    app = webadmin(Queues(facts), tasks, dict.fromkeys(Right, bearer))
    with TestClient(app, headers={"Authorization": "Bearer token"}) as client:
        yield client
    tasks.close()
    facts.close()


def add(cli, count=1, sender="alice@example.org", recipient="bob@example.net", name=None):
    words = ["--name", name] if name else []
    for number in range(count):
        cli(
            *("mail", "enqueue", "spool", "-", "--sender", sender, "--recipient", recipient),
            *words,
            stdin=b"Subject: %d\r\n\r\nbody" % number,
        )


def awaited(client, answer):
    assert answer.status_code == 201, answer.text
    task = answer.json()["taskId"]
    assert answer.json() == {"taskId": task}
    assert answer.headers["location"] == f"/tasks/{task}"
    done = client.get(f"/tasks/{task}/await?timeout=120s")
    assert done.status_code == 200, done.text
    body = done.json()
    assert body["taskId"] == task
    return body


def error(answer, status, kind, message):
    assert answer.status_code == status, answer.text
    assert answer.json().keys() == {"statusCode", "type", "message", "details"}
    assert (answer.json()["statusCode"], answer.json()["type"]) == (status, kind)
    assert message in answer.json()["message"]
    return answer.json()["details"]


def test_queues_are_listed_and_sized(client, cli):
    add(cli, 2)
    assert cli.spool in client.get("/mailQueues").json()
    assert client.get(f"/mailQueues/{cli.spool}").json() == {"name": cli.spool, "size": 2}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("GET", "/mails"),
        ("DELETE", "/mails"),
        ("PATCH", "/mails?delayed=true"),
        ("PATCH", "?delayed=true"),
        ("POST", "?action=RepublishNotProcessedMails&olderThan=1d"),
        ("POST", "?action=updateBrowseStart"),
    ],
)
def test_an_unknown_queue_is_not_found(client, method, path):
    body = {"delayed": "false"} if method == "PATCH" else None
    for name in ("nothing", "no%20queue%20may%20be%20called%20so"):
        answer = client.request(method, f"/mailQueues/{name}{path}", json=body)
        error(answer, 404, "notFound", "can not be found")
    assert "MailQueueName{value=" in answer.json()["message"]


def test_mails_are_listed_as_james_does(client, cli):
    add(cli, name="first")
    words = ("--sender", "<>", "--recipient", "b@example.net", "--recipient", "c@example.net")
    later = ("--name", "later", "--delay", "2h")
    cli("mail", "enqueue", "spool", "-", *words, *later, stdin=b"a: b\r\n\r\nc")
    path = f"/mailQueues/{cli.spool}/mails"
    first, later = client.get(path).json()
    assert first == {
        "name": "first",
        "sender": "alice@example.org",
        "recipients": ["bob@example.net"],
        "nextDelivery": None,
    }
    assert (later["sender"], later["recipients"]) == (None, ["b@example.net", "c@example.net"])
    assert later["nextDelivery"].endswith("Z")
    cut = client.get(path + "?limit=1")
    assert cut.json() == [first]
    assert cut.headers["mailslice-truncated"] == "1"
    assert client.get(path + "?delayed=true").json() == [later]
    assert client.get(path + "?delayed=false").json() == [first]
    assert client.get(path + "?delayed=true&limit=1").json() == [], "the limit comes first"
    for wrong in ("-1", "0", "abc"):
        error(client.get(path, params={"limit": wrong}), 400, "InvalidArgument", "limit")


@pytest.mark.parametrize(
    ("field", "value", "remaining"),
    [("sender", "alice@example.org", 1), ("name", "other", 2), ("recipient", "BOB@example.net", 1)],
)
def test_mails_are_deleted_by_one_condition(client, cli, settings, field, value, remaining):
    add(cli, 2)
    add(cli, 1, "eve@example.org", "carol@example.net", name="other")
    path = f"/mailQueues/{cli.spool}"
    task = awaited(client, client.delete(f"{path}/mails", params={field: value}))
    assert (task["status"], task["type"]) == ("completed", "delete-mails-from-mail-queue")
    about = task["additionalInformation"]
    assert about["mailQueueName"] == about["queue"] == cli.spool
    assert (about["initialCount"], about["remainingCount"]) == (3, remaining)
    assert {name: about[name] for name in ("sender", "name", "recipient")} == {
        **dict.fromkeys(("sender", "name", "recipient")),
        field: value,
    }
    for date in ("submitDate", "startedDate", "completedDate"):
        assert JAMES_DATE.fullmatch(task[date])
    assert not {"failedDate", "canceledDate"} & task.keys()
    assert client.get(path).json()["size"] == remaining
    now = system_clock()
    decisions = written_decisions(artifacts(settings), now - timedelta(hours=1), now)
    assert task["taskId"] in {decision.get("task") for _, decision in decisions}


def test_a_queue_is_cleared(client, cli):
    add(cli, 3)
    task = awaited(client, client.delete(f"/mailQueues/{cli.spool}/mails"))
    about = task["additionalInformation"]
    assert (task["type"], about["initialCount"], about["remainingCount"]) == (
        "clear-mail-queue",
        3,
        0,
    )


@pytest.mark.parametrize(
    "query",
    [
        "sender=123",
        "sender=",
        "recipient=123",
        "sender=a@b.c&name=x",
        "sender=a@b.c&sender=d@e.f",
        "senders=a@b.c",
        "Sender=a@b.c",
        "older_than=1d",
    ],
)
def test_a_condition_that_is_none_deletes_nothing(client, cli, query):
    add(cli, 1)
    answer = client.delete(f"/mailQueues/{cli.spool}/mails?{query}")
    error(answer, 400, "InvalidArgument", "")
    body = client.request("DELETE", f"/mailQueues/{cli.spool}/mails", content=b"sender=a@b.c")
    error(body, 400, "InvalidArgument", "")


@pytest.mark.parametrize("query", ["name=", "name=*", "recipient=*@example.net", "sender=%3C%3E"])
def test_conditions_are_no_patterns(client, cli, query):
    add(cli, 1)
    task = awaited(client, client.delete(f"/mailQueues/{cli.spool}/mails?{query}"))
    assert task["additionalInformation"]["remainingCount"] == 1


@pytest.mark.parametrize("path", ["", "/mails"])
def test_delayed_mails_are_flushed(client, cli, path):
    cli("mail", "enqueue", "spool", "-", "--sender", "a@example.org", "--recipient",
        "b@example.net", "--delay", "2h", stdin=b"a: b\r\n\r\nc")  # fmt: skip
    address = f"/mailQueues/{cli.spool}{path}"
    mails = f"/mailQueues/{cli.spool}/mails?delayed=true"
    for query, body in [
        ("", b'{"delayed": "false"}'),
        ("?delayed=false", b'{"delayed": "false"}'),
        ("?delayed=wrong", b'{"delayed": "false"}'),
        ("?delayed=true", b""),
        ("?delayed=true", b'{"xx": "false"}'),
        ("?delayed=true", b'{"xx": "ok", "delayed": "false"}'),
        ("?delayed=true", b'{"xx":'),
        ("?delayed=true", b'{"delayed": "true"}'),
        ("?delayed=true", b'{"delayed": "string"}'),
        ("?delayed=true", b"[" * 10000),
    ]:
        error(client.patch(address + query, content=body), 400, "InvalidArgument", "")
    assert len(client.get(mails).json()) == 1
    flushed = client.patch(address + "?delayed=true", content=b'{"delayed": "false"}')
    assert (flushed.status_code, flushed.content) == (204, b"")
    assert client.get(mails).json() == []


def test_browse_start_is_updated_by_a_cleanup(client, cli, settings):
    task = awaited(client, client.post(f"/mailQueues/{cli.spool}?action=updateBrowseStart"))
    assert (task["status"], task["type"]) == ("completed", "browse-start-update"), task
    about = task["additionalInformation"]
    assert (about["type"], about["mailQueue"]) == ("browse-start-update", cli.spool)
    with open_stores(settings) as stores:
        report = Ledger(stores, settings).show(f"webadmin-{task['taskId']}")
    assert (report["duty"], report["queue"]) == ("queue_cleanup", cli.spool)


def test_a_cleanup_that_is_canceled_waits_for_no_lock_and_takes_none(client, cli, settings):
    """Another run has the queue's lock. The cancel comes when the plan is checked."""
    queue, now = QueueName(cli.spool), system_clock()
    request = TaskRequest(uuid.uuid4(), TaskType.BROWSE_START, queue, "me", now, {})
    watch = RunningTask(Task(request.id, request.type, Status.IN_PROGRESS, now, "here"))
    steps = []

    def run_duty(run, settings, on_step, clock):
        def ended(step, summary):
            steps.append(step)
            if step == "check":
                watch.canceled.set()
            on_step(step, summary)

        return run_all(run, settings, ended, clock=clock)

    lock = f"queue_cleanup/{queue}"
    with open_stores(settings) as stores:
        locks = stores.own.locks
        with locked(locks, lock, "another"):
            owner = locks.holder(lock)
            with pytest.raises(Canceled):
                TaskWork(request, settings, watch, run_duty=run_duty).perform()
            assert locks.holder(lock) == owner
        assert locks.holder(lock) is None
        report = Ledger(stores, settings).show(request.run)
    assert steps == ["plan", "check"]
    assert report["status"] == "refused"
    assert report["message"] == "apply: canceled: nothing was changed"
    task = awaited(client, client.post(f"/mailQueues/{queue}?action=updateBrowseStart"))
    assert task["status"] == "completed"


@pytest.mark.soak  # the census of the audit takes up to 45 s
def test_lost_mails_are_republished(client, cli, settings):
    add(cli, 2)
    with blocking_connection(settings.rabbitmq) as connection:
        connection.channel().queue_purge(RabbitNames(cli.spool).work_queue)
    time.sleep(1.1)
    path = f"/mailQueues/{cli.spool}?action=RepublishNotProcessedMails&olderThan=1s"
    task = awaited(client, client.post(path + "&acceptDuplicates=true"))
    assert (task["status"], task["type"]) == ("completed", "republish-not-processed-mails"), task
    about = task["additionalInformation"]
    assert (about["mailQueue"], about["nbRequeuedMails"]) == (cli.spool, 2)
    assert about["olderThan"].endswith("Z")


def test_actions_are_named_as_james_names_them(client, cli):
    path = f"/mailQueues/{cli.spool}"
    for query, details in [
        ("", "'action' query parameter is compulsory"),
        ("?action=%20", "cannot be empty or blank"),
        ("?action=what", "Supported values are [RepublishNotProcessedMails, updateBrowseStart]"),
    ]:
        answer = client.post(path + query)
        assert details in error(answer, 400, "InvalidArgument", "Invalid arguments supplied")
    republish = path + "?action=RepublishNotProcessedMails"
    error(client.post(republish), 400, "InvalidArgument", "Missing olderThan")
    for wrong, details in [
        ("invalidValue", "Supplied value do not follow the unit format"),
        ("-5", "Duration amount should be positive"),
        ("5lightyears", "Unknown unit"),
        ("9" * 500, "unit format"),
    ]:
        answer = client.post(republish, params={"action": "RepublishNotProcessedMails",
                                                "olderThan": wrong})  # fmt: skip
        assert details in error(answer, 400, "InvalidArgument", "Invalid olderThan")


def test_tasks_are_listed_and_filtered(client, cli):
    tasks = [awaited(client, client.delete(f"/mailQueues/{cli.spool}/mails")) for _ in range(3)]
    ids = [task["taskId"] for task in reversed(tasks)]
    listed = [task["taskId"] for task in client.get("/tasks").json()]
    assert listed[:3] == ids
    assert [one["taskId"] for one in client.get("/tasks?offset=1&limit=1").json()] == ids[1:2]
    assert client.get("/tasks?status=waiting").json() == []
    assert client.get("/tasks?status=COMPLETED&type=clear-mail-queue").json()[0]["taskId"] == ids[0]
    assert client.get("/tasks?type=nothing").json() == []
    assert client.get("/tasks?completedAfter=2126-01-01T00:00:00Z").json() == []
    zoned = "2126-01-01T00:00:00.123456789+07:00[Asia/Ho_Chi_Minh]"
    assert client.get("/tasks", params={"submittedBefore": zoned}).json()[0]["taskId"] == ids[0]
    for query in ("status=no", "submittedBefore=no", "failedAfter=2026", "limit=-1", "offset=x"):
        error(client.get(f"/tasks?{query}"), 400, "InvalidArgument", "Invalid status query")


def test_unknown_tasks_and_timeouts(client):
    unknown = uuid.uuid4()
    error(client.get(f"/tasks/{unknown}"), 404, "notFound", f"{unknown} can not be found")
    error(client.get(f"/tasks/{unknown}/await"), 404, "ServerError", "The taskId is not found")
    assert client.delete(f"/tasks/{unknown}").status_code == 204
    for method, path in (("GET", "no"), ("DELETE", "no"), ("GET", "no/await")):
        answer = client.request(method, f"/tasks/{path}")
        error(answer, 400, "InvalidArgument", "Invalid task id")
    for wrong, details in [
        ("-5", "Duration amount should be positive"),
        ("5y", "Timeout should not exceed 365 days"),
    ]:
        answer = client.get(f"/tasks/{unknown}/await?timeout={wrong}")
        assert details in error(answer, 400, "InvalidArgument", "Invalid timeout")


def test_blobs_are_collected_by_the_duty(client, cli):
    add(cli, 1)
    for query in ("", "?scope=invalid"):
        details = error(client.delete(f"/blobs{query}"), 400, "InvalidArgument", "Invalid arg")
        assert details == "'scope' is missing or must be 'unreferenced'"
    for name, wrong in [
        ("expectedBlobCount", "0"),
        ("expectedBlobCount", "x"),
        ("associatedProbability", "1"),
        ("associatedProbability", "nan"),
        ("deletionWindowSize", "-1"),
    ]:
        answer = client.delete("/blobs", params={"scope": "unreferenced", name: wrong})
        assert name in error(answer, 400, "InvalidArgument", "Invalid arguments")
    task = awaited(client, client.delete("/blobs?scope=unreferenced&expectedBlobCount=99"))
    about = task["additionalInformation"]
    assert (task["type"], about["type"]) == ("BlobGCTask", "BlobGCTask")
    assert {"referenceSourceCount", "blobCount", "gcedBlobCount", "errorCount"} <= about.keys()
    assert (about["bloomFilterExpectedBlobCount"], about["deletionWindowSize"]) == (99, 1000)
    assert about["bloomFilterAssociatedProbability"] == 0.01


def test_counters_that_cannot_be_read_fail_the_task_and_it_says_why(client):
    """These stores have no mailboxes of James."""
    error(client.post("/mailboxes?task=no"), 400, "InvalidArgument", "Invalid arguments")
    query = "/mailboxes?task=RecomputeMailboxCounters&trustMessageProjection="
    error(client.post(query + "maybe"), 400, "InvalidArgument", "Invalid arguments")
    task = awaited(client, client.post(query + "true"))
    assert (task["status"], task["type"]) == ("failed", "recompute-mailbox-counters")
    assert JAMES_DATE.fullmatch(task["failedDate"])
    about = task["additionalInformation"]
    assert about["processedMailboxes"] == 0
    assert "mailbox" in about["error"]


def test_curl_as_james_documents_it(fresh, tmp_path):
    """The server as a process, and curl with nothing but address and token of ours."""
    secret = tmp_path / "token"
    secret.write_text("s3cret\n")
    own = Cli({**fresh.env, "MAILSLICE_WEBADMIN_TOKEN_FILE": str(secret)})
    own("queue", "create", "outgoing")
    server = own.start("webadmin", "--port", "0", "--json")
    try:
        port = json.loads(server.stdout.readline())["port"]

        def curl(*words, token="s3cret"):
            done = subprocess.run(
                ["curl", "-s", "--noproxy", "*", "-w", "\n%{http_code}", "-H",
                 f"Authorization: Bearer {token}", *words],
                capture_output=True, text=True, timeout=60, check=True,
            )  # fmt: skip
            body, _, status = done.stdout.rpartition("\n")
            return int(status), json.loads(body) if body else None

        base = f"http://127.0.0.1:{port}"
        assert curl("-XGET", f"{base}/mailQueues") == (200, ["outgoing"])
        queue = f"{base}/mailQueues/outgoing"
        assert curl("-XGET", queue) == (200, {"name": "outgoing", "size": 0})
        status, answer = curl("-XDELETE", f"{base}/mailQueues/outgoing/mails?sender=a@james.org")
        assert status == 201
        status, task = curl("-XGET", f"{base}/tasks/{answer['taskId']}/await?timeout=60s")
        assert (status, task["status"]) == (200, "completed")
        body = ("-d", '{"delayed": false}', "-H", "Content-Type: application/json")
        assert curl("-XPATCH", f"{queue}?delayed=true", *body) == (204, None)
        for wrong in ("", "s3cre", "s3cret2", "\u00fc"):
            status, refused = curl("-XGET", f"{base}/mailQueues", token=wrong)
            assert (status, refused["statusCode"]) == (401, 401)
            assert curl("-XGET", f"{base}/openapi.json", token=wrong)[0] == 401
        for words in (
            ("--port", str(port)),
            ("--host", "no.address.invalid"),
            ("--host", "\u00fc" * 64),
        ):
            assert "cannot be opened" in own("webadmin", *words, code=2).err
        status, document = curl("-XGET", f"{base}/openapi.json")
        assert (status, "/tasks/{task}/await" in document["paths"]) == (200, True)
    finally:
        server.terminate()
        _, err = server.communicate(timeout=60)
    assert b"s3cret" not in err
    without = Cli(fresh.env)("webadmin", "--port", "0", code=2)
    assert "MAILSLICE_WEBADMIN_TOKEN" in without.err


@pytest.mark.parametrize(("host", "reached_at"), [("::1", "::1"), ("::", "127.0.0.1")])
def test_it_listens_on_addresses_of_ipv6_and_says_where(fresh, host, reached_at):
    own = Cli({**fresh.env, "MAILSLICE_WEBADMIN_TOKEN": "voil\u00e0"})
    server = own.start("webadmin", "--host", host, "--port", "0")
    try:
        said = re.fullmatch(
            rf"webadmin on http://\[{host}\]:(\d+)\n", server.stdout.readline().decode()
        )
        address = f"http://{host_port(reached_at, int(said[1]))}/mailQueues"
        asked = ("-H", "Authorization: Bearer voil\u00e0", "--noproxy", "*", address)
        done = subprocess.run(["curl", "-sg", *asked], capture_output=True, timeout=60, check=True)
        assert json.loads(done.stdout) == []
    finally:
        server.terminate()
        server.communicate(timeout=60)
