"""Reports are built beside the event loop where they are large."""

from __future__ import annotations

import threading
from dataclasses import fields
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from mailslice.codec.reports import Failure
from mailslice.model.clock import system_clock
from mailslice.model.errors import StoreUnavailable
from mailslice.model.mail import BlobId, EnqueueId, Mail
from mailslice.model.names import queue_name
from mailslice.model.settings import load_settings
from mailslice.worker.enqueue import bounce_reports
from mailslice.worker.enqueue.bounce_reports import Reporter
from mailslice.worker.io.context import QueueContext

ITEM: Any = SimpleNamespace(
    mail=Mail("m", "a@b.example", ("c@d.example",)), enqueue_id=EnqueueId(UUID(int=1))
)


def reporter_of(broker: SimpleNamespace, blobs: Any = None) -> Reporter:
    """All of its stores but these do nothing."""
    none: Any = SimpleNamespace(deleted=None, rows=None, rabbitmq=broker)
    needed = {one.name for one in fields(QueueContext) if one.default is one.default_factory}
    given: dict[str, Any] = dict.fromkeys(needed - {"events", "checks"}, none)
    given |= {"settings": load_settings({}), "queue": queue_name("spool"), "clock": system_clock}
    given |= {} if blobs is None else {"blobs": blobs}
    return Reporter(QueueContext(**given), queue_name("bounces"))


@pytest.mark.parametrize(("recipients", "on_the_loop"), [(100, True), (101, False)])
async def test_a_report_of_many_recipients_is_built_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, recipients: int, *, on_the_loop: bool
) -> None:
    built: list[threading.Thread] = []

    def build(*_: object, **__: object) -> None:
        built.append(threading.current_thread())

    monkeypatch.setattr(bounce_reports, "report_of", build)
    reporter = reporter_of(SimpleNamespace())
    failures = [Failure(f"r{number}@d.example", "5.1.1", "no") for number in range(recipients)]
    assert await reporter.report(ITEM, failures, b"A: b\r\n\r\n") is False
    assert (built == [threading.current_thread()]) is on_the_loop


async def test_a_report_of_a_mail_whose_content_was_dropped_has_its_stored_header(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    headers: list[bytes | None] = []

    async def get(_: object) -> bytes:
        return b"A: b\r\n\r\n"

    monkeypatch.setattr(bounce_reports, "report_of", lambda *given, **_: headers.append(given[2]))
    reporter = reporter_of(SimpleNamespace(), SimpleNamespace(get=get))
    item: Any = SimpleNamespace(
        mail=ITEM.mail, enqueue_id=ITEM.enqueue_id, header_blob_id=BlobId("h")
    )
    assert not await reporter.report(item, [Failure("c@d.example", "5.1.1", "no")], b"")
    assert headers == [b"A: b\r\n\r\n"]


@pytest.mark.parametrize("exists", [True, False])
async def test_a_deleted_queue_of_reports_holds_no_mail(
    monkeypatch: pytest.MonkeyPatch, *, exists: bool
) -> None:
    class Away:
        def __init__(self, *_: object) -> None:
            pass

        async def enqueue(self, *_: object) -> None:
            raise StoreUnavailable("RabbitMQ closed the channel: 404 no exchange")

    monkeypatch.setattr(bounce_reports, "Enqueuer", Away)
    broker = SimpleNamespace(exists=lambda queue: exists and queue == "bounces")
    told = reporter_of(broker).report(
        ITEM, [Failure("c@d.example", "5.1.1", "no")], b"A: b\r\n\r\n"
    )
    if exists:
        with pytest.raises(StoreUnavailable):
            await told
    else:
        assert await told is False
