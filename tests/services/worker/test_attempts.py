"""What is known of the attempts at a mail that waits: how many, the last answer, the next try."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mailslice.admin.mail_queue import MailQueue
from mailslice.cli.shapes import with_next_delivery
from mailslice.model.clock import system_clock
from mailslice.worker import Retry, consume, open_worker
from tests.services.worker.conftest import mail, until

CONTENT = b"A: b\r\n\r\nlater"
HOUR = timedelta(hours=1)


def shown(spool: Any) -> dict[str, Any]:
    rows = MailQueue(spool.stores, spool.queue, system_clock).browse()
    (line,) = with_next_delivery(spool.stores, spool.queue, rows)
    return line


def facts(spool: Any) -> tuple[Any, Any, bool]:
    line = shown(spool)
    return line["attempts"], line["lastAnswer"], line["nextDelivery"] is not None


async def test_attempts_and_the_last_answer_are_shown_until_the_mail_is_done(spool: Any) -> None:
    record_every = timedelta(milliseconds=100)
    worker_settings = spool.settings.worker.model_copy(update={"record_every": record_every})
    settings = spool.settings.model_copy(update={"worker": worker_settings})
    async with open_worker(settings, spool.queue) as worker:
        await worker.enqueue(mail(), CONTENT)
        assert facts(spool) == (None, None, False)
        async with aclosing(worker.deliveries(4)) as deliveries:
            delivery = await asyncio.wait_for(anext(deliveries), 20)
            # Of one recipient that was refused, and another that was served.
            delivery.explain("451 4.7.1 <bob@example.net> try later", "250 2.0.0 OK queued")
            await delivery.retry(after=timedelta(seconds=1))
            await until(lambda: facts(spool)[:2] == (1, "451 4.7.1 <***> try later"))

            # It came due: the row is closed, and what it says of the attempts stays.
            delivery = await asyncio.wait_for(anext(deliveries), 20)
            await until(lambda: facts(spool) == (2, "451 4.7.1 <***> try later", False))

            # A destination that takes no more is no attempt, and no answer.
            delivery.explain("throttled", "")
            await delivery.retry(after=HOUR, throttled=True)
            await until(lambda: facts(spool) == (1, "451 4.7.1 <***> try later", True))
        due = shown(spool)["nextDelivery"]
        assert due > datetime.now(UTC) + timedelta(minutes=50)


async def test_a_mail_that_was_enqueued_for_later_has_no_attempt(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        await worker.enqueue(replace(mail(), name="later"), CONTENT, delay=HOUR)
    assert facts(spool) == (0, None, True)


@pytest.mark.parametrize(
    "outcome",
    [
        Retry(after=HOUR, why=ValueError("451")),  # type: ignore[arg-type]
        Retry(after=HOUR, why="451 caf\udce9"),
        Retry(after=HOUR, answer="451 caf\udce9"),
    ],
)
async def test_whatever_a_handler_says_of_an_attempt_the_mail_waits_for_the_next(
    spool: Any, outcome: Retry
) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        await worker.enqueue(mail(), CONTENT)
        async with asyncio.timeout(20):
            done = await consume(worker, lambda _mail, _content: outcome, most=1)
    assert done.retried == 1
    assert shown(spool)["attempts"] == 1
