"""Consumes the hop queue, where copies of delayed mails surface. Runs inside every worker that consumes the queue."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from mailslice.model.errors import (
    MailsliceError,
    QueueMissing,
    StoreUnavailable,
    TryAgain,
    Undecodable,
)
from mailslice.model.names import HEADER_DELAY_TOKEN, HEADER_DELIVERY_COUNT
from mailslice.stores.rabbitmq.consumer import Consumer, Message
from mailslice.stores.rabbitmq.link import Link
from mailslice.worker.delays import Delays, own_headers
from mailslice.worker.delivery import dead_letter
from mailslice.worker.patience import Patience
from mailslice.worker.wiring import Wiring

log = logging.getLogger(__name__)
_PREFETCH = 512
"""Twice what may wait here for its last stretch (`Delays`)."""


class HopConsumer:
    """Holds a copy while a store is down, and tries again with back-off."""

    def __init__(self, wiring: Wiring, delays: Delays) -> None:
        self._wiring = wiring
        self._delays = delays
        self._tasks: set[asyncio.Task[None]] = set()
        self._consumer = Consumer(
            wiring.settings.rabbitmq,
            wiring.names.hop_queue,
            _PREFETCH,
            on_message=self._arrived,
            on_lost=self._lost,
            prepare=self._declare,
        )

    @property
    def error(self) -> BaseException | None:
        """What ended it for good (a setting that is wrong), if anything did."""
        return self._consumer.error

    @property
    def busy(self) -> bool:
        """Whether it holds a copy."""
        return bool(self._tasks)

    def start(self) -> None:
        """Consumes, in a task, what it declares first where it is missing."""
        self._consumer.start()

    async def close(self) -> None:
        """Ends; what is not published yet goes back to the hop queue."""
        await self._consumer.stop()
        await self._delays.settled()
        self._cancel_all()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._delays.settled()  # what began meanwhile
        await self._consumer.close()

    async def _declare(self) -> None:
        try:
            await self._delays.declare()
        except TryAgain:
            raise
        except MailsliceError as error:
            # The work queue's consumer says so too, and ends where nothing else helps; a queue of another kind is mended by a person, while mail goes on.
            raise StoreUnavailable(f"delayed mails wait: {error}") from error

    def _arrived(self, message: Message) -> None:
        task = asyncio.create_task(self._surface(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _lost(self, _link: Link | None, why: MailsliceError) -> None:
        if isinstance(why, QueueMissing):
            self._delays.missing()
        self._cancel_all()

    def _cancel_all(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _surface(self, message: Message) -> None:
        patience = Patience()
        copied = False
        with suppress(asyncio.CancelledError):
            while True:
                try:
                    await self._surface_once(message)
                except MailsliceError as error:
                    patience.end_if_cancelled()
                    pause, aloud = patience.pause()
                    if aloud:
                        log.warning(
                            "a delayed mail is held for %.1f s: %s",
                            pause,
                            error,
                            extra={"action": "hop_held"},
                        )
                except Exception:
                    patience.end_if_cancelled()
                    pause, _ = patience.pause()
                    log.exception(
                        "a delayed mail could not be looked at; it is held",
                        extra={"action": "hop_fault"},
                    )
                else:
                    return
                if not copied and _is_counted(message) and not self._delays.has_published(message):
                    copied = True  # or may have been: another copy could only double it
                    if await self._renewed(message):
                        return
                await asyncio.sleep(pause)

    async def _renewed(self, message: Message) -> bool:
        """Whether a copy that the broker has not counted yet has taken its place.

        What waits here through an outage comes back by every `consumer_timeout` and every end of a worker, and a quorum queue past its limit (RabbitMQ 4
        has one by default, policies give one) drops what has no dead letter exchange to go to.
        """
        headers = own_headers(message.headers)
        if isinstance(token := message.headers.get(HEADER_DELAY_TOKEN), str):
            headers[HEADER_DELAY_TOKEN] = token
        try:
            await self._wiring.publisher.publish(
                "",
                message.body,
                headers,
                message.timestamp,
                routing_key=self._wiring.names.hop_queue,
            )
        except Exception as error:  # noqa: BLE001 - it is held on, whatever kept it from being replaced
            log.info(
                "a delayed mail that waits keeps its delivery count: %s",
                error,
                extra={"action": "hop_not_renewed"},
            )
            return False
        message.ack()
        return True

    async def _surface_once(self, message: Message) -> None:
        try:
            await self._delays.surfaced(message)
        except Undecodable as error:
            # The hop queue has no dead letter exchange: a reject would drop it.
            await dead_letter(self._wiring, message, f"not a mail, in the hop queue: {error}")


def _is_counted(message: Message) -> bool:
    count = message.headers.get(HEADER_DELIVERY_COUNT)
    return isinstance(count, int) and count > 0
