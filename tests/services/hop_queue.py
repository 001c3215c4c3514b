"""Somebody consumes the hop queue of a queue, as a worker of mailslice does."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

from mailslice.model.mail import QueueName
from mailslice.model.names import RabbitNames
from mailslice.stores import Stores
from mailslice.stores.rabbitmq.connection import blocking_connection


@contextmanager
def consumed(stores: Stores, queue: QueueName) -> Iterator[None]:
    """What expires meanwhile is given back at the end."""
    stores.rabbitmq.declare_delays(queue, ())
    with blocking_connection(stores.settings.rabbitmq) as connection:
        connection.channel().basic_consume(RabbitNames(queue).hop_queue, lambda *_: None)
        over = Event()

        def answer_heartbeats() -> None:
            while not over.is_set():
                connection.process_data_events(time_limit=0.2)

        with ThreadPoolExecutor(1) as threads:  # pika's connection is one thread's at a time
            answering = threads.submit(answer_heartbeats)
            try:
                yield
            finally:
                over.set()
                answering.result()
