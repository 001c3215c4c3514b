"""Clients faster than the stores: SMTP says 451 with a reason, memory stays bounded, and every mail
that got its 250 is in the queue.
"""

from __future__ import annotations

import json
import smtplib
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from mailslice.admin.queues import create
from mailslice.bench.clearing import marked_ids
from mailslice.stores import open_stores
from tests.acceptance.command import MAILSLICE
from tests.acceptance.proxy import Proxy

pytestmark = pytest.mark.new_keyspaces

CLIENTS = 24
SIZE = 1_500_000
BUDGET_MIB = 8
SLOW = 16 << 20
"""Bytes a second that the slow store takes."""


class Slow(Proxy):
    """Passes so many bytes a second, over all connections."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._one_at_a_time = threading.Lock()
        super().__init__(target)

    def _pass(self, source: Any, sink: Any) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                with self._one_at_a_time:
                    time.sleep(len(data) / SLOW)
                sink.sendall(data)


@pytest.fixture
def server(fresh: Any, tmp_path: Path) -> Iterator[tuple[Any, subprocess.Popen[bytes], int]]:
    """SMTP intake before a slow S3: its settings, the process, the port."""
    url = urlsplit(fresh.env["MAILSLICE_S3_ENDPOINT"])
    slow = Slow((url.hostname or "", url.port or 0))
    with open_stores(fresh.settings) as stores:
        create(stores, "spool")
    world = fresh.but(
        MAILSLICE_S3_ENDPOINT=f"http://127.0.0.1:{slow.port}",
        MAILSLICE_WORKER_MEMORY_BUDGET_MIB=str(BUDGET_MIB),
    )
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [MAILSLICE, "worker", "smtp-in", "--queue", "spool", "--port", "0", "--json"],
            env=world.environ,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    try:
        assert process.stdout is not None
        yield fresh, process, json.loads(process.stdout.readline())["port"]
    finally:
        process.kill()
        process.wait()
        slow.cut()


def send(port: int, number: int, answers: Counter[str]) -> str:
    """One client that tries until its mail is taken; the id in the answer."""
    content = b"Subject: %d\r\n\r\n" % number + b"x" * 998 + b"\r\n"
    content += (b"y" * 998 + b"\r\n") * (SIZE // 1000)
    for _ in range(400):
        with smtplib.SMTP("127.0.0.1", port, local_hostname="client.example", timeout=60) as client:
            client.ehlo()
            for code, words in (  # noqa: B007 - the last one is what was answered
                client.docmd(
                    "MAIL FROM:<s@x.example>" + (f" SIZE={len(content)}" if number % 2 else "")
                ),
                client.docmd("RCPT TO:<r@x.example>"),
            ):
                if code != 250:
                    break
            else:
                code, words = client.data(content)
        answers[f"{code} {words.decode()[:9]}"] += 1
        if code == 250:
            return words.decode().rpartition(" ")[2]
        time.sleep(0.1)
    raise AssertionError(answers)


def test_clients_faster_than_the_stores_are_told_to_come_again_and_no_mail_is_dropped(
    server: tuple[Any, Any, int],
) -> None:
    world, process, port = server
    measured = psutil.Process(process.pid)
    before = measured.memory_info().rss / 1024**2
    answers: Counter[str] = Counter()
    with ThreadPoolExecutor(CLIENTS) as clients:
        taken = set(clients.map(lambda number: send(port, number, answers), range(CLIENTS)))
    status = Path(f"/proc/{process.pid}/status").read_text()
    peak = next(
        int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")
    )
    assert {answer[:3] for answer in answers} == {"250", "451"}
    assert answers["451 4.3.1 Too"] > 0
    assert len(taken) == CLIENTS
    assert peak - before < 4 * BUDGET_MIB + 40, (
        f"{CLIENTS} clients with {SIZE} bytes each; {before:.0f} MiB before"
    )
    with open_stores(world.settings) as stores:
        written = stores.tables.written
        pages = written.rows_of("spool", written.partitions("spool"))
        rows = [row for _, page in pages for row in page]
        marked = marked_ids(stores.tables.deleted, "spool")
    assert {str(row.enqueue_id) for row in rows if row.enqueue_id not in marked} == taken
