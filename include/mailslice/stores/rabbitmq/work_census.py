"""A census of the work queue: which mails it holds. A channel of its own takes every ready message,
beside the queue's consumers, and is closed at the end.

However the census ends, even by a kill, the broker takes all messages back, as after a `checkout`.
It has a higher priority than any consumer. So it also gets what consumers give back meanwhile, and
what a delay or a redrive puts in. A message that it does not get is with a consumer that took it
before the census, or in no work queue.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar
from uuid import uuid4

from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

from mailslice.codec import message
from mailslice.model.errors import Refused, StoreUnavailable, Undecodable
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.model.names import RabbitNames
from mailslice.model.settings import Settings
from mailslice.stores.rabbitmq.blocking_publisher import ready_messages
from mailslice.stores.rabbitmq.connection import HEARTBEAT_SECONDS, blocking_connection
from mailslice.stores.rabbitmq.management import Management
from mailslice.stores.rabbitmq.topology import Declarer

MAX_CENSUS = 100_000
"""Messages: 5 s, and 480 MB in the broker while they are held."""
MAX_CENSUS_QUORUM = 65_535
"""The greatest prefetch of AMQP; 0 is unlimited on classic queues, 2,000 on quorum queues."""
T = TypeVar("T")
_PRIORITY = 1_000_000
_DRAIN_SECONDS = 60.0
_EMPTY_READINGS = 10


class WorkQueueCensus:
    """The census of one work queue. For one thread, which must serve it twice a minute or more."""

    def __init__(
        self, channel: BlockingChannel, names: RabbitNames, management: Management
    ) -> None:
        self.ids: set[EnqueueId] = set()
        self.messages = 0
        self.not_mails = 0
        self._connection: BlockingConnection = channel.connection
        self._channel = channel
        self._name = names.work_queue
        self._park_queue = names.park_queue
        self._management = management
        self._tag = f"mailslice-census-{uuid4()}"

    def drain(self) -> None:
        """Takes ready messages until none is left. Raises StoreUnavailable if that does not happen.

        On a busy queue several readings in a row that show nothing ready are enough: on one
        channel, each answer follows all messages that the broker handed out before the question.
        """
        deadline = time.monotonic() + _DRAIN_SECONDS
        empty_readings = 0
        while True:
            before = self.messages
            self._connection.process_data_events(time_limit=0.2)
            if self.messages > MAX_CENSUS:
                raise StoreUnavailable(
                    f"queue {self._name}: more than {MAX_CENSUS} messages came while it was held; "
                    "all are given back, nothing is proved"
                )
            empty_readings = 0 if self.ready() else empty_readings + 1
            if empty_readings and (self.messages == before or empty_readings >= _EMPTY_READINGS):
                return
            if time.monotonic() > deadline:
                raise StoreUnavailable(
                    f"queue {self._name}: {self.ready()} messages could not be held for a census "
                    "(a single active consumer?)"
                )

    def wait(self, seconds: float) -> None:
        """Holds the messages for `seconds`, and takes what consumers give back meanwhile."""
        end = time.monotonic() + seconds
        while (remaining := end - time.monotonic()) > 0:
            self._connection.process_data_events(time_limit=min(remaining, 0.5))

    def beside(self, work: Callable[[], T]) -> T:
        """Runs `work`, for minutes maybe, on another thread, while this one serves the census."""
        with ThreadPoolExecutor(1) as thread:
            future = thread.submit(work)
            while not future.done():
                self._connection.process_data_events(time_limit=0.1)
        return future.result()

    def elsewhere(self) -> int | None:
        """Messages that other consumers hold, by figures up to 10 s old; None: unknown."""
        return self._management.unacked_elsewhere(self._name, self._tag)

    def parked(self) -> int | None:
        """The most messages that may be parked (for up to a minute); None: unknown."""
        if not Declarer(self._connection).has_queue(self._park_queue):
            return 0
        ready = ready_messages(self._channel, self._park_queue)
        # A message on its way in at-least-once dead-lettering is not ready any more. The figures
        # count it, late.
        figure = self._management.messages(self._park_queue)
        return None if figure is None else max(ready, figure)

    def ready(self) -> int:
        return ready_messages(self._channel, self._name)

    def begin(self, prefetch: int) -> None:
        self._channel.basic_qos(prefetch_count=prefetch)
        priority: dict[str, Any] = {"x-priority": _PRIORITY}
        self._channel.basic_consume(
            self._name, self._on_message, consumer_tag=self._tag, arguments=priority
        )

    def _on_message(
        self, _channel: object, _method: object, _properties: object, body: bytes
    ) -> None:
        self.messages += 1
        try:
            self.ids.add(message.decode(body).enqueue_id)
        except Undecodable:
            self.not_mails += 1
            self.ids |= message.uuids_in(body)


@contextmanager
def take_census(
    settings: Settings, queue: QueueName, management: Management
) -> Iterator[WorkQueueCensus]:
    """Holds the ready messages; all go back at the end. Raises Refused, StoreUnavailable."""
    names = RabbitNames(queue)
    with blocking_connection(settings.rabbitmq, heartbeat=HEARTBEAT_SECONDS) as connection:
        census = WorkQueueCensus(connection.channel(), names, management)
        is_quorum = not management.keeps_order(names.work_queue)
        limit = MAX_CENSUS_QUORUM if is_quorum else MAX_CENSUS
        _require_holdable(management, names.work_queue, census.ready(), limit)
        census.begin(limit if is_quorum else 0)
        yield census


def _require_holdable(management: Management, name: str, waiting: int, limit: int) -> None:
    """Raises Refused where a census of `waiting` messages would harm mails or prove nothing."""
    if (bound := management.delivery_limit(name)) is not None:
        raise Refused(
            f"queue {name} is a quorum queue with delivery limit {bound}: a census counts as a "
            "delivery of each mail, and mails at the limit would be dead-lettered; "
            "`rabbitmq-queues peek` looks without touching, and `mailslice config check` shows the "
            "command that lifts the limit"
        )
    if waiting > limit:
        raise Refused(f"queue {name} holds {waiting} messages: a census holds {limit} at most")
    if alarms := management.alarms():
        raise Refused(
            f"the broker has an alarm ({alarms[0]}): what publishers could not send yet comes "
            "later, so a census would prove nothing"
        )
