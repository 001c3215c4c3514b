"""Confirmed, mandatory, persistent publishes, many in flight on one connection of their own.

An error does not mean "not sent". A publish may still be delivered if the connection is lost before
its confirm, or if it waits behind a memory alarm.

A broker in alarm (memory, disk) stops reading from connections that publish. Publishes that are not
written yet then wait here, up to the time-out of a publish. A broker that confirms nothing for that
long counts as dead, long before its heartbeats fail. Attempts to connect back off.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pika import BasicProperties
from pika.spec import Basic

from mailslice.model import crash
from mailslice.model.back_off import pause_seconds
from mailslice.model.errors import MailsliceError, QueueMissing, StoreUnavailable, Unconfirmed
from mailslice.model.names import HEADER_DEAD_LETTER_ROUTING_KEY, ROUTING_KEY
from mailslice.model.settings import RabbitSettings
from mailslice.stores.deadlines import Deadlines
from mailslice.stores.rabbitmq.connection import PIKA_ERRORS, broker_address, translated
from mailslice.stores.rabbitmq.link import Link

LONGEST_PAUSE = 3.0
"""Seconds between two attempts to connect: shorter than a publish waits, which then says why."""
_RECHECK_SECONDS = 1.0
"""Seconds to read confirms that arrived while this process stood still."""


def james_properties(headers: Mapping[str, Any], timestamp: datetime | None) -> BasicProperties:
    """The properties with which James publishes; `headers` come on top of its own."""
    return BasicProperties(
        content_type="text/plain",
        delivery_mode=2,
        priority=0,
        timestamp=int(timestamp.timestamp()) if timestamp else None,
        headers={HEADER_DEAD_LETTER_ROUTING_KEY: "", **headers},
    )


@dataclass(slots=True)
class _Pending:
    """One publish without its confirm."""

    confirmed: asyncio.Future[None]
    exchange: str
    body: bytes
    tag: int
    of_link: "dict[int, _Pending]"
    """All pending publishes of its link: a tag is valid on its link only."""
    returned: str | None = None


class Publisher:
    """Connects at the first publish, and at the first one after a loss. For one event loop."""

    def __init__(self, settings: RabbitSettings) -> None:
        self._settings = settings
        self._seconds = settings.timeout.total_seconds()
        self._deadlines = Deadlines(self._seconds)
        self._broker = f"RabbitMQ at {broker_address(settings)}"
        self._link: Link | None = None
        self._opening: asyncio.Task[Link] | None = None
        self._pending: dict[int, _Pending] = {}
        self._tag = 0
        self._confirms = 0
        self._fruitless = 0
        self._trouble: MailsliceError | None = None
        self._asking = asyncio.Lock()

    async def publish(
        self,
        exchange: str,
        body: bytes,
        headers: Mapping[str, Any],
        timestamp: datetime | None,
        routing_key: str = ROUTING_KEY,
        *,
        kept_in: str | None = None,
    ) -> None:
        """Returns when the broker has confirmed it. Properties are James'; `headers` come on top.

        Raises StoreUnavailable: it was not sent, no queue took it (QueueMissing), or the outcome is
        unknown (Unconfirmed). `kept_in`: a queue that must exist after the confirm, else raises
        QueueMissing: RabbitMQ confirms a message that it drops with a queue being deleted.
        """
        properties = james_properties(headers, timestamp)
        confirms, before = self._confirms, self._link
        pending: _Pending | None = None
        try:
            with self._deadlines.within(self._seconds):
                link = self._open_link
                if link is None or link.blocked is not None:
                    link = await self._usable()
                pending = self._send(link, exchange, routing_key, body, properties)
                crash.point("publish:sent")
                await pending.confirmed
        except TimeoutError as error:
            why = self._too_late(confirms, before)
            raise why if pending is None else Unconfirmed(str(why)) from error
        finally:
            if pending is not None:
                pending.of_link.pop(pending.tag, None)
        if pending.returned is not None:
            unbound = f"exchange {exchange!r} has no queue bound"
            where = unbound if exchange else f"there is no queue {routing_key!r}"
            raise QueueMissing(f"{self._broker}: {where} ({pending.returned})")
        crash.point("publish:confirmed")
        if kept_in is not None:
            async with self._asking:
                await link.call(link.channel.queue_declare, kept_in, passive=True)

    def _too_late(self, confirms: int, before: Link | None) -> StoreUnavailable:
        """The error of a publish that timed out. It began with `confirms` and the link `before`."""
        link = self._open_link
        if link is None:
            unknown = f"{self._broker} does not answer within {self._seconds:g} s"
            return StoreUnavailable(str(self._trouble or unknown))
        if link.blocked is not None:
            why = f"blocks publishers ({link.blocked}); not confirmed within {self._seconds:g} s"
            return StoreUnavailable(f"{self._broker} {why}")
        if confirms == self._confirms and link is before:
            asyncio.get_running_loop().call_later(_RECHECK_SECONDS, self._give_up, link, confirms)
        return StoreUnavailable(
            f"{self._broker} did not confirm a message within {self._seconds:g} s"
        )

    def _give_up(self, link: Link, confirms: int) -> None:
        if confirms == self._confirms and link.blocked is None:
            link.fail(StoreUnavailable(f"{self._broker} confirmed nothing for {self._seconds:g} s"))

    def _send(
        self, link: Link, exchange: str, routing_key: str, body: bytes, properties: BasicProperties
    ) -> _Pending:
        try:
            link.channel.basic_publish(exchange, routing_key, body, properties, mandatory=True)
        except PIKA_ERRORS as error:
            raise translated(error, self._settings) from error
        self._tag += 1
        confirmed = asyncio.get_running_loop().create_future()
        pending = _Pending(confirmed, exchange, body, self._tag, self._pending)
        self._pending[self._tag] = pending
        return pending

    @property
    def usable(self) -> bool:
        """Whether there is a link now that the broker does not block."""
        return self._open_link is not None and self._open_link.blocked is None

    @property
    def _open_link(self) -> Link | None:
        return self._link if self._link is not None and self._link.is_open else None

    async def connect(self) -> None:
        """Connects now: at start-up, a bad address must raise at once."""
        if self._open_link is None:
            await self._connect_once()

    async def close(self) -> None:
        """Closes the connection. Publishes that wait for a confirm fail."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait({self._opening})
        if self._link is not None:
            await self._link.close()

    async def _usable(self) -> Link:
        """An open link that the broker does not block."""
        while True:
            link = self._open_link or await self._connect_once()
            if link.blocked is None:
                return link
            await link.unblocked()

    async def _connect_once(self) -> Link:
        """A new link. All publishes that wait for it share one attempt."""
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._open(), name="publisher-connect")
            self._opening.add_done_callback(lambda end: end.cancelled() or end.exception())
        return await asyncio.shield(self._opening)

    async def _open(self) -> Link:
        if self._fruitless:
            await asyncio.sleep(pause_seconds(self._fruitless, 0.1, LONGEST_PAUSE))
        # The first confirm resets it: a publish to a deleted exchange closes the channel, too.
        self._fruitless += 1
        try:
            link = await Link.open(self._settings)
            try:
                link.channel.add_on_return_callback(self._returned)
                await link.call(link.channel.confirm_delivery, self._confirmed)
            except BaseException:
                await link.close()
                raise
        except MailsliceError as error:
            self._trouble = error
            raise
        self._tag = 0
        link.lost.add_done_callback(self._lost)
        self._link = link
        return link

    def _confirmed(self, frame: Any) -> None:
        method = frame.method
        self._confirms += 1
        self._fruitless = 0
        tags = [method.delivery_tag]
        if method.multiple:
            tags = [tag for tag in self._pending if tag <= method.delivery_tag]
        for tag in tags:
            pending = self._pending.pop(tag, None)
            if pending is None or pending.confirmed.done():
                continue
            if isinstance(method, Basic.Nack):
                error = Unconfirmed(f"{self._broker} refused a message for {pending.exchange!r}")
                pending.confirmed.set_exception(error)
            else:
                pending.confirmed.set_result(None)

    def _returned(self, _channel: object, method: Any, _properties: object, body: bytes) -> None:
        """Matches a Basic.Return, which has no delivery tag, by exchange and body (enqueue id)."""
        for pending in self._pending.values():
            if pending.exchange == method.exchange and pending.body == body:
                pending.returned = f"{method.reply_code} {method.reply_text}"

    def _lost(self, lost: asyncio.Future[MailsliceError]) -> None:
        self._trouble = lost.result()
        unconfirmed, self._pending = self._pending, {}
        for pending in unconfirmed.values():
            if not pending.confirmed.done():
                error = Unconfirmed(f"connection lost before a confirm: {self._trouble}")
                pending.confirmed.set_exception(error)
