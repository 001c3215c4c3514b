"""One connection with one channel, on the running asyncio loop: pika's callbacks made awaitable.

When the broker closes the channel, the link closes its connection, too. The user of the link opens
a new one, and never acks with a tag of the old one.
"""

import asyncio
import logging
from asyncio import FIRST_COMPLETED
from collections.abc import Callable
from functools import partial
from typing import Any

from pika.adapters.asyncio_connection import AsyncioConnection
from pika.channel import Channel

from mailslice.model.errors import MailsliceError, StoreUnavailable
from mailslice.model.settings import RabbitSettings
from mailslice.stores.rabbitmq.connection import PIKA_ERRORS, broker_address, parameters, translated

log = logging.getLogger(__name__)
_SPINS = 50
_LAST_WAIT = 2.0
"""Seconds to wait for the broker's part of closing the connection."""
_ONE_SEND = 16384
"""Bytes: a TLS record, and more than the frames of most publishes."""


class JoiningConnection(AsyncioConnection):  # type: ignore[misc]  # pika has no types
    """Joins frames that wait for the socket into one send: pika sends each frame alone.

    pika has no public way to do so. The pinned version puts the unsent rest of a send back first.
    """

    def _adapter_emit_data(self, data: bytes) -> None:
        transport: Any = self._transport
        unsent = transport._tx_buffers  # noqa: SLF001
        if unsent and len(unsent[-1]) + len(data) <= _ONE_SEND:
            unsent[-1] += data
            transport._tx_buffered_byte_count += len(data)  # noqa: SLF001
        else:
            transport.write(data)


class Link:
    """An open connection and its channel. `lost` gets the reason as its result when either is
    gone. `blocked`: why the broker takes no publishes, or None.
    """

    def __init__(
        self,
        settings: RabbitSettings,
        connection: AsyncioConnection,
        channel: Channel,
        lost: asyncio.Future[MailsliceError],
    ) -> None:
        self._settings = settings
        self._address = broker_address(settings)
        self.connection = connection
        self.channel = channel
        self.lost = lost
        self.blocked: str | None = None
        self._unblocked = asyncio.Event()
        self._unblocked.set()
        connection.add_on_connection_blocked_callback(self._block)
        connection.add_on_connection_unblocked_callback(self._unblock)

    @staticmethod
    async def open(settings: RabbitSettings, *, last_wait: float = _LAST_WAIT) -> "Link":
        """Connects and opens the channel.

        Raises StoreUnavailable or BadSetting naming host:port, within the time-out of the settings.
        A cancelled call waits `last_wait` seconds for the attempt to end, because pika fails when a
        handshake is cut short. A connection that the attempt opens, then or later, is closed.
        """
        attempt = asyncio.create_task(_open(settings), name="amqp-connect")
        try:
            return await asyncio.shield(attempt)
        except asyncio.CancelledError:
            attempt.add_done_callback(_close_unwanted)  # it may end after the wait below
            await asyncio.wait({attempt}, timeout=last_wait)
            if attempt.done() and not (attempt.cancelled() or attempt.exception()):
                await attempt.result().close()
            raise

    @property
    def is_open(self) -> bool:
        return bool(self.channel.is_open and not self.lost.done())

    async def call(self, method: Callable[..., object], *args: Any, **kwargs: Any) -> Any:
        """Calls a method of the channel and awaits its `callback=`. Raises StoreUnavailable."""
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            method(*args, callback=partial(_set_result, answered), **kwargs)
        except PIKA_ERRORS as error:
            raise translated(error, self._settings) from error
        seconds = self._settings.timeout.total_seconds()
        await asyncio.wait({answered, self.lost}, timeout=seconds, return_when=FIRST_COMPLETED)
        if answered.done():
            return answered.result()
        answered.cancel()
        if self.lost.done():
            raise self.lost.result()
        raise StoreUnavailable(f"RabbitMQ at {self._address} does not answer within {seconds:g} s")

    async def unblocked(self) -> None:
        """Returns when the broker takes publishes again, or the link is lost."""
        waiting: asyncio.Future[Any] = asyncio.ensure_future(self._unblocked.wait())
        either: set[asyncio.Future[Any]] = {waiting, self.lost}
        try:
            await asyncio.wait(either, return_when=FIRST_COMPLETED)
        finally:
            waiting.cancel()

    def end(self, why: MailsliceError) -> None:
        """Gives up a link whose broker is there: sets `lost` now, and closes in order."""
        _set_result(self.lost, why)
        _abandon(self.connection)

    def fail(self, why: MailsliceError) -> None:
        """Gives up a link whose broker is silent: sets `lost` now, and aborts the socket."""
        self.end(why)  # pika cleans up only a connection that was told to close
        self._abort()

    async def flushed(self) -> None:
        """Returns when the socket has taken all written bytes, or the link is lost."""
        for spin in range(10_000):
            # pika's public classes do not say what is unsent.
            transport = self.connection._transport  # noqa: SLF001
            if not self.is_open or transport is None or not transport.get_write_buffer_size():
                return
            await asyncio.sleep(0 if spin < _SPINS else 0.001)

    async def close(self) -> None:
        """Closes. Waits 2 s for a silent broker, which takes unacknowledged messages back."""
        _abandon(self.connection)
        if not self.lost.done():
            await asyncio.wait({self.lost}, timeout=_LAST_WAIT)
        if not self.connection.is_closed:
            self._abort()

    def _abort(self) -> None:
        # The only way to drop a dead socket at once.
        transport = self.connection._transport  # noqa: SLF001
        if transport is not None:
            transport.abort()

    def _block(self, _connection: object, frame: Any) -> None:
        self.blocked = str(frame.method.reason) or "no reason given"
        self._unblocked.clear()
        tags = {"action": "blocked"}
        log.warning("RabbitMQ at %s blocks publishers: %s", self._address, self.blocked, extra=tags)

    def _unblock(self, _connection: object, _frame: object) -> None:
        self.blocked = None
        self._unblocked.set()
        tags = {"action": "unblocked"}
        log.info("RabbitMQ at %s takes publishes again", self._address, extra=tags)


async def _open(settings: RabbitSettings) -> Link:
    loop = asyncio.get_running_loop()
    lost: asyncio.Future[MailsliceError] = loop.create_future()
    opened: asyncio.Future[AsyncioConnection] = loop.create_future()

    def failed(_of: object, error: BaseException) -> None:
        _set_result(lost, translated(error, settings))

    options = parameters(settings)
    # A Publisher waits until the broker unblocks it: a new connection would be blocked as well, and
    # the broker may still take what this one has written.
    options.blocked_connection_timeout = None
    try:
        JoiningConnection(options, partial(_set_result, opened), failed, failed, custom_ioloop=loop)
    except PIKA_ERRORS as error:
        raise translated(error, settings) from error
    await asyncio.wait({opened, lost}, return_when=FIRST_COMPLETED)  # pika has time-outs for it
    if lost.done():
        raise lost.result()
    connection = opened.result()
    ready: asyncio.Future[Channel] = loop.create_future()
    try:
        channel = connection.channel(on_open_callback=partial(_set_result, ready))
    except PIKA_ERRORS as error:  # it was opened and lost in one turn of the loop
        raise translated(error, settings) from error
    link = Link(settings, connection, channel, lost)
    channel.add_on_close_callback(lambda _, reason: link.end(translated(reason, settings)))
    seconds = settings.timeout.total_seconds()
    await asyncio.wait({ready, lost}, timeout=seconds, return_when=FIRST_COMPLETED)
    if ready.done():
        return link
    await link.close()
    if lost.done():
        raise lost.result()
    raise StoreUnavailable(f"RabbitMQ at {broker_address(settings)} opens no channel")


def _close_unwanted(attempt: asyncio.Task[Link]) -> None:
    if not attempt.cancelled() and attempt.exception() is None:
        _abandon(attempt.result().connection)


def _set_result(future: asyncio.Future[Any], value: object) -> None:
    if not future.done():
        future.set_result(value)


def _abandon(connection: AsyncioConnection) -> None:
    """Starts to close the connection, without waiting."""
    if not (connection.is_closing or connection.is_closed):
        connection.close()
