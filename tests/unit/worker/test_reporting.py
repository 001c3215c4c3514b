"""Reports are built beside the event loop where they are large."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from mailslice.codec.reports import Failure
from mailslice.model.mail import Mail
from mailslice.worker.enqueue import bounce_reports
from mailslice.worker.enqueue.bounce_reports import Reporter


@pytest.mark.parametrize(("recipients", "on_the_loop"), [(100, True), (101, False)])
async def test_a_report_of_many_recipients_is_built_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, recipients: int, *, on_the_loop: bool
) -> None:
    built: list[threading.Thread] = []

    def build(*_: object, **__: object) -> None:
        built.append(threading.current_thread())

    monkeypatch.setattr(bounce_reports, "report_of", build)
    reporter = Reporter.__new__(Reporter)
    reporter._clock = lambda: datetime(2026, 11, 22, tzinfo=UTC)
    reporter._name = "mx.example"
    item: Any = SimpleNamespace(mail=Mail("m", "a@b.example", ("c@d.example",)))
    failures = [Failure(f"r{number}@d.example", "5.1.1", "no") for number in range(recipients)]
    assert await reporter._enqueued(item, failures, b"A: b\r\n\r\n") is None
    assert (built == [threading.current_thread()]) is on_the_loop
