"""Which mails are among the dead letters: a census of ids, by holding everything on one channel and then closing it.

Classic queues keep order and content and set `redelivered`. Never nack one by one: a quorum queue would move and count each message.
"""

from __future__ import annotations

import time
from typing import Any

from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from mailslice.codec import message
from mailslice.model.errors import StoreUnavailable, Undecodable
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.model.names import RabbitNames
from mailslice.model.settings import Settings
from mailslice.stores.rabbitmq.connection import blocking_connection

_MOST = 65_535
"""The greatest prefetch AMQP can say. 0 is unlimited on classic queues, but 2,000 on quorum queues."""
_QUIET_SECONDS = 1.0


def dead_letter_ids(settings: Settings, queue: QueueName) -> set[EnqueueId]:
    """The enqueue ids on the dead letter queue; empty when there is no such queue. A message that is not a mail has no id.

    Raises StoreUnavailable when not everything could be held (another consumer, or more than 65,535 messages): no census proves nothing.
    Holds about 400 bytes a message here and 5 KB in the broker, for a few seconds.
    """
    name = RabbitNames(queue).dead_letter_queue
    with blocking_connection(settings.rabbitmq) as connection:
        try:
            channel = connection.channel()
            waiting = channel.queue_declare(name, passive=True).method
        except ChannelClosedByBroker as closed:
            if closed.reply_code == 404:
                return set()
            raise
        if waiting.message_count > _MOST:
            raise StoreUnavailable(f"queue {name} holds {waiting.message_count} messages: a census holds {_MOST} at most; redrive or drop some first")
        try:
            bodies = _hold_all(channel, name)
        except ChannelClosedByBroker as closed:
            if closed.reply_code == 403:
                raise StoreUnavailable(f"queue {name} has a consumer: its dead letters cannot be counted beside it ({closed.reply_text})") from closed
            raise
    return {found for found in map(_enqueue_id, bodies) if found is not None}


def _hold_all(channel: BlockingChannel, name: str) -> list[bytes]:
    """All bodies, unacknowledged. The caller closes the connection, which gives them back."""
    bodies: list[bytes] = []

    def keep(_channel: object, _method: object, _properties: object, body: bytes) -> None:
        bodies.append(body)

    channel.basic_qos(prefetch_count=_MOST)
    channel.basic_consume(name, keep, exclusive=True)
    quiet_since = time.monotonic()
    while time.monotonic() - quiet_since < _QUIET_SECONDS:
        held = len(bodies)
        channel.connection.process_data_events(time_limit=0.2)
        if len(bodies) != held:
            quiet_since = time.monotonic()
    left: Any = channel.queue_declare(name, passive=True).method
    if left.message_count:
        raise StoreUnavailable(f"queue {name}: {left.message_count} messages could not be held for a census")
    return bodies


def _enqueue_id(body: bytes) -> EnqueueId | None:
    try:
        return message.decode(body).enqueue_id
    except Undecodable:
        return None
