"""Where the port of /livez, /readyz and /metrics is opened, and what it says at a start."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from mailslice.model.errors import BadSetting, StoreUnavailable
from mailslice.model.host_port import host_port
from mailslice.model.mail import QueueName
from mailslice.model.settings import Settings
from mailslice.worker import health, queue_worker
from mailslice.worker.health import HealthServer
from mailslice.worker.smtp_server.server import run_smtp_in
from tests.ports import free_port


@pytest.mark.parametrize(
    ("host", "reached_at"),
    [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "::1"), ("::", "127.0.0.1")],
)
def test_it_listens_on_addresses_of_ipv6_too_and_on_all_of_both_kinds(
    host: str, reached_at: str
) -> None:
    server = HealthServer(host, 0, {"/livez": lambda: (200, "text/plain", b"yes")})
    server.start()
    try:
        with urlopen(f"http://{host_port(reached_at, server.port)}/livez", timeout=5) as answer:
            assert answer.read() == b"yes"
    finally:
        server.stop()


@pytest.mark.parametrize("host", ["2001:db8::1", "no.address.invalid", "\u00fc" * 64])
def test_an_address_that_cannot_be_opened_is_a_bad_setting_that_names_it(host: str) -> None:
    with pytest.raises(BadSetting) as refused:
        HealthServer(host, 9, {})
    assert str(refused.value).startswith(f"health port {host_port(host, 9)} cannot be opened: ")


def test_smtp_in_is_alive_and_not_ready_while_its_stores_are_slow_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A restart would begin the wait anew."""
    port, answers = free_port(), []

    def statuses() -> tuple[int, int, str]:
        pages = [opened_anyway(f"http://127.0.0.1:{port}/{path}") for path in ("livez", "readyz")]
        (live, _), (ready, body) = pages
        return live, ready, json.loads(body)["processes"][0]["wrong"]

    @asynccontextmanager
    async def slow(*_: Any, **_options: Any) -> AsyncIterator[None]:
        await asyncio.sleep(4.5)
        answers.append(await asyncio.to_thread(statuses))
        raise StoreUnavailable("Cassandra is slow")
        yield

    monkeypatch.setattr(health, "SILENT_AFTER", 3.0)
    monkeypatch.setattr(queue_worker, "open_worker", slow)
    settings = Settings.model_validate({"smtp_in": {"port": 0, "health_port": port}})
    with pytest.raises(StoreUnavailable, match="Cassandra is slow"):
        run_smtp_in(settings, QueueName("spool"))
    assert answers == [(200, 503, "not running yet")]


def opened_anyway(url: str) -> tuple[int, bytes]:
    try:
        with urlopen(url, timeout=5) as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        return error.code, error.read()
