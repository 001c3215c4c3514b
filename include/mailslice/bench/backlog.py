"""Measures the hot path with many mails waiting: the rates of an enqueue and of a drain."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mailslice.bench.measure import Work, many, opened, peak_mib, percentiles
from mailslice.bench.own_mails import bench_mail
from mailslice.codec.blob_ids import BlobIds
from mailslice.model.settings import BlobStrategy
from mailslice.worker.enqueue.delayed_mails import Delays
from mailslice.worker.enqueue.enqueuer import Enqueuer

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from mailslice.model.mail import BlobId
    from mailslice.stores.blobs.async_store import AsyncBlobStore
    from mailslice.worker.io.context import QueueContext

_FILL_IN_FLIGHT = 256


async def measure_waiting(work: Work, waiting: int) -> dict[str, Any]:
    """Enqueues the mails, adds `waiting` mails, enqueues as many again, then drains the queue.

    The added mails share one content, under the blob ids of deduplication, and are otherwise
    enqueued as usual. A drain loads their content like any other.
    """
    async with opened(work) as bench:
        await bench.round_trip(work.warm)
        alone = await bench.enqueue(work.count, "alone-")
        once = _WriteOnce(bench.worker.context.blobs)
        filler = _filler(bench.worker.context, once)

        async def fill(number: int) -> None:
            await filler.enqueue(bench_mail(f"waiting-{number}"), bench.source)

        filled = await many(bench.cpu, waiting, _FILL_IN_FLIGHT, fill)
        beside = await bench.enqueue(work.count, "beside-")
    async with opened(work) as bench:
        drained = await bench.take(2 * work.count + waiting)
        await bench.worker.context.blobs.delete_many(sorted(once.written))
    return {
        "waiting": waiting,
        "count": work.count,
        "fill_rate": filled.rate,
        "enqueue_rate_alone": alone.rate,
        "enqueue_ms_alone": percentiles(alone.latencies),
        "enqueue_rate": beside.rate,
        "enqueue_ms": percentiles(beside.latencies),
        "drain_rate": drained.rate,
        "drain_rate_of_tenths": drained.rate_of_tenths(),
        "drain_ms": percentiles(drained.latencies),
        "drain_cpu_seconds_per_1000": drained.per_thousand(drained.cpu_seconds),
        "peak_mib": peak_mib(),
    }


def _filler(context: QueueContext, once: _WriteOnce) -> Enqueuer:
    """An enqueuer like the worker's that writes each content only once."""
    deduplicating = context.settings.blob.model_copy(
        update={"strategy": BlobStrategy.DEDUPLICATION}
    )
    blobs: Any = once
    filling = replace(context, blobs=blobs, blob_ids=BlobIds(deduplicating, context.clock))
    return Enqueuer(filling, Delays(filling))


class _WriteOnce:
    """A blob store that passes on only the first write of a key."""

    def __init__(self, blobs: AsyncBlobStore) -> None:
        self._blobs = blobs
        self.written: set[BlobId] = set()

    async def put(self, blob_id: BlobId, content: Buffer) -> None:
        if blob_id not in self.written:
            self.written.add(blob_id)
            await self._blobs.put(blob_id, content)
