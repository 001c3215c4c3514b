"""The open stores of one queue on one event loop."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from mailslice.codec.blob_ids import BlobIds
from mailslice.model.clock import Clock
from mailslice.model.errors import StoreUnavailable
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.model.names import ROUTING_KEY, RabbitNames
from mailslice.model.settings import Settings
from mailslice.stores import Stores
from mailslice.stores.blobs.async_store import AsyncBlobStore
from mailslice.stores.cassandra.session import CassandraSession
from mailslice.stores.cassandra.tables import QueueTables
from mailslice.stores.rabbitmq.publisher import Publisher
from mailslice.view.configuration import Shape
from mailslice.worker.events import EventLog, MailEvents
from mailslice.worker.io.blob_deleter import BlobDiscarder
from mailslice.worker.io.cassandra_bridge import Bridge, DeletedChecks
from mailslice.worker.io.content_loader import ContentBudget, Loader
from mailslice.worker.io.message_copy import MessageCopy
from mailslice.worker.io.statistics import WorkerStatistics, worker_name

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Tuning:
    """Constants of a worker that are not settings; in seconds, unless stated otherwise."""

    lease_check: float = 5.0
    """Between two checks for mails that need a lease (`dequeue.lease`)."""
    held_delay_level: int = 30
    """The delay level of an expired copy for which no store answers."""
    copy_before_row: float = 60.0
    """Least delay of a copy that is published before its row: the row must exist when it expires.
    """
    due_soon: float = 60.0
    """A delayed mail that is due within this time is not brought forward. It exceeds the time that
    a worker takes from reading a row to publishing its mail, plus the difference of clocks.
    """
    holds_every: float = 3.0
    """Between two reads of the holds (`hold_watch`)."""
    waiting_bytes: int = 2 * 1024 * 1024
    """Memory for copies that wait in the worker for the rest of their delay."""
    row_reads: tuple[float, ...] = (0.0, 1.5)
    """Pauses before each read of an absent row (`deleted_check`)."""
    recent_row_reads: tuple[float, ...] = (0.0, 1.5, 3.0, 6.0)
    """The same, if the row may still be written: workers of earlier releases write row and message
    in parallel, and the row may take its whole time-out.
    """


@dataclass(slots=True)
class QueueContext:
    """Connections and settings of one queue, and the counts of its worker."""

    settings: Settings
    queue: QueueName
    clock: Clock
    shape: Shape
    stores: Stores
    tables: QueueTables
    bridge: Bridge
    publisher: Publisher
    side_publisher: Publisher
    """For dead letters and reports: publishing to a missing exchange costs the connection."""
    blobs: AsyncBlobStore
    blob_ids: BlobIds
    discarder: BlobDiscarder
    enqueue_budget: ContentBudget
    loader: Loader
    tuning: Tuning = field(default_factory=Tuning)
    worker: str = field(default_factory=worker_name)
    """The identity of this worker, in its record and wherever it owns something."""
    statistics: WorkerStatistics = field(default_factory=WorkerStatistics)
    event_log: EventLog | None = None
    events: MailEvents = field(init=False)
    checks: DeletedChecks = field(init=False)

    def __post_init__(self) -> None:
        deleted, queue, rows = self.tables.deleted, self.queue, self.bridge.rows
        self.checks = DeletedChecks(
            lambda enqueue_id: rows(deleted.is_marked_future(queue, enqueue_id)),
            lambda ids: rows(deleted.are_marked_future(queue, ids)),
        )
        addresses = self.settings.log.addresses
        self.events = MailEvents(
            queue, self.worker, self.event_log, addresses=addresses, clock=self.clock
        )

    @property
    def names(self) -> RabbitNames:
        return RabbitNames(self.queue)

    async def open_table(self, table: Callable[[CassandraSession, Settings], T]) -> T:
        """One of mailslice's own tables, by its class method, in a thread: it asks Cassandra."""
        return await asyncio.to_thread(table, self.stores.cassandra, self.settings)

    async def publish(self, copy: MessageCopy, queue: str | None = None) -> None:
        """Publishes to the work queue or mailslice's `queue`; returns when the broker confirmed."""
        exchange, key = (self.names.exchange, ROUTING_KEY) if queue is None else ("", queue)
        await self.publisher.publish(exchange, copy.body, copy.headers, copy.timestamp, key)

    async def publish_dead_letter(self, copy: MessageCopy) -> None:
        """Returns when stored. Declares a deleted queue, retries once. Raises StoreUnavailable."""
        letter = (self.names.dead_letter_exchange, copy.body, copy.headers, copy.timestamp)
        queue = self.names.dead_letter_queue
        try:
            await self.side_publisher.publish(*letter, kept_in=queue)
        except StoreUnavailable:
            await asyncio.to_thread(self.stores.rabbitmq.declare_dead_letter, self.queue)
            await self.side_publisher.publish(*letter, kept_in=queue)

    async def is_marked(self, enqueue_id: EnqueueId) -> bool:
        """Whether the mail is deleted or done, at the settings' consistency."""
        return await self.checks.is_marked(enqueue_id)

    async def mark(self, enqueue_id: EnqueueId) -> None:
        await self.bridge.rows(self.tables.deleted.mark_future(self.queue, enqueue_id))
