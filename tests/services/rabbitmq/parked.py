"""A message that is parked, as a worker parks it."""

import time

from mailslice.model.mail import QueueName
from mailslice.model.names import RabbitNames
from mailslice.stores import Stores
from mailslice.stores.rabbitmq.connection import blocking_connection


def parked(stores: Stores, queue: QueueName, body: bytes = b"{}") -> None:
    """Returns once RabbitMQ's figures tell of it: they come late."""
    stores.rabbitmq.declare_delays(queue, [])
    with blocking_connection(stores.settings.rabbitmq) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", RabbitNames(queue).park_queue, body, mandatory=True)
    figures(stores, queue, 1)


def figures(stores: Stores, queue: QueueName, count: int) -> None:
    """Wait until they say that so many are parked."""
    deadline = time.monotonic() + 60
    while stores.management.messages(RabbitNames(queue).park_queue) != count:
        assert time.monotonic() < deadline
        time.sleep(0.5)
