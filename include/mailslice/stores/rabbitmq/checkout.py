"""Reads a RabbitMQ queue by checking its messages out on one channel.

Messages that are not acknowledged go back when the channel closes, also after a kill: into their
old order on a classic queue. A quorum queue appends them and counts each return: with a delivery
limit it is refused. Never nack one by one.

Messages come a window at a time: a consumer is cancelled once it has its prefetch count, and
another follows on the same channel. Else pika would read a whole queue into memory.
"""

import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from mailslice.codec import message as codec
from mailslice.codec.headers import moment
from mailslice.model.dead_letters import MAX_CHECKED_OUT
from mailslice.model.errors import Refused, StoreUnavailable, Undecodable
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.model.names import RabbitNames
from mailslice.model.settings import RabbitSettings, Settings
from mailslice.stores.rabbitmq.blocking_publisher import publish_on, ready_messages
from mailslice.stores.rabbitmq.connection import blocking_connection, is_missing
from mailslice.stores.rabbitmq.management import Management
from mailslice.stores.rabbitmq.publisher import james_properties
from mailslice.stores.rabbitmq.topology import Declarer

_PATIENCE = 10.0
_DEAF_SECONDS, _SOON, _QUORUM_QUIET = 1.0, 0.1, 1.0
_IN_USE = 403


class Windows(NamedTuple):
    """Messages of a window. After the first window the average size of messages is known."""

    first: int = 50
    least: int = 10
    largest: int = 5000
    content: int = 16 * 2**20
    """Bytes of a window."""


_WINDOWS = Windows()


@dataclass(frozen=True, slots=True)
class CheckedOutMessage:
    """One message. `tag` is valid on the channel of its checkout only."""

    tag: int
    body: bytes
    headers: Mapping[str, Any]
    timestamp: datetime | None


@dataclass(slots=True, eq=False, repr=False)
class Checkout:
    """Messages of one queue that are checked out. For one thread."""

    channel: BlockingChannel
    name: str
    limit: int
    windows: Windows
    quiet: float = 0.0
    _consumer: str = field(default="", init=False)
    _window: int = field(default=0, init=False)
    _first_tag: int = field(default=1, init=False)
    _unsettled: int = field(default=0, init=False)
    _acked: bool = field(default=False, init=False)
    _received: int = field(default=0, init=False)
    _bytes: int = field(default=0, init=False)
    _arrived: deque[CheckedOutMessage] = field(default_factory=deque, init=False)
    _publishing: BlockingChannel | None = field(default=None, init=False)
    _listened: float = field(default_factory=time.monotonic, init=False)

    def messages(
        self, limit: int = MAX_CHECKED_OUT, *, patience: float = _PATIENCE
    ) -> Iterator[CheckedOutMessage]:
        """At most `limit` messages, from the head on. Ends when none is ready; on a quorum queue
        only if none has come for a second, either.

        Messages that arrive meanwhile may be among them. Raises StoreUnavailable when a message is
        ready and none comes for `patience` seconds.
        """
        count = 0
        while count < limit:
            if not self._arrived and not self._wait_for_message(patience):
                return
            if time.monotonic() - self._listened > _DEAF_SECONDS:
                self._listen(0)
            count += 1
            yield self._arrived.popleft()

    def _wait_for_message(self, patience: float) -> bool:
        since = time.monotonic()
        while not self._arrived and self._received < self.limit:
            if self._unsettled >= self._window:
                self._next_window()
            self._listen(_SOON)
            waited = time.monotonic() - since
            if self._arrived or waited < self.quiet:
                continue
            # The second answer comes after all messages that were handed out before the first.
            if not (self.ready_count() or self.ready_count()):
                self._listen(min(_SOON, self.quiet))
                break
            if waited > patience:
                raise StoreUnavailable(f"queue {self.name}: RabbitMQ does not hand messages out")
        return bool(self._arrived)

    def ready_count(self) -> int:
        """How many messages are still ready in the queue, so not checked out."""
        return ready_messages(self.channel, self.name)

    def ack(self, message: CheckedOutMessage) -> None:
        """Acknowledges the message. The ack is certain once `check_out` ended without an error."""
        self.channel.basic_ack(message.tag)
        self._acked = True
        if message.tag >= self._first_tag:
            self._unsettled -= 1

    def require_acks_taken(self) -> None:
        """Makes sure that the broker took the acks. They get no answer; a later method gets one."""
        if self._acked:
            self.channel.basic_qos(prefetch_count=self._window)

    def publish(
        self, exchange: str, body: bytes, headers: Mapping[str, Any], timestamp: datetime | None
    ) -> None:
        """Returns when the broker has confirmed it. Properties are James'; `headers` come on top.

        Raises StoreUnavailable when the broker refused it or routed it to no queue. After an error
        it may have been sent. It uses the checkout's connection: a broker in alarm then delays the
        acks, too, but they come after the publishes anyway.
        """
        if self._publishing is None:
            self._publishing = self.channel.connection.channel()
            self._publishing.confirm_delivery()
        publish_on(self._publishing, exchange, body, james_properties(headers, timestamp))

    def sleep(self, seconds: float) -> None:
        """Waits, and serves the connection meanwhile."""
        self.channel.connection.sleep(max(0.0, seconds))

    def _listen(self, seconds: float) -> None:
        """Reads what the broker has sent, heartbeats too."""
        self.channel.connection.process_data_events(time_limit=seconds)
        self._listened = time.monotonic()

    def consume(self) -> None:
        """Starts a consumer for the next window of messages."""
        self._window = min(self.limit - self._received, self._fitting())
        self.channel.basic_qos(prefetch_count=self._window)
        self._consumer = self.channel.basic_consume(self.name, self._arrive, exclusive=True)

    def _fitting(self) -> int:
        """How many messages fit into a window, by the average size of those that came."""
        first, least, largest, content = self.windows
        if not self._received:
            return first
        return max(least, min(largest, content * self._received // max(1, self._bytes)))

    def _next_window(self) -> None:
        """Replaces the consumer, which has got its window. The channel keeps the messages."""
        self.channel.basic_cancel(self._consumer)
        self._first_tag, self._unsettled = self._received + 1, 0
        try:
            self.consume()
        except ChannelClosedByBroker as closed:
            if closed.reply_code != _IN_USE and not is_missing(closed):
                raise
            raise StoreUnavailable(
                f"queue {self.name} was taken or deleted while it was looked through "
                f"({closed.reply_text})"
            ) from closed

    def _arrive(self, _channel: object, method: Any, properties: Any, body: bytes) -> None:
        self._received += 1
        self._unsettled += 1
        self._bytes += len(body)
        headers, published = properties.headers or {}, moment(properties.timestamp)
        self._arrived.append(CheckedOutMessage(method.delivery_tag, body, headers, published))


@contextmanager
def check_out(
    settings: RabbitSettings,
    name: str,
    limit: int = MAX_CHECKED_OUT,
    *,
    patience: float = _PATIENCE,
    windows: Windows = _WINDOWS,
) -> Iterator[Checkout | None]:
    """Checks out up to `limit` messages of the queue `name`; gives None if there is no such queue.

    Messages without an ack go back at the end. Costs the broker 5 KB a message meanwhile. Raises
    StoreUnavailable when another consumer has the queue for `patience` seconds, and at the end when
    it is unknown whether the broker took the acks. Raises Refused for a quorum queue with a
    delivery limit, which each checkout would use up, and BadSetting if the limit cannot be known.
    """
    with blocking_connection(settings) as connection:
        if not Declarer(connection).has_queue(name):
            yield None
            return
        management = Management(settings)
        if (bound := management.delivery_limit(name)) is not None:
            raise Refused(
                f"queue {name} is a quorum queue with delivery limit {bound}: each look through it "
                "counts as a delivery, and past the limit its messages are dropped; "
                "`mailslice config check` shows the command that lifts the limit"
            )
        # A quorum queue's leader counts messages as handed out before its follower sends them.
        quiet = 0.0 if management.keeps_order(name) else _QUORUM_QUIET
        deadline = time.monotonic() + patience
        while True:
            try:
                limit = min(limit, MAX_CHECKED_OUT)
                checkout = Checkout(connection.channel(), name, limit, windows, quiet)
                checkout.consume()
                break
            except ChannelClosedByBroker as closed:
                if closed.reply_code != _IN_USE or "refused for user" in closed.reply_text:
                    raise  # 403 means that another consumer has it, or that we lack the right
                if time.monotonic() > deadline:
                    raise StoreUnavailable(
                        f"queue {name} has a consumer: it cannot be looked through beside it "
                        f"({closed.reply_text})"
                    ) from closed
            connection.sleep(0.5)
        yield checkout
        checkout.require_acks_taken()


def dead_letter_ids(settings: Settings, queue: QueueName) -> set[EnqueueId]:
    """The enqueue ids on the dead letter queue, if there is one. Raises as `dead_letters`."""
    ids: set[EnqueueId] = set()
    for body in dead_letters(settings, queue):
        try:
            ids.add(codec.decode(body).enqueue_id)
        except Undecodable:
            ids |= codec.uuids_in(body)
    return ids


def dead_letters(settings: Settings, queue: QueueName) -> Iterator[bytes]:
    """The bodies of all messages on the dead letter queue, if there is one. Read it to the end.

    The messages stay there. Raises StoreUnavailable, after the last one, when not all could be
    checked out (another consumer, or more than MAX_CHECKED_OUT): half a census proves nothing.
    """
    name = RabbitNames(queue).dead_letter_queue
    with check_out(settings.rabbitmq, name, patience=2.0) as checkout:
        if checkout is None:
            return
        for message in checkout.messages():
            yield message.body
        if remaining := checkout.ready_count():
            raise StoreUnavailable(
                f"queue {name}: {remaining} messages could not be held for a census, "
                f"which holds {MAX_CHECKED_OUT} at most; redrive or drop some first"
            )
