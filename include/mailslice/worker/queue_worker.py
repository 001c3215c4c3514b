"""A queue, open for work: enqueue, deliveries, flush."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import chain
from pathlib import Path

from mailslice.admin.queues import require
from mailslice.codec.blob_ids import BlobIds
from mailslice.model.clock import Clock, system_clock
from mailslice.model.durations import format_duration
from mailslice.model.errors import BadInput, BadSetting
from mailslice.model.mail import Mail, QueuedMail, QueueName
from mailslice.model.names import queue_name
from mailslice.model.settings import Settings
from mailslice.stores import Stores, open_stores
from mailslice.stores.blobs.async_store import AsyncBlobStore
from mailslice.stores.rabbitmq.publisher import Publisher
from mailslice.view.configuration import ConfigurationGuard, Shape, view_shape
from mailslice.view.sharing import agree
from mailslice.worker.dequeue.delivery import WorkerState
from mailslice.worker.dequeue.dequeuer import Deliveries
from mailslice.worker.dequeue.in_doubt import InDoubt
from mailslice.worker.enqueue.bounce_reports import Reporter
from mailslice.worker.enqueue.delayed_mails import Delays
from mailslice.worker.enqueue.enqueuer import Enqueuer
from mailslice.worker.events import EventLog
from mailslice.worker.heartbeat import Recorder
from mailslice.worker.io.blob_deleter import BlobDiscarder
from mailslice.worker.io.cassandra_bridge import Bridge
from mailslice.worker.io.content_loader import ContentBudget, Loader, return_large_blocks
from mailslice.worker.io.context import QueueContext, Tuning
from mailslice.worker.io.destination_throttle import DestinationThrottle
from mailslice.worker.io.hold_watch import HoldWatch
from mailslice.worker.stages.stage_log import Stages
from mailslice.worker.validation import MAX_PREFETCH, check_count, check_span

_MIB = 1024 * 1024


class QueueWorker:
    """One queue on one event loop. Any number of concurrent calls."""

    def __init__(self, state: WorkerState) -> None:
        self.state = state
        self.context = state.context
        self._enqueuer = Enqueuer(self.context, state.delays)
        self._open_deliveries: set[Deliveries] = set()
        """Deliveries that are not disconnected yet."""
        self._watching: asyncio.Task[None] | None = None
        self._recorder = Recorder(
            state, lambda: chain(*(opened.received() for opened in self._open_deliveries))
        )

    @property
    def queue(self) -> QueueName:
        return self.context.queue

    async def enqueue(
        self, mail: Mail, content: bytes | Path, *, delay: timedelta | None = None
    ) -> QueuedMail:
        """Returns when the mail is durable (`SyncQueue.enqueue` says more)."""
        return await self._enqueuer.enqueue(mail, content, delay)

    def deliveries(
        self, prefetch: int = 16, *, give_up_after: timedelta | None = None
    ) -> Deliveries:
        """An async iterator of `Delivery`; up to `prefetch` (1 to 65,535) are fetched ahead.

        Connects at the first `anext`. Reconnects with back-off whenever a store goes away, until
        that has lasted for `give_up_after`. Raises BadInput for a prefetch that is not allowed.
        """
        check_count("prefetch", prefetch, MAX_PREFETCH)
        check_span("give_up_after", give_up_after)
        deliveries = Deliveries(
            self.state, prefetch, give_up_after, on_disconnected=self._open_deliveries.discard
        )
        self._open_deliveries.add(deliveries)
        self._recorder.start()
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch(), name="leases")
        return deliveries

    @property
    def reaches_cassandra(self) -> bool:
        """Whether a node of Cassandra is connected."""
        return bool(self.context.stores.cassandra.connected())

    @property
    def reaches_rabbitmq(self) -> bool:
        """Whether the broker takes mails that are enqueued now."""
        return self.context.publisher.usable

    async def _watch(self) -> None:
        """Extends leases: no message in a handler stays unacknowledged for long."""
        while True:
            await asyncio.sleep(self.context.tuning.lease_check)
            for delivery in list(self.state.in_hand.values()):
                delivery.extend_when_due()

    async def flush(self) -> int:
        """Delivers every delayed mail now; how many there were. Raises StoreUnavailable, and
        Refused if another flush or retry of the queue goes on for a minute: call it again.
        """
        return await self.state.delays.flush()

    async def settle(self) -> None:
        """Waits until the blobs of completed mails are deleted, too."""
        await self.context.discarder.close()

    async def close(self) -> None:
        """Gives back unsettled mails (leased ones when the lease ends), deletes blobs, closes."""
        for deliveries in [*self._open_deliveries]:
            await deliveries.disconnect()
        if self._watching is not None:
            self._watching.cancel()
        state = self.state
        for part in (state.holds, self._recorder, self._enqueuer, state.throttle, state.reporter):
            if part is not None:
                await part.close()
        await self.context.discarder.close()
        await self.context.side_publisher.close()
        self.context.blobs.close()
        await self.context.publisher.close()


@asynccontextmanager
async def open_worker(
    settings: Settings,
    queue: str,
    *,
    clock: Clock = system_clock,
    tuning: Tuning | None = None,
    event_log: EventLog | None = None,
) -> AsyncIterator[QueueWorker]:
    """Opens the stores for one queue, checks what James checks at start-up, and closes them.

    Mail events go to `event_log`; nowhere without one. Creates a missing bucket and stored
    configuration, as James does. Raises UnknownQueue, ClockSkew, ConfigurationDiffers, BadSetting,
    and StoreUnavailable with the address, each within 15 s.
    """
    name = queue_name(queue)
    stores = open_stores(settings)
    try:
        opening = worker_of(stores, name, clock=clock, tuning=tuning, event_log=event_log)
        async with opening as worker:
            yield worker
    finally:
        await asyncio.to_thread(stores.close)


@asynccontextmanager
async def worker_of(
    stores: Stores,
    queue: QueueName,
    *,
    clock: Clock = system_clock,
    tuning: Tuning | None = None,
    event_log: EventLog | None = None,
) -> AsyncIterator[QueueWorker]:
    """As `open_worker`, on open stores, which stay open: several workers may share them."""
    return_large_blocks()
    blobs = AsyncBlobStore(stores.settings.s3, stores.settings.s3.bucket)
    view = await asyncio.to_thread(_prepare_stores, stores, queue, clock)
    if not await blobs.bucket_exists():
        # boto3 is imported only for this, and in the thread.
        await asyncio.to_thread(lambda: stores.blobs.ensure_bucket())  # noqa: PLW0108
    settings = stores.settings
    # Two budgets of half the size: a handler that has a content and enqueues must not wait for
    # itself.
    half = settings.worker.memory_budget_mib * _MIB // 2
    context = QueueContext(
        settings=settings,
        queue=queue,
        clock=clock,
        shape=view,
        stores=stores,
        tables=stores.tables,
        bridge=Bridge(stores.cassandra),
        publisher=Publisher(settings.rabbitmq),
        side_publisher=Publisher(settings.rabbitmq),
        blobs=blobs,
        blob_ids=BlobIds(settings.blob, clock),
        discarder=BlobDiscarder(blobs),
        enqueue_budget=ContentBudget(half),
        loader=Loader(blobs, ContentBudget(half)),
        tuning=tuning or Tuning(),
        event_log=event_log,
    )
    state = WorkerState(context, Delays(context), holds=HoldWatch(context))
    if settings.worker.bounce_queue is not None:
        state.reporter = Reporter(context, queue_name(settings.worker.bounce_queue))
    if queue in settings.queue.stage_marks:
        state.in_doubt = InDoubt(context, Stages(context), state.reporter)
    if settings.relay.limits:
        state.throttle = DestinationThrottle(context, settings.relay.limits)
    worker = QueueWorker(state)
    try:
        yield worker
    finally:
        await worker.close()


def _prepare_stores(stores: Stores, queue: QueueName, clock: Clock) -> Shape:
    """Checks clock and queue; declares its dead letter queue (James 3.5 does not). The shape."""
    require(stores, queue)
    grace = stores.settings.duty.grace
    allowed = max(grace / 4, timedelta(seconds=5))
    rule = f"a quarter of MAILSLICE_DUTY_GRACE={format_duration(grace)}, 5s at least"
    remedy = f"allowed are {format_duration(allowed)} ({rule}): set the clocks right (NTP)"
    stores.cassandra.require_clock(clock, allowed, remedy, share=0.5)
    stores.rabbitmq.declare_dead_letter(queue)
    ConfigurationGuard(stores.tables, stores.settings).ensure()
    agree(stores, queue)
    view = view_shape(stores)
    for table in stores.tables.existing:
        table.prepare()
    stores.tables.deleted.prepare()
    _prepare_stages(stores, queue)
    return view


def _prepare_stages(stores: Stores, queue: QueueName) -> None:
    """Checks and prepares what stage marks and reports need. It waits: not on the loop."""
    settings = stores.settings
    if settings.worker.bounce_queue is not None:
        try:
            require(stores, queue_name(settings.worker.bounce_queue))
        except BadInput as error:
            raise BadSetting(f"MAILSLICE_WORKER_BOUNCE_QUEUE: {error}") from error
    if queue not in settings.queue.stage_marks:
        return
    if not settings.worker.record_every:
        raise BadSetting(
            f"MAILSLICE_WORKER_RECORD_EVERY=0s ({settings.where('MAILSLICE_WORKER_RECORD_EVERY')})"
            f": allowed is more than that, for MAILSLICE_QUEUE_STAGE_MARKS names queue {queue!r}: "
            "stage marks need to know which workers live"
        )
    stores.own.mail_stages.prepare()
