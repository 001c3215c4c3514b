"""The back-off policy as a whole: attempts by two workers one after the other, and the end of a
mail that never succeeds.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from mailslice.admin.queues import create
from mailslice.model.errors import BadInput
from mailslice.model.mail import Mail
from mailslice.model.settings import GiveUp
from mailslice.worker import BlockingStage, Retry, consume, open_worker
from tests.services.worker.conftest import mail

CONTENT = b"Subject: x\r\n\r\nbody\r\n"
SHORT = {"back_off_base": timedelta(seconds=1), "back_off_cap": timedelta(seconds=1), "attempts": 3}


def with_policy(spool: Any, **given: Any) -> Any:
    return spool.settings.model_copy(
        update={"worker": spool.settings.worker.model_copy(update={**SHORT, **given})}
    )


def bouncing(spool: Any, reports: str, **queue: Any) -> Any:
    settings = with_policy(spool, attempts=1, give_up=GiveUp.BOUNCE, bounce_queue=reports)
    return type(settings).model_validate(
        settings.model_dump() | {"queue": settings.queue.model_dump() | queue}
    )


async def test_a_mail_that_fails_three_times_under_two_workers_is_a_dead_letter(spool: Any) -> None:
    attempts: list[int] = []

    def handle(_mail: Mail, _content: bytes, *, stage: BlockingStage) -> None:
        attempts.append(stage.attempt)
        raise ValueError("bob@example.net does not like it")

    settings = with_policy(spool)
    async with open_worker(settings, spool.queue) as worker:
        await worker.enqueue(mail(), CONTENT)
        done = await consume(worker, handle, most=2)
        assert (done.retried, done.failures) == (2, 2)
    async with open_worker(settings, spool.queue) as worker:
        done = await consume(worker, handle, most=1)
        assert (done.rejected, attempts) == (1, [1, 2, 3])
    assert spool.wait_for_ready(spool.names.dead_letter_queue, 1) == 1
    assert spool.ready(spool.names.work_queue) == 0


async def test_or_a_report_to_its_sender_and_the_mail_is_done(spool: Any) -> None:
    reports = create(spool.stores, "reports")

    def handle(_mail: Mail, _content: bytes) -> None:
        raise ValueError

    settings = bouncing(spool, reports)
    async with open_worker(settings, spool.queue) as worker:
        item = await worker.enqueue(
            mail(recipients=("bob@example.net", "carol@example.net")), CONTENT
        )
        done = await consume(worker, handle, most=1)
        assert (done.bounced, done.failures) == (1, 1)
    assert item.enqueue_id in spool.marks()
    async with open_worker(spool.settings, reports) as worker:
        found: list[tuple[Mail, bytes]] = []
        await consume(worker, lambda report, content: found.append((report, content)), most=1)
    ((report, content),) = found
    assert (report.sender, report.recipients) == (None, ("alice@example.org",))
    for recipient in (b"bob", b"carol"):
        assert (
            b"Final-Recipient: rfc822; "
            + recipient
            + b"@example.net\r\nAction: failed\r\nStatus: 4.4.7"
            in content
        )
    assert b"1 attempts" in content


async def test_a_mail_of_which_no_report_can_be_made_is_a_dead_letter_and_holds_no_place(
    spool: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings = bouncing(spool, create(spool.stores, "reports"))
    async with open_worker(settings, spool.queue) as worker:
        await worker.enqueue(mail(sender="a@["), CONTENT)
        async with asyncio.timeout(60):
            done = await consume(worker, lambda _mail, _content: Retry(back_off=True), most=1)
        assert (done.bounced, done.rejected) == (0, 1)
    assert spool.wait_for_ready(spool.names.dead_letter_queue, 1) == 1
    assert (
        "given up after 1 attempts (MAILSLICE_WORKER_ATTEMPTS); no report could be made"
        in caplog.text
    )
    assert "a@[" not in "".join(
        record.getMessage() for record in caplog.records if record.levelno >= logging.INFO
    )


async def test_a_report_may_be_larger_than_the_largest_mail(spool: Any) -> None:
    reports = create(spool.stores, "reports")
    many = tuple(f"recipient-{number}@example.net" for number in range(50))
    settings = bouncing(spool, reports, max_mail_bytes=1000)
    async with open_worker(settings, spool.queue) as worker:
        with pytest.raises(BadInput, match="MAILSLICE_QUEUE_MAX_MAIL_BYTES"):
            await worker.enqueue(mail(), b"x" * 1001)
        item = await worker.enqueue(mail(recipients=many), CONTENT)
        async with asyncio.timeout(60):
            await consume(worker, lambda _mail, _content: Retry(back_off=True), most=1)
    assert item.enqueue_id in spool.marks()
    async with open_worker(settings, reports) as worker:
        found: list[bytes] = []
        await consume(worker, lambda _mail, content: found.append(content), most=1)
    assert found[0].count(b"Final-Recipient:") == 50
