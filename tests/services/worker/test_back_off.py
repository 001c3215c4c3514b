"""The back-off policy as a whole: attempts by two workers one after the other, and the end of a mail that never succeeds."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from mailslice.model.mail import Mail
from mailslice.model.settings import GiveUp
from mailslice.queue.directory import create
from mailslice.worker import BlockingStage, consume, open_worker
from tests.services.worker.conftest import mail

CONTENT = b"Subject: x\r\n\r\nbody\r\n"
SHORT = {"back_off_base": timedelta(seconds=1), "back_off_cap": timedelta(seconds=1), "attempts": 3}


def with_policy(spool: Any, **given: Any) -> Any:
    return spool.settings.model_copy(update={"worker": spool.settings.worker.model_copy(update={**SHORT, **given})})


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
    assert spool.coming(spool.names.dead_letter_queue, 1) == 1
    assert spool.ready(spool.names.work_queue) == 0


async def test_or_a_report_to_its_sender_and_the_mail_is_done(spool: Any) -> None:
    reports = create(spool.stores, "reports")

    def handle(_mail: Mail, _content: bytes) -> None:
        raise ValueError

    settings = with_policy(spool, attempts=1, give_up=GiveUp.BOUNCE, bounce_queue=reports)
    settings = type(settings).model_validate(settings.model_dump())
    async with open_worker(settings, spool.queue) as worker:
        item = await worker.enqueue(mail(recipients=("bob@example.net", "carol@example.net")), CONTENT)
        done = await consume(worker, handle, most=1)
        assert (done.bounced, done.failures) == (1, 1)
    assert item.enqueue_id in spool.marks()
    async with open_worker(spool.settings, reports) as worker:
        found: list[tuple[Mail, bytes]] = []
        await consume(worker, lambda report, content: found.append((report, content)), most=1)
    ((report, content),) = found
    assert (report.sender, report.recipients) == (None, ("alice@example.org",))
    for recipient in (b"bob", b"carol"):
        assert b"Final-Recipient: rfc822; " + recipient + b"@example.net\r\nAction: failed\r\nStatus: 4.4.7" in content
    assert b"1 attempts" in content
