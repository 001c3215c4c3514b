"""Which mails are in the work queue: a census by holding every ready message on one channel, beside
its consumers, and then closing that.

Nothing is acknowledged or returned one by one: whatever ends the hold, a kill too, the broker takes
everything back. A classic queue puts it where it was and sets `redelivered`; a quorum queue puts it
at its back (reference/rabbitmq.md). The hold has a higher priority than any consumer, so that what
a consumer gives back meanwhile, and what a delay or a redrive puts in, comes here too: a message
that is not seen here while the hold lasts is with a consumer that has held it since before, or it
is in no work queue.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar
from uuid import uuid4

from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker

from mailslice.codec import message
from mailslice.model.errors import Refused, StoreUnavailable, Undecodable
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.model.names import RabbitNames
from mailslice.model.settings import Settings
from mailslice.stores.rabbitmq.connection import HEARTBEAT_SECONDS, blocking_connection, is_missing
from mailslice.stores.rabbitmq.management import Management
from mailslice.stores.rabbitmq.publishing import ready_messages

MAX_CENSUS = 100_000
"""Messages: 5 s, and 480 MB in the broker while they are held."""
MAX_CENSUS_QUORUM = 65_535
"""The greatest prefetch of AMQP; 0 is unlimited on classic queues, 2,000 on quorum queues."""
T = TypeVar("T")
_PRIORITY = 1_000_000
_DRAIN_SECONDS = 60.0
_EMPTY_READINGS = 10


class WorkHold:
    """The hold of one work queue. For one thread, which serves it every half minute at least."""

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
        """Take what is ready, until nothing is. Raises StoreUnavailable when that does not come
        about: then nothing is proved.

        On a busy queue some mail comes at every look. Then it is enough that nothing was ready at
        several looks in a row: the answer to each follows, on the same channel, what was handed out
        before it was asked for.
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
        """Keep holding, and take what is given back meanwhile."""
        end = time.monotonic() + seconds
        while (remaining := end - time.monotonic()) > 0:
            self._connection.process_data_events(time_limit=min(remaining, 0.5))

    def beside(self, work: Callable[[], T]) -> T:
        """What `work` gives, in minutes maybe: on another thread, while the hold stays alive."""
        with ThreadPoolExecutor(1) as thread:
            doing = thread.submit(work)
            while not doing.done():
                self._connection.process_data_events(time_limit=0.1)
        return doing.result()

    def elsewhere(self) -> int | None:
        """Messages that other consumers hold, by figures up to 10 s old; None: not known."""
        return self._management.unacked_elsewhere(self._name, self._tag)

    def parked(self) -> int | None:
        """Messages that are parked, back within a minute: the most there may be, None: unknown."""
        try:
            with self._connection.channel() as channel:
                ready = ready_messages(channel, self._park_queue)
        except ChannelClosedByBroker as closed:
            if not is_missing(closed):
                raise
            return 0
        # What is on its way in at-least-once dead-lettering is not ready any more; the figures tell
        # of it, late.
        figure = self._management.messages(self._park_queue)
        return None if figure is None else max(ready, figure)

    def ready(self) -> int:
        return ready_messages(self._channel, self._name)

    def begin(self, prefetch: int) -> None:
        self._channel.basic_qos(prefetch_count=prefetch)
        first: dict[str, Any] = {"x-priority": _PRIORITY}
        self._channel.basic_consume(
            self._name, self._on_message, consumer_tag=self._tag, arguments=first
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
def hold_work_queue(
    settings: Settings, queue: QueueName, management: Management
) -> Iterator[WorkHold]:
    """Hold what is ready; all goes back. Raises Refused, StoreUnavailable."""
    names = RabbitNames(queue)
    with blocking_connection(settings.rabbitmq, heartbeat=HEARTBEAT_SECONDS) as connection:
        census = WorkHold(connection.channel(), names, management)
        is_quorum = not management.keeps_order(names.work_queue)
        most = MAX_CENSUS_QUORUM if is_quorum else MAX_CENSUS
        _require_holdable(management, names.work_queue, census.ready(), most)
        census.begin(most if is_quorum else 0)
        yield census


def _require_holdable(management: Management, name: str, waiting: int, most: int) -> None:
    """Raises Refused where a census of `waiting` messages would harm mails or prove nothing."""
    limit = management.delivery_limit(name)
    if limit is not None:
        raise Refused(
            f"queue {name} is a quorum queue with delivery limit {limit}: a census counts as a "
            "delivery of each mail, and mails at the limit would be dead-lettered; "
            "`rabbitmq-queues peek` looks without touching, and `mailslice config check` shows the "
            "command that lifts the limit"
        )
    if waiting > most:
        raise Refused(f"queue {name} holds {waiting} messages: a census holds {most} at most")
    if alarms := management.alarms():
        raise Refused(
            f"the broker has an alarm ({alarms[0]}): what publishers could not send yet comes "
            "later, so a census would prove nothing"
        )
