"""How fast blobs are collected: James' tables and two buckets of the benchmark's own, filled, and both phases run over them; beside it S3's own limits."""

from __future__ import annotations

import asyncio
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mailslice.cli.bench_inserts import insert_all
from mailslice.cli.bench_spark import peak_memory
from mailslice.cli.door import who
from mailslice.model.clock import system_clock
from mailslice.model.mail import BlobId

if TYPE_CHECKING:
    from mailslice.model.settings import Settings
    from mailslice.stores import Stores

Say = Callable[[str], None]
KEYSPACE = "mailslice_bench_blobs"
_BUCKET = "mailslice-bench-blobs"
_CONTENT = b"a blob of mailslice bench\r\n" * 8
_AT_ONCE = 5000
_ORPHAN_ONE_IN = 4
_OLD_ENOUGH_S = 3.0
"""Past the grace of a second, and S3's whole seconds."""
_LIMIT = 2000
"""Objects by which S3's own limits are measured."""


def measure_blobs(
    settings: Settings, *, blobs: int, references: int, keep: bool, say: Say
) -> dict[str, Any]:
    """Fill, a run that records candidates (and starts Spark), and one that deletes them. Rates a second, times in seconds, memory in MiB."""
    with _place(settings) as stores:
        say(f"{blobs} blobs and {references} references: putting and inserting")
        begun = time.perf_counter()
        keys = _fill(stores, blobs, references)
        orphans = len(keys[::_ORPHAN_ONE_IN])
        filled = time.perf_counter() - begun
        say("what S3 can do")
        limits = _limits(stores)
        time.sleep(_OLD_ENOUGH_S)
        with peak_memory(settings) as peak:
            say("the run that records candidates")
            first = _run(stores.settings, keep=keep)
            say("the run that deletes them")
            second = _run(stores.settings, keep=keep)
        found = (
            first["candidates"],
            first["references"],
            first["blobCount"],
            second["gcedBlobCount"],
            second["errorCount"],
        )
        if found != (orphans, references, blobs, orphans, 0):
            raise RuntimeError(
                f"{blobs} blobs, {orphans} orphans, {references} references were planted; the runs found {found}: {second['message']}"
            )
        say("removing what is left")
        _remove(stores, keys)
    planned, deleting = second["spent"], second["spent"]["deleting"]
    limit = 1 / (
        (1 / limits["copies_per_second"] if keep else 0)
        + 1 / limits["heads_per_second"]
        + 1 / limits["deletes_per_second"]
    )
    return {
        "blobs": blobs,
        "references": references,
        "orphans": orphans,
        "keep": keep,
        "fill_rate": round((blobs + references) / filled),
        "step_seconds": [first["seconds"], second["seconds"]],
        "listed_blobs_per_second": _rate(blobs, planned["listing"]),
        "references_per_second": _rate(references, planned["references"]),
        "join_seconds": planned["join"],
        "deleted_keys_per_second": _rate(orphans, deleting),
        "s3_limits": {**limits, "keys_per_second": round(limit)},
        "deleted_share_of_limit": round(orphans / deleting / limit, 2) if deleting else None,
        **peak.as_json(),
    }


@contextmanager
def _place(settings: Settings) -> Iterator[Stores]:
    """Two keyspaces, two buckets and an artifacts folder that nobody else uses, removed afterwards."""
    from mailslice.stores import open_stores

    with tempfile.TemporaryDirectory(prefix="mailslice-bench-") as folder:
        changed = {
            "cassandra": settings.cassandra.model_copy(update={"keyspace": KEYSPACE}),
            "own": settings.own.model_copy(
                update={"keyspace": f"{KEYSPACE}_own", "bucket": f"{_BUCKET}-own"}
            ),
            "s3": settings.s3.model_copy(update={"bucket": _BUCKET}),
            "duty": settings.duty.model_copy(update={"artifacts": folder}),
            "gc": settings.gc.model_copy(
                update={
                    "absent_sources": (
                        "enqueuedMailsV3",
                        "enqueuedMailsV4",
                        "attachmentV2",
                        "mailRepositoryContentV2",
                    ),
                    "sources": "",
                }
            ),
        }
        with open_stores(settings.model_copy(update=changed)) as stores:
            _drop(stores)
            stores.cassandra.execute(
                f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
            )
            try:
                stores.cassandra.execute(
                    f"CREATE TABLE {KEYSPACE}.messagev3 (messageid timeuuid PRIMARY KEY, headercontent text, bodycontent text)"
                )
                stores.blobs.ensure_bucket()
                stores.own_blobs.ensure_bucket()
                yield stores
            finally:
                _drop(stores)


def _drop(stores: Stores) -> None:
    for keyspace in (KEYSPACE, f"{KEYSPACE}_own"):
        stores.cassandra.execute(f"DROP KEYSPACE IF EXISTS {keyspace}")
    for bucket in (stores.blobs, stores.own_blobs):
        if bucket.bucket_exists():
            bucket.delete_many([blob.key for blob in bucket.list()])
            bucket.client.delete_bucket(Bucket=bucket.bucket)


def _key(number: int) -> BlobId:
    """A random id in James' form for servers that keep files, MinIO's: a server like the local one walks all files of a folder for each page of it."""
    text = str(uuid.uuid4())
    return BlobId(f"1/{600 + number % 8}/{text[0]}/{text[1:3]}/{text[3:]}")


def _fill(stores: Stores, blobs: int, references: int) -> list[BlobId]:
    """Put blobs of old generations; every fourth is an orphan, the others are referred to over and over. Gives the keys."""
    keys = [_key(number) for number in range(blobs)]
    asyncio.run(_put(stores, keys))
    orphans = set(keys[::_ORPHAN_ONE_IN])
    referred = [key for key in keys if key not in orphans] or [BlobId("none")]
    pairs = (
        (2 * number, 2 * number + 1 if 2 * number + 1 < references else None)
        for number in range(-(-references // 2))
    )
    rows = (
        [
            uuid.uuid1(),
            referred[one % len(referred)],
            None if two is None else referred[two % len(referred)],
        ]
        for one, two in pairs
    )
    insert_all(
        stores.cassandra,
        f"INSERT INTO {KEYSPACE}.messagev3 (messageid, headercontent, bodycontent) VALUES (?, ?, ?)",
        rows,
    )
    return keys


def _remove(stores: Stores, keys: list[BlobId]) -> None:
    """Delete by name what this benchmark has put, and the copies of it: a listing of it all costs more than the runs on a server that keeps files."""
    from mailslice.duties.blob_gc.kept import KeptBlobs

    with KeptBlobs(stores.settings) as kept:
        for folder in list(kept.folders()):
            kept.own.delete([BlobId(f"{folder}{key}") for key in keys[::_ORPHAN_ONE_IN]])
        kept.james.delete([key for number, key in enumerate(keys) if number % _ORPHAN_ONE_IN])


async def _put(stores: Stores, keys: list[BlobId]) -> None:
    from mailslice.stores.blobs.hot import HotBlobs

    hot, turns = HotBlobs(stores.settings.s3, stores.blobs.bucket), asyncio.Semaphore(64)

    async def put(key: BlobId) -> None:
        async with turns:
            await hot.put(key, _CONTENT)

    for at in range(0, len(keys), _AT_ONCE):
        await asyncio.gather(*(put(key) for key in keys[at : at + _AT_ONCE]))
    hot.close()


def _limits(stores: Stores) -> dict[str, int]:
    """Objects a second that S3 looks at, copies and deletes when nothing else is done."""
    from mailslice.stores.blobs.bulk import BulkBlobs

    source = [BlobId(str(uuid.uuid4())) for _ in range(_LIMIT)]
    asyncio.run(_put(stores, source))
    with BulkBlobs(stores.settings.s3, stores.own_blobs.bucket) as own:
        copied = _timed(lambda: own.copies(stores.blobs.bucket, {key: key for key in source}))
        looked = _timed(lambda: own.heads(source))
        deleted = _timed(lambda: own.delete(source))
        stores.blobs.delete_many(source)
    return {
        "copies_per_second": round(_LIMIT / copied),
        "heads_per_second": round(_LIMIT / looked),
        "deletes_per_second": round(_LIMIT / deleted),
    }


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _rate(count: int, seconds: float) -> int | None:
    return round(count / seconds) if seconds else None


def _run(settings: Settings, *, keep: bool) -> dict[str, Any]:
    from mailslice.duty.request import NO_QUEUE, RunRequest, new_run
    from mailslice.duty.road import run_all

    params = {
        "grace": "1s",
        "delete_after": "1ms",
        "keep": "7d" if keep else "0s",
        "max_share": 1,
        "reason": "mailslice bench",
    }
    return run_all(
        RunRequest("blob_gc", NO_QUEUE, new_run(system_clock), None, who(), params), settings
    )
