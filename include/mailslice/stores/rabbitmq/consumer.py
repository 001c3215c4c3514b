"""Deliveries of a RabbitMQ queue, on a connection of their own, reopened when it is lost."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Any

from mailslice.codec.headers import moment
from mailslice.model import crash
from mailslice.model.back_off import pause_seconds
from mailslice.model.errors import MailsliceError, QueueMissing, TryAgain
from mailslice.model.names import HEADER_PARKED
from mailslice.model.settings import RabbitSettings
from mailslice.stores.rabbitmq.connection import PIKA_ERRORS, broker_address
from mailslice.stores.rabbitmq.link import Link

log = logging.getLogger(__name__)
LONGEST_PAUSE = 5.0
"""Seconds between two attempts to connect: short, so that a broker soon has its consumers back."""


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """One delivery, and its link. On any other link its tag is invalid, or another delivery's."""

    link: Link
    tag: int
    body: bytes
    headers: Mapping[str, Any]
    timestamp: datetime | None
    redelivered: bool
    arrived: float
    """Seconds, by the loop's clock."""

    def ack(self) -> bool:
        """Acknowledges. False: the link is gone, and the broker hands the message out again."""
        return self._settle(lambda: self.link.channel.basic_ack(self.tag))

    def requeue(self) -> bool:
        return self._settle(lambda: self.link.channel.basic_nack(self.tag, requeue=True))

    def _settle(self, send: Callable[[], object]) -> bool:
        if not self.link.is_open:
            return False
        try:
            send()
        except PIKA_ERRORS:
            return False
        crash.point("message:settled")
        return True


@dataclass(eq=False, repr=False)
class Consumer:
    """Consumes `queue` until stopped. Callbacks run on the loop: `on_message(message)`,
    `on_lost(link, why)`, `on_ready()`.

    Awaits `prepare()` before each attempt to connect. Consumes a queue again that is deleted
    meanwhile and comes back.
    """

    settings: RabbitSettings
    queue: str
    prefetch: int
    _: KW_ONLY
    on_message: Callable[[Message], None]
    on_lost: Callable[[Link | None, MailsliceError], None] = lambda _link, _why: None
    on_ready: Callable[[], None] = lambda: None
    prepare: Callable[[], Awaitable[None]] | None = None
    link: Link | None = field(default=None, init=False)
    """The current link, or the last one; None while a new one is opened."""
    _tag: str | None = field(default=None, init=False)
    _stopped: bool = field(default=False, init=False)
    _deliver: Callable[..., None] = field(default=lambda *_: None, init=False)
    _paused: bool = field(default=False, init=False)
    _subscribing: bool = field(default=False, init=False)
    _is_set_up: bool = field(default=False, init=False)
    """Whether it consumes on its link, or would if it were not paused."""
    _running: asyncio.Task[None] | None = field(default=None, init=False)

    def start(self) -> None:
        """Starts a task that connects and consumes."""
        self._running = asyncio.create_task(self._run(), name=f"consume-{self.queue}")

    @property
    def error(self) -> BaseException | None:
        """The final error that ended the consumer (a wrong setting, say), or None."""
        running = self._running
        if running is None or not running.done() or running.cancelled():
            return None
        return running.exception()

    async def pause(self) -> None:
        """Stops deliveries until `resume`. The channel stays open for unsettled messages."""
        self._paused = True
        await self._unsubscribe()

    async def resume(self) -> None:
        """Resumes deliveries, at once or when it is connected."""
        self._paused = False
        if self._is_set_up and self.link is not None and self.link.is_open and not self._tag:
            try:
                await self._begin(self.link)
            except TryAgain as error:
                self.link.end(error)  # it may consume by an unknown tag; the next link consumes

    async def stop(self) -> None:
        """Stops deliveries. The channel stays open to settle the messages in hand."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})
        if self._stopped or self.link is None or not self.link.is_open:
            return
        self._stopped = True  # a second cancel of the same tag is never answered
        if self._paused and not self._subscribing:
            return
        if self._tag is None:
            # Its basic_consume may have no answer yet, so no tag. No message is in hand, but the
            # broker would deliver from then on.
            await self.link.close()
            return
        with suppress(MailsliceError):
            await self.link.call(self.link.channel.basic_cancel, self._tag)

    async def close(self) -> None:
        """Stops and closes. Unsettled messages go back to the broker."""
        await self.stop()
        if self.link is not None:
            await self.link.close()

    async def _run(self) -> None:
        attempt = 0
        while True:
            try:
                self.link = self._tag = None
                self._is_set_up = self._subscribing = False
                if self.prepare is not None:
                    await self.prepare()
                self.link = link = await Link.open(self.settings)
                await self._consume(link)
            except TryAgain as error:
                why: MailsliceError = error
                if self.link is not None:
                    await self.link.close()
            else:
                self.on_ready()
                done, _ = await asyncio.wait({link.lost}, timeout=LONGEST_PAUSE)
                if not done:  # a connection that lasts ends the back-off
                    attempt = 0
                    await asyncio.wait({link.lost})
                why = link.lost.result()
            self.on_lost(self.link, why)
            pause = pause_seconds(attempt, 0.25, LONGEST_PAUSE)
            attempt += 1
            extra = {"action": "reconnect", "queue": self.queue}
            text = "consumer of %s lost its connection, again in %.1f s: %s"
            log.warning(text, self.queue, pause, why, extra=extra)
            await asyncio.sleep(pause)

    async def _consume(self, link: Link) -> None:
        channel = link.channel
        loop = asyncio.get_running_loop()

        def deliver(_channel: object, method: Any, properties: Any, body: bytes) -> None:
            headers = properties.headers or {}
            repeated = method.redelivered or HEADER_PARKED in headers
            when, tag = moment(properties.timestamp), method.delivery_tag
            self.on_message(Message(link, tag, body, headers, when, repeated, loop.time()))

        def cancelled(_frame: object) -> None:
            # After the broker's Basic.Cancel the channel would stay open and silent for ever.
            who = f"RabbitMQ at {broker_address(self.settings)} cancelled the consumer"
            why = "the queue was deleted, or has moved"
            link.end(QueueMissing(f"{who} of {self.queue}: {why}"))

        channel.add_on_cancel_callback(cancelled)
        await link.call(channel.basic_qos, prefetch_count=self.prefetch)
        self._deliver = deliver
        if not self._paused:
            await self._begin(link)
        self._is_set_up = True
        if self._paused:
            await self._unsubscribe()

    async def _begin(self, link: Link) -> None:
        self._subscribing = True
        self._tag = await self.subscribe(link, self._deliver)
        self._subscribing = False

    async def _unsubscribe(self) -> None:
        tag, self._tag = self._tag, None
        if tag is None or self.link is None or not self.link.is_open:
            return
        try:
            await self.link.call(self.link.channel.basic_cancel, tag)
        except TryAgain as error:
            self.link.end(error)  # it may still deliver; the next link does not consume

    async def subscribe(self, link: Link, deliver: Callable[..., None]) -> str:
        """Starts to consume. Returns the consumer tag."""
        ok = await link.call(link.channel.basic_consume, self.queue, deliver)
        return str(ok.method.consumer_tag)
