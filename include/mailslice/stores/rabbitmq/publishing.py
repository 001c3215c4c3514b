"""One confirmed publish without an event loop: for administration, where mails are few."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pika.exceptions import NackError, UnroutableError

from mailslice.model.errors import StoreUnavailable
from mailslice.model.names import ROUTING_KEY
from mailslice.model.settings import RabbitSettings
from mailslice.stores.rabbitmq.connection import blocking_connection, broker_address
from mailslice.stores.rabbitmq.publisher import james_properties


def publish_confirmed(
    settings: RabbitSettings,
    exchange: str,
    body: bytes,
    headers: Mapping[str, Any],
    timestamp: datetime | None,
) -> None:
    """Returns when the broker has confirmed it. Properties are James'; `headers` come on top.

    Raises StoreUnavailable: refused, routed to no queue, or the connection went; an error is not "not sent".
    """
    with blocking_connection(settings) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        try:
            channel.basic_publish(
                exchange, ROUTING_KEY, body, james_properties(headers, timestamp), mandatory=True
            )
        except UnroutableError as error:
            raise StoreUnavailable(
                f"RabbitMQ at {broker_address(settings)}: exchange {exchange!r} has no queue bound"
            ) from error
        except NackError as error:
            raise StoreUnavailable(
                f"RabbitMQ at {broker_address(settings)} refused a message for exchange {exchange!r}"
            ) from error
