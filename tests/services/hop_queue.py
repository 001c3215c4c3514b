"""A consumer of the hop queue of a queue, like a worker of mailslice."""

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
    """Consumes the hop queue during the block. Gives expired messages back at the end."""
    stores.rabbitmq.declare_delays(queue, ())
    with blocking_connection(stores.settings.rabbitmq) as connection:
        connection.channel().basic_consume(RabbitNames(queue).hop_queue, lambda *_: None)
        over = Event()

        def answer_heartbeats() -> None:
            while not over.is_set():
                connection.process_data_events(time_limit=0.2)

        with ThreadPoolExecutor(1) as threads:  # pika allows one thread at a time
            answering = threads.submit(answer_heartbeats)
            try:
                yield
            finally:
                over.set()
                answering.result()
