"""What the broker hands out again after a lost connection, though a retry has put another message
in its place: no one is served again, nothing is lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest

from mailslice.model.errors import StoreUnavailable
from mailslice.stores.rabbitmq.consumer import Message
from mailslice.worker import Deliveries, Delivery, open_worker
from tests.services.worker.conftest import Place4Queue, at, mail, until
from tests.services.worker.cuttable import Cuttable
from tests.services.worker.test_faults import CONTENT, next_of

A, B, C = "a@next.example", "b@next.example", "c@next.example"


class InHand:
    """A queue whose one mail is in hand here, by a connection that can be lost."""

    def __init__(
        self,
        spool: Place4Queue,
        rabbit: Cuttable,
        worker: Any,
        deliveries: Deliveries,
        delivery: Delivery,
    ) -> None:
        self.spool, self.rabbit, self.worker, self.deliveries, self.delivery = (
            spool,
            rabbit,
            worker,
            deliveries,
            delivery,
        )

    async def lose(self) -> None:
        """The connection is lost, and another one made."""
        await self.rabbit.cut()
        await self.rabbit.mend()

    async def handed_out_again(self, delivery: Delivery) -> None:
        """What the broker hands out again belongs to the delivery that is in hand."""
        await until(lambda: not delivery.lease.is_lost)

    async def nothing_is_left(self) -> None:
        """Nothing is delivered any more, nor with the broker."""
        with pytest.raises(TimeoutError):
            await next_of(self.deliveries, 1)
        await self.deliveries.disconnect()
        assert await asyncio.to_thread(self.spool.ready, self.spool.names.work_queue) == 0


@pytest.fixture
def in_hand(fresh: Any) -> Any:
    @asynccontextmanager
    async def opened() -> AsyncIterator[InHand]:
        url = urlsplit(fresh.env["MAILSLICE_RABBITMQ_URL"])
        async with Cuttable(url.hostname or "", url.port or 0) as rabbit:
            proxied = url._replace(
                netloc=f"{url.username}:{url.password}@127.0.0.1:{rabbit.port}"
            ).geturl()
            for spool in at(fresh.settings):
                async with (
                    open_worker(
                        fresh.but(MAILSLICE_RABBITMQ_URL=proxied).settings, spool.queue
                    ) as worker,
                    aclosing(worker.deliveries(8)) as deliveries,
                ):
                    await worker.enqueue(mail(recipients=(A, B, C)), CONTENT)
                    yield InHand(spool, rabbit, worker, deliveries, await next_of(deliveries))

    return opened


async def test_who_was_served_is_not_served_again_when_the_connection_is_lost_under_the_handler(
    in_hand: Any,
) -> None:
    async with in_hand() as it:
        await it.lose()
        await it.handed_out_again(it.delivery)
        await it.delivery.retry([C])
        rest = await next_of(it.deliveries)
        assert rest.item.mail.recipients == (C,)
        assert rest.content == CONTENT
        await rest.reject("no such user")  # leaves no mark that would keep the other one back
        await it.nothing_is_left()
        assert (
            await asyncio.to_thread(it.spool.wait_for_ready, it.spool.names.dead_letter_queue, 1)
            == 1
        )


async def test_nor_when_it_is_handed_out_again_only_after_that_and_who_is_left_is_not_lost(
    in_hand: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_hand() as it:
        with monkeypatch.context() as broken:
            broken.setattr(Message, "ack", lambda _: False)  # it never gets to the broker
            await it.delivery.retry([B, C])
        await until(
            lambda: len(it.worker.state.in_hand) == 1
        )  # what is left has come, and is not handed out
        await it.lose()  # both come again
        rest = await next_of(it.deliveries)
        assert (rest.item.mail.recipients, rest.redelivered) == ((B, C), True)
        await rest.retry([C])
        last = await next_of(it.deliveries)
        assert last.item.mail.recipients == (C,)
        await last.complete()
        await it.nothing_is_left()


async def test_nor_when_its_row_was_written_by_a_clock_ahead_which_a_retry_waits_for(
    in_hand: Any,
) -> None:
    """The row's recipients are what the next delivery of the old message goes by."""
    async with in_hand() as it:
        (row,) = await asyncio.to_thread(it.spool.rows)
        ahead = time.time() + 2
        written = it.spool.stores.tables.written
        await asyncio.to_thread(written.copy_many, [(row, int(ahead * 1_000_000))])
        with pytest.raises(StoreUnavailable, match="written by a clock that is ahead"):
            await it.delivery.retry([C])
        await asyncio.sleep(ahead + 0.1 - time.time())
        await it.delivery.retry([C])
        (row,) = await asyncio.to_thread(it.spool.rows)
        assert row.item.mail.recipients == (C,)
        rest = await next_of(it.deliveries)
        assert rest.item.mail.recipients == (C,)
        await rest.complete()
        await it.nothing_is_left()


async def test_a_pause_is_kept_and_the_mail_comes_after_it_however_often_it_is_handed_out_again(
    in_hand: Any,
) -> None:
    async with in_hand() as it:
        await it.lose()
        await it.handed_out_again(it.delivery)
        began = asyncio.get_running_loop().time()
        await it.delivery.retry(after=timedelta(seconds=2))
        later = await next_of(it.deliveries)
        assert asyncio.get_running_loop().time() - began >= 2
        assert (later.failures, later.item.mail.recipients) == (1, (A, B, C))
        await it.lose()
        await it.handed_out_again(later)
        await (
            later.retry()
        )  # a requeue, by a connection that is gone: the copy that waits is all there is
        last = await next_of(it.deliveries)
        assert (last.failures, last.redelivered) == (1, True)
        await last.retry(
            after=timedelta(seconds=1), counted=False
        )  # its copy cannot be told from it, but came later
        copy = await next_of(it.deliveries)
        await it.lose()
        await it.handed_out_again(copy)
        await copy.retry()
        again = await next_of(it.deliveries)
        assert again.redelivered
        await again.complete()
        await it.nothing_is_left()
