"""Blocking publishes and look-ups for administration, which has few mails: no event loop."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import NackError, UnroutableError

from mailslice.model.errors import StoreUnavailable
from mailslice.model.names import ROUTING_KEY
from mailslice.model.settings import RabbitSettings
from mailslice.stores.rabbitmq.connection import blocking_connection, broker_address
from mailslice.stores.rabbitmq.publisher import james_properties


def publish_on(
    channel: BlockingChannel,
    exchange: str,
    body: bytes,
    properties: BasicProperties,
    broker: str = "RabbitMQ",
    *,
    routing_key: str = ROUTING_KEY,
) -> None:
    """As `publish_confirmed`, on a channel with confirms; `broker` is for messages."""
    where = f"exchange {exchange!r}" if exchange else f"queue {routing_key!r}"
    try:
        channel.basic_publish(exchange, routing_key, body, properties, mandatory=True)
    except UnroutableError as error:
        raise StoreUnavailable(f"{broker}: {where} has no queue bound") from error
    except NackError as error:
        raise StoreUnavailable(f"{broker} refused a message for {where}") from error


def publish_confirmed(
    settings: RabbitSettings,
    exchange: str,
    body: bytes,
    headers: Mapping[str, Any],
    timestamp: datetime | None,
    *,
    routing_key: str = ROUTING_KEY,
) -> None:
    """Returns when confirmed. StoreUnavailable: maybe sent. Exchange "" is queue `routing_key`."""
    with blocking_connection(settings) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        broker = f"RabbitMQ at {broker_address(settings)}"
        properties = james_properties(headers, timestamp)
        publish_on(channel, exchange, body, properties, broker, routing_key=routing_key)


def ready_messages(channel: BlockingChannel, queue: str) -> int:
    """How many messages of a RabbitMQ queue are ready now. Raises ChannelClosedByBroker (404)."""
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def has_consumers(settings: RabbitSettings, queue: str) -> bool:
    """Whether a RabbitMQ queue has a consumer now. Raises QueueMissing."""
    with blocking_connection(settings) as connection:
        declared = connection.channel().queue_declare(queue, passive=True)
        return int(declared.method.consumer_count) > 0
