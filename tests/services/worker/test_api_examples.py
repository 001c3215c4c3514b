"""The examples of docs/worker.md, each run as it stands against real stores."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mailslice.admin.mail_queue import MailQueue
from mailslice.model.clock import system_clock
from mailslice.model.settings import clone_root
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.worker import new_mail, open_queue
from tests.services.worker.conftest import Place4Queue, at

EXAMPLES = dict(
    re.findall(
        r"^## ([^\n]+)\n\n(?:(?!^## ).)*?```python\n(.*?)```",
        (clone_root() / "docs" / "worker.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
)
CONTENT = b"From: alice@example.org\r\nTo: bob@example.net\r\n\r\nHello\r\n"


@pytest.fixture(scope="module")
def shared(fresh_module: Any) -> Iterator[Place4Queue]:
    yield from at(fresh_module.settings)


@pytest.fixture
def spool(shared: Place4Queue) -> Iterator[Place4Queue]:
    """The examples name their queue, so all have the same one, emptied after each."""
    yield shared
    MailQueue(shared.stores, shared.queue, system_clock).clear()
    with blocking_connection(shared.settings.rabbitmq) as connection:
        for name in (shared.names.work_queue, shared.names.dead_letter_queue):
            connection.channel().queue_purge(name)


@pytest.fixture
def example(
    spool: Place4Queue, fresh_module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Runs an example in an empty folder, with nothing but MAILSLICE_* of the test's own stores;
    gives its names.
    """
    for name in [name for name in os.environ if name.startswith("MAILSLICE_")]:
        monkeypatch.delenv(name)
    for name, value in fresh_module.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)

    def run(title: str) -> dict[str, Any]:
        names: dict[str, Any] = {"__name__": "example"}
        exec(
            compile(EXAMPLES[title], title, "exec", dont_inherit=True), names
        )  # the page's own text
        return names

    return run


def fill(spool: Place4Queue, *mails: tuple[str, bytes]) -> None:
    with open_queue(spool.queue, spool.settings) as queue:
        for recipient, content in mails:
            queue.enqueue(new_mail("alice@example.org", [recipient]), content)


def test_every_example_of_the_page_is_run() -> None:
    tests = [
        name.removeprefix("test_").replace("_", " ")
        for name in globals()
        if name.startswith("test_")
    ]
    assert [title for title in EXAMPLES if title.lower().replace(",", "") not in tests] == []
    assert len(EXAMPLES) == 10


def test_enqueue_one(example: Any, spool: Place4Queue, capsys: pytest.CaptureFixture[str]) -> None:
    names = example("Enqueue one")
    assert [row.item for row in spool.live()] == [names["item"]]
    assert capsys.readouterr().out == f"enqueued as {names['item'].enqueue_id}\n"
    assert spool.wait_for_ready(spool.names.work_queue, 1) == 1


def test_enqueue_many(
    example: Any, spool: Place4Queue, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "outbox").mkdir()
    for number in range(7):
        (tmp_path / "outbox" / f"{number}.eml").write_bytes(CONTENT)
    example("Enqueue many")
    assert len(spool.live()) == 7
    assert (
        sorted(line.split(" ")[1] for line in capsys.readouterr().out.splitlines())
        == ["enqueued"] * 7
    )


def test_consume_with_a_function(
    example: Any, spool: Place4Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(
        spool,
        ("bob@example.net", CONTENT),
        ("bob@example.net", b"no header"),
        ("carl@greylisted.example", CONTENT),
    )
    names = example("Consume with a function")
    assert (names["done"].completed, names["done"].retried, names["done"].rejected) == (1, 1, 1)
    assert capsys.readouterr().out.splitlines() == [
        "alice@example.org -> bob@example.net: 55 bytes",
        "1 completed, 1 retried, 1 rejected",
    ]
    assert spool.wait_for_ready(spool.names.dead_letter_queue, 1) == 1


def test_try_again_and_give_up(
    example: Any, spool: Place4Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(spool, ("bob@example.net", CONTENT))
    example("Try again, and give up")
    lines = capsys.readouterr().out.splitlines()
    assert [line.rsplit(" ", 1)[0] for line in lines[:2]] == ["attempt 1 at", "attempt 2 at"]
    assert lines[2:] == ["2 retried, 1 of them failed"]


def test_never_send_twice(
    example: Any,
    spool: Place4Queue,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fill(spool, ("bob@example.net", CONTENT), ("carl@example.net", CONTENT))
    example("Never send twice")
    fill(spool, ("dora@example.net", CONTENT))
    monkeypatch.setenv("MAILSLICE_QUEUE_STAGE_MARKS", spool.queue)
    example("Never send twice")
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "sent to bob@example.net",
        "sent to carl@example.net",
        "sent to dora@example.net",
    ]
    assert spool.live() == []
    rows = spool.stores.cassandra.execute(
        f"SELECT stage FROM {spool.settings.own.keyspace}.mail_stages"
    )
    assert rows == [("sent",)]


def test_consume_as_an_iterator(
    example: Any, spool: Place4Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(spool, ("bob@example.net", CONTENT), ("bob@example.net", CONTENT))
    example("Consume as an iterator")
    assert [line.split(" ", 1)[1] for line in capsys.readouterr().out.splitlines()] == [
        "55 bytes",
        "55 bytes",
    ]
    assert spool.live() == []
    assert spool.ready(spool.names.work_queue) == 0


def test_inspect(example: Any, spool: Place4Queue, capsys: pytest.CaptureFixture[str]) -> None:
    fill(spool, ("bob@example.net", CONTENT))
    example("Inspect")
    first, row, content = capsys.readouterr().out.splitlines()
    assert first == "1 mails"
    assert "('bob@example.net',)" in row
    assert content == repr(CONTENT[:60])
    assert spool.wait_for_ready(spool.names.work_queue, 1) == 1


def test_in_a_container(
    example: Any, spool: Place4Queue, fresh_module: Any, tmp_path: Path
) -> None:
    fill(spool, ("bob@example.net", CONTENT))
    (tmp_path / "main.py").write_text(EXAMPLES["In a container"])
    with subprocess.Popen(
        [sys.executable, "main.py"],
        cwd=tmp_path,
        env=fresh_module.environ,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("handled Mail")
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
    assert spool.live() == []


def test_with_an_event_loop(
    example: Any, spool: Place4Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    example("With an event loop")
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "5 completed",
        *(f"handled mail-{number}" for number in range(5)),
    ]
    assert spool.live() == []


def test_in_a_fastapi_application(
    example: Any, spool: Place4Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    from fastapi.testclient import TestClient

    names = example("In a FastAPI application")
    with TestClient(names["app"]) as client:
        answer = client.post("/mails", content=CONTENT)
        assert answer.status_code == 202
        assert answer.json().keys() == {"enqueueId"}
        refused = client.post("/mails", content=b"Subject: to nobody\r\n\r\n")
        assert refused.status_code == 422
        assert "no recipient" in refused.json()["detail"]
        deadline = time.monotonic() + 30
        while client.get("/size").json() != {"size": 0}:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert capsys.readouterr().out.startswith("handled Mail")
