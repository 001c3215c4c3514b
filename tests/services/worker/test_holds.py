"""Workers leave a held queue, or mails to a held domain, alone: nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mailslice.admin.holds import hold, holds, release
from mailslice.model.clock import system_clock
from mailslice.model.crash import VARIABLE
from mailslice.model.settings import clone_root
from mailslice.stores.rabbitmq.blocking_publisher import has_consumers
from mailslice.worker import Mail, consume, open_worker
from mailslice.worker.dequeue.park import Park
from mailslice.worker.io.context import Tuning
from tests.acceptance.command import MAILSLICE
from tests.services.worker.conftest import at, mail, until
from tests.services.worker.cuttable import Cuttable
from tests.services.worker.test_delays import next_of, nothing_within, row
from tests.services.worker.test_faults import rabbit, through

__all__ = ["rabbit"]
CONTENT = b"A: b\r\n\r\nheld"
QUICK = Tuning(holds_every=0.1)

HOLD_POINTS = ("hold:copied", "overtaken:copied")


def to(name: str, *domains: str) -> Mail:
    return mail(name, recipients=tuple(f"bob@{domain}" for domain in domains))


async def held(spool: Any, *domains: str, lasts: float | None = None) -> None:
    """Held from now on."""
    await asyncio.to_thread(
        hold,
        *(spool.stores, spool.queue, system_clock),
        who="ada",
        reason="a test",
        domains=domains,
        lasts=None if lasts is None else timedelta(seconds=lasts),
    )


async def released(spool: Any, *domains: str) -> None:
    await asyncio.to_thread(release, spool.stores, spool.queue, system_clock, domains=domains)


async def test_a_held_queue_gives_nothing_keeps_nothing_and_goes_on_when_it_is_released(
    fresh_module: Any, spool: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    settings = spool.settings.model_copy(
        update={
            "worker": spool.settings.worker.model_copy(
                update={"record_every": timedelta(seconds=0.5)}
            )
        }
    )
    async with open_worker(settings, spool.queue, tuning=QUICK) as worker:
        for number in range(3):
            await worker.enqueue(mail(f"m-{number}"), CONTENT)
        async with aclosing(worker.deliveries(4)) as deliveries:
            first = await next_of(deliveries)
            await held(spool)
            assert await asyncio.to_thread(spool.wait_for_ready, spool.names.work_queue, 2) == 2
            assert await nothing_within(deliveries, 0.5)
            await first.complete()
            assert len(spool.live()) == 2
            assert not has_consumers(spool.settings.rabbitmq, spool.names.work_queue)
            (state,) = holds(spool.stores, system_clock, spool.queue)
            await until(lambda: holds(spool.stores, system_clock, spool.queue)[0].seen_by == 1)
            assert state.hold.reason == "a test"
            assert worker.context.statistics.held_whole == 1
            await released(spool)
            rest = [await next_of(deliveries, 10) for _ in range(2)]
            assert {one.item.mail.name for one in rest} | {first.item.mail.name} == {
                *("m-0", "m-1", "m-2")
            }
            for one in rest:
                await one.complete()
    said = [text for text in caplog.messages if str(spool.queue) in text]
    assert "is held: the whole queue since" in said[0]
    assert "(James' consumers are not affected)" in said[0]
    assert said[-1].endswith("the hold of the whole queue ended")


async def test_a_hold_ends_at_its_time_by_itself_and_a_consumer_that_is_idle_ends(
    spool: Any,
) -> None:
    async with open_worker(spool.settings, spool.queue, tuning=QUICK) as worker:
        await worker.enqueue(mail(), CONTENT)
        began = datetime.now(UTC)
        await held(spool, lasts=2)
        done = await consume(worker, lambda *_: None, idle=timedelta(seconds=0.3))
        assert done.total == 0
        async with aclosing(worker.deliveries(4)) as deliveries:
            await (await next_of(deliveries, 10)).complete()
    assert datetime.now(UTC) - began >= timedelta(seconds=2)
    assert spool.live() == []


async def test_mails_of_a_held_domain_wait_as_a_whole_and_keep_their_attempts(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue, tuning=QUICK) as worker:
        failed = await worker.enqueue(to("failed", "held.example"), CONTENT)
        async with aclosing(worker.deliveries(8)) as deliveries:
            delivery = await next_of(deliveries)
            await delivery.retry(after=timedelta(seconds=0.5))
            await held(spool, "HELD.example", lasts=3)
            await until(lambda: worker.context.statistics.held_domains == 1)
            both = await worker.enqueue(to("both", "a.example", "held.example"), CONTENT)
            free = await worker.enqueue(to("free", "a.example"), CONTENT)
            assert (await next_of(deliveries)).item == free
            await until(lambda: row(spool, both) and row(spool, failed).held)
            assert (row(spool, both).held, row(spool, both).failures) == (True, 0)
            assert (row(spool, failed).failures, row(spool, failed).throttled) == (1, False)
            back = [await next_of(deliveries, 10) for _ in range(2)]
            assert {(one.item.enqueue_id, one.attempt) for one in back} == {
                (both.enqueue_id, 1),
                (failed.enqueue_id, 2),
            }
            assert {one.item.mail.recipients for one in back} == {
                both.mail.recipients,
                failed.mail.recipients,
            }
            assert await nothing_within(deliveries, 1)
            assert worker.context.statistics.set_aside >= 2


async def test_what_was_fetched_before_its_domain_was_held_is_not_handed_out(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue, tuning=QUICK) as worker:
        items = [await worker.enqueue(to(f"m-{n}", "held.example"), CONTENT) for n in range(3)]
        async with aclosing(worker.deliveries(4)) as deliveries:
            first = await next_of(deliveries)
            await until(lambda: len(worker.state.in_hand) == 3)
            await held(spool, "held.example")
            rest = [item for item in items if item != first.item]
            await until(lambda: all(row(spool, item) for item in rest))
            await first.complete()
            spool.stores.tables.deleted.mark_many(spool.queue, [rest[0].enqueue_id])
            await released(spool, "held.example")
            last = await next_of(deliveries, 20)
            assert last.item == rest[1]
            await last.complete()
            assert await nothing_within(deliveries, 1)
    assert spool.live() == []


@pytest.mark.parametrize("takes_copies", [True, False])
async def test_a_mail_that_is_being_parked_as_its_domain_is_held_is_settled_once(
    spool: Any, monkeypatch: pytest.MonkeyPatch, *, takes_copies: bool
) -> None:
    monkeypatch.setattr("mailslice.worker.dequeue.park.LONGEST_UNACKNOWLEDGED", 1.0)
    began, go_on, put = asyncio.Event(), asyncio.Event(), Park.put

    async def slow(*args: Any, **options: Any) -> bool:
        began.set()
        await go_on.wait()
        return takes_copies and await put(*args, **options)

    monkeypatch.setattr(Park, "put", slow)
    async with open_worker(spool.settings, spool.queue, tuning=QUICK) as worker:
        for number in range(2):
            await worker.enqueue(to(f"m-{number}", "held.example"), CONTENT)
        async with aclosing(worker.deliveries(4)) as deliveries:
            first = await next_of(deliveries)
            link = first.message.link
            await asyncio.wait_for(began.wait(), 20)
            await held(spool, "held.example")
            await until(lambda: worker.context.statistics.held_domains == 1)
            await asyncio.sleep(1)
            go_on.set()
            statistics = worker.context.statistics
            await until(lambda: statistics.parked or statistics.set_aside)
            assert await nothing_within(deliveries, 1)
            assert link.is_open
            assert (statistics.parked, statistics.set_aside) == (takes_copies, not takes_copies)
            await first.complete()


async def test_without_an_answer_the_worker_goes_on_with_the_holds_that_it_knows(
    fresh_module: Any, spool: Any, caplog: pytest.LogCaptureFixture
) -> None:
    host, port = spool.settings.cassandra.contact_points[0], spool.settings.cassandra.port
    async with Cuttable(str(host), port) as cassandra:
        settings = through(fresh_module, "cassandra", cassandra.port).model_copy(
            update={"s3": spool.settings.s3}
        )
        async with open_worker(settings, spool.queue, tuning=QUICK) as worker:
            await worker.enqueue(to("a", "held.example"), CONTENT)
            await held(spool)
            async with aclosing(worker.deliveries(4)) as deliveries:
                await until_async(lambda: worker.context.statistics.held_whole == 1, deliveries)
                await cassandra.cut()
                await until_async(lambda: worker.context.statistics.holds_unknown == 1, deliveries)
                assert await nothing_within(deliveries, 0.5)
                await cassandra.mend()
                await released(spool)
                assert (await next_of(deliveries, 30)).item.mail.name == "a"
                assert worker.context.statistics.holds_unknown == 0
    assert any("goes on with the 1 that it knows" in text for text in caplog.messages)


async def until_async(condition: Any, deliveries: Any) -> None:
    """Meanwhile nothing is handed out."""
    async with asyncio.timeout(30):
        while not condition():
            assert await nothing_within(deliveries, 0.1)


async def test_a_connection_that_is_lost_while_the_queue_is_held_does_not_consume(
    fresh: Any, rabbit: Cuttable
) -> None:
    for spool in at(fresh.settings):
        settings = through(fresh, "rabbitmq", rabbit.port)
        async with open_worker(settings, spool.queue, tuning=QUICK) as worker:
            await worker.enqueue(mail(), CONTENT)
            await held(spool)
            async with aclosing(worker.deliveries(4)) as deliveries:
                await until_async(lambda: deliveries.connected, deliveries)
                await rabbit.cut()
                await until_async(lambda: not deliveries.connected, deliveries)
                await rabbit.mend()
                await until_async(lambda: deliveries.connected, deliveries)
                assert await asyncio.to_thread(spool.ready, spool.names.work_queue) == 1
                await released(spool)
                await (await next_of(deliveries)).complete()


async def test_what_is_ready_as_the_queue_is_held_goes_back_however_slow_the_broker_is(
    fresh: Any, rabbit: Cuttable
) -> None:
    for spool in at(fresh.settings):
        settings = through(fresh, "rabbitmq", rabbit.port)
        async with open_worker(settings, spool.queue, tuning=QUICK) as worker:
            for number in range(3):
                await worker.enqueue(mail(f"m-{number}"), CONTENT)
            async with aclosing(worker.deliveries(4)) as deliveries:
                await (await next_of(deliveries)).complete()
                await asyncio.sleep(1)  # by now the other two are ready
                rabbit.hangs = True
                await held(spool)
                await until(lambda w=worker: w.context.statistics.held_whole == 1)
                assert await nothing_within(deliveries, 0.5)
                rabbit.hangs = False
                assert await asyncio.to_thread(spool.wait_for_ready, spool.names.work_queue, 2) == 2
                await released(spool)
                for _ in range(2):
                    await (await next_of(deliveries)).complete()


@pytest.mark.parametrize(
    "points",
    [
        ["hold:copied"],
        pytest.param(["delay:row-written", "overtaken:copied"], marks=pytest.mark.soak),
    ],
)
async def test_a_worker_that_is_killed_while_it_sets_a_mail_aside_doubles_nothing(
    spool: Any, fresh_module: Any, points: list[str]
) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await worker.enqueue(to("m", "held.example"), CONTENT)
    await held(spool, "held.example")
    bucket = spool.settings.s3.bucket
    for point in points:
        killed = await asyncio.to_thread(
            subprocess.run,
            [str(MAILSLICE), "worker", "drain", str(spool.queue)],
            env={**fresh_module.but(MAILSLICE_S3_BUCKET=bucket).environ, VARIABLE: point},
            cwd=clone_root(),
            timeout=90,
            check=False,
        )
        assert killed.returncode == -signal.SIGKILL
    await released(spool, "held.example")
    async with (
        open_worker(spool.settings, spool.queue) as worker,
        aclosing(worker.deliveries(1)) as deliveries,
    ):
        assert (await next_of(deliveries)).item == item
        await until(lambda: row(spool, item).published)
        assert spool.wait_for_ready(spool.names.work_queue, 1, seconds=1.5) == 0
