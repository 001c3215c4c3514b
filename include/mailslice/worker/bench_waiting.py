"""The hot path with many mails waiting: does an enqueue notice them, and does a full drain keep its rate to the end?"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from mailslice.codec.blob_ids import BlobIds
from mailslice.model.mail import QueueName
from mailslice.model.settings import BlobStrategy, Settings
from mailslice.worker.bench import (
    bench_mail,
    many,
    peak_mib,
    percentiles,
    source_of,
    take,
    there_and_back,
)
from mailslice.worker.delays import Delays
from mailslice.worker.enqueuer import Enqueuer
from mailslice.worker.queue_worker import open_worker
from mailslice.worker.store_cpu import StoreCpu

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from mailslice.model.mail import BlobId
    from mailslice.stores.blobs.hot import HotBlobs
    from mailslice.worker.wiring import Wiring

_FILL_IN_FLIGHT = 256


async def measure_waiting(
    settings: Settings,
    queue: QueueName,
    *,
    waiting: int,
    count: int,
    size: int,
    in_flight: int,
    warm: int = 1,
) -> dict[str, Any]:
    """`count` mails of `size` bytes enqueued alone, `waiting` more put before the consumer, `count` enqueued again; then all are drained.

    Before that, `warm` mails go there and back. What only waits is enqueued for real but for its content, which is one for all, under the ids that
    deduplication gives: a drain loads it like any other. The queue must be empty and not used by others.
    """
    cpu = StoreCpu(settings)
    with source_of(size) as source:
        async with open_worker(settings, queue) as worker:
            await there_and_back(worker, cpu, source, warm, in_flight)
            alone = await many(
                cpu,
                count,
                in_flight,
                lambda number: worker.enqueue(bench_mail(f"alone-{number}"), source),
            )
            once = _Once(worker.wiring.blobs)
            filler = _filler(worker.wiring, once)
            filled = await many(
                cpu,
                waiting,
                _FILL_IN_FLIGHT,
                lambda number: filler.enqueue(bench_mail(f"waiting-{number}"), source),
            )
            beside = await many(
                cpu,
                count,
                in_flight,
                lambda number: worker.enqueue(bench_mail(f"beside-{number}"), source),
            )
        async with open_worker(settings, queue) as worker:
            drained = await take(worker, cpu, 2 * count + waiting, in_flight)
            await worker.wiring.blobs.delete_many(sorted(once.written))
    return {
        "waiting": waiting,
        "count": count,
        "fill_rate": filled.rate,
        "enqueue_rate_alone": alone.rate,
        "enqueue_ms_alone": asdict(percentiles(alone.latencies)),
        "enqueue_rate": beside.rate,
        "enqueue_ms": asdict(percentiles(beside.latencies)),
        "drain_rate": drained.rate,
        "drain_rate_of_tenths": drained.rate_of_parts(),
        "drain_ms": asdict(percentiles(drained.latencies)),
        "drain_cpu_seconds_per_1000": drained.per_thousand(drained.cpu_seconds),
        "peak_mib": peak_mib(),
    }


def _filler(wiring: Wiring, once: _Once) -> Enqueuer:
    """Enqueues as the worker does, its contents written once."""
    deduplicating = BlobIds(
        wiring.settings.blob.model_copy(update={"strategy": BlobStrategy.DEDUPLICATION}),
        wiring.clock,
    )
    blobs: Any = once
    filling = replace(wiring, blobs=blobs, blob_ids=deduplicating)
    return Enqueuer(filling, Delays(filling))


class _Once:
    """The bucket, for the first write of a key."""

    def __init__(self, blobs: HotBlobs) -> None:
        self._blobs = blobs
        self.written: set[BlobId] = set()

    async def put(self, blob_id: BlobId, content: Buffer) -> None:
        if blob_id not in self.written:
            self.written.add(blob_id)
            await self._blobs.put(blob_id, content)
