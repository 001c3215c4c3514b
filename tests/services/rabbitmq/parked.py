"""Parks messages as a worker does."""

import time

from mailslice.model.mail import QueueName
from mailslice.model.names import RabbitNames
from mailslice.stores import Stores
from mailslice.stores.rabbitmq.connection import blocking_connection


def parked(stores: Stores, queue: QueueName, body: bytes = b"{}") -> None:
    """Parks a message. Waits until RabbitMQ's figures, which are late, include it."""
    stores.rabbitmq.declare_delays(queue, [])
    with blocking_connection(stores.settings.rabbitmq) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", RabbitNames(queue).park_queue, body, mandatory=True)
    figures(stores, queue, 1)


def figures(stores: Stores, queue: QueueName, count: int) -> None:
    """Waits until RabbitMQ's figures show `count` parked messages."""
    deadline = time.monotonic() + 60
    while stores.management.messages(RabbitNames(queue).park_queue) != count:
        assert time.monotonic() < deadline
        time.sleep(0.5)
