"""How fast blobs are collected: James' tables and two buckets, and both phases over them.

Beside it what S3 can do alone.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mailslice.bench.queues import insert_all
from mailslice.bench.spark_runs import own_stores, peak_memory, rate, run_duty, timed
from mailslice.duties.blob_gc.trash import KeptBlobs
from mailslice.model.mail import BlobId
from mailslice.stores.blobs.async_store import AsyncBlobStore
from mailslice.stores.blobs.opening import open_patient_store

if TYPE_CHECKING:
    from mailslice.model.settings import Settings
    from mailslice.stores import Stores

KEYSPACE = "mailslice_bench_blobs"
_ABSENT = "enqueuedMailsV3", "enqueuedMailsV4", "attachmentV2", "mailRepositoryContentV2"
_CONTENT = b"a blob of mailslice bench\r\n" * 8
_AT_ONCE, _IN_FLIGHT = 5000, 64
_ORPHAN_ONE_IN = 4
_OLD_ENOUGH_S = 3.0
"""Past the grace of a second, and S3's whole seconds."""
_LIMIT = 2000
"""Objects by which S3's own limits are measured."""


def measure_gc(
    settings: Settings,
    *,
    blobs: int,
    references: int,
    keep: bool,
    print_progress: Callable[[str], None],
) -> dict[str, Any]:
    """Fill, a run that records candidates (and starts Spark), and one that deletes them.

    Rates a second, times in seconds, memory in MiB.
    """
    sources = {"absent_sources": _ABSENT, "sources": ""}
    with own_stores(settings, KEYSPACE, buckets=True, gc=sources) as stores:
        stores.cassandra.execute(
            f"CREATE TABLE {KEYSPACE}.messagev3 "
            "(messageid timeuuid PRIMARY KEY, headercontent text, bodycontent text)"
        )
        print_progress(f"{blobs} blobs and {references} references: putting and inserting")
        keys, filled = timed(lambda: _fill(stores, blobs, references))
        orphans = len(keys[::_ORPHAN_ONE_IN])
        print_progress("what S3 can do")
        limits = _limits(stores)
        time.sleep(_OLD_ENOUGH_S)
        with peak_memory(settings) as peak:
            print_progress("the run that records candidates")
            first = _run(stores.settings, keep=keep)
            print_progress("the run that deletes them")
            second = _run(stores.settings, keep=keep)
        counted = tuple(first[name] for name in ("candidates", "references", "blobCount"))
        deleted = second["gcedBlobCount"], second["errorCount"]
        if (*counted, *deleted) != (orphans, references, blobs, orphans, 0):
            raise RuntimeError(
                f"{blobs} blobs, {orphans} orphans, {references} references were planted; the runs "
                f"counted {counted}, deleted {deleted}: {second['message']}"
            )
        print_progress("removing what remains")
        _remove(stores, keys)
    seconds, deleting = second["spent"], second["spent"]["deleting"]
    used = ("copies", "heads", "deletes") if keep else ("heads", "deletes")
    limit = 1 / sum(1 / limits[f"{name}_per_second"] for name in used)
    return {
        "blobs": blobs,
        "references": references,
        "orphans": orphans,
        "keep": keep,
        "fill_rate": round((blobs + references) / filled),
        "step_seconds": [first["seconds"], second["seconds"]],
        "listed_blobs_per_second": rate(blobs, seconds["listing"]),
        "references_per_second": rate(references, seconds["references"]),
        "join_seconds": seconds["join"],
        "deleted_keys_per_second": rate(orphans, deleting),
        "s3_limits": {**limits, "keys_per_second": round(limit)},
        "deleted_share_of_limit": round(orphans / deleting / limit, 2) if deleting else None,
        **peak.as_json(),
    }


def _run(settings: Settings, *, keep: bool) -> dict[str, Any]:
    times: dict[str, Any] = {"grace": "1s", "delete_after": "1ms", "keep": "7d" if keep else "0s"}
    return run_duty(settings, "blob_gc", max_share=1, **times).report


def _key(number: int) -> BlobId:
    """A random id in James' form for servers that keep files, MinIO's.

    A server like the local one walks all files of a folder for each page of it.
    """
    text = str(uuid.uuid4())
    return BlobId(f"1/{600 + number % 8}/{text[0]}/{text[1:3]}/{text[3:]}")


def _fill(stores: Stores, blobs: int, references: int) -> list[BlobId]:
    """Blobs of old generations; every fourth is an orphan, others are referred to again and again.

    Gives the keys.
    """
    keys = [_key(number) for number in range(blobs)]
    asyncio.run(_put(stores, keys))
    orphans = set(keys[::_ORPHAN_ONE_IN])
    referred = [key for key in keys if key not in orphans] or [BlobId("none")]

    def blob(number: int) -> BlobId | None:
        return referred[number % len(referred)] if number < references else None

    insert_all(
        stores.cassandra,
        f"INSERT INTO {KEYSPACE}.messagev3 (messageid, headercontent, bodycontent) "
        "VALUES (?, ?, ?)",
        ([uuid.uuid1(), blob(number), blob(number + 1)] for number in range(0, references, 2)),
    )
    return keys


def _remove(stores: Stores, keys: list[BlobId]) -> None:
    """By name: to list it all costs more than the runs, on a server that keeps files."""
    with KeptBlobs(stores.settings) as trash:
        for folder in list(trash.folders()):
            trash.own.delete_many([BlobId(f"{folder}{key}") for key in keys[::_ORPHAN_ONE_IN]])
        trash.james.delete_many([key for number, key in enumerate(keys) if number % _ORPHAN_ONE_IN])


async def _put(stores: Stores, keys: list[BlobId]) -> None:
    blobs, room = (
        AsyncBlobStore(stores.settings.s3, stores.blobs.bucket),
        asyncio.Semaphore(_IN_FLIGHT),
    )

    async def put(key: BlobId) -> None:
        async with room:
            await blobs.put(key, _CONTENT)

    for at in range(0, len(keys), _AT_ONCE):
        await asyncio.gather(*(put(key) for key in keys[at : at + _AT_ONCE]))
    blobs.close()


def _limits(stores: Stores) -> dict[str, int]:
    """Objects a second that S3 looks at, copies and deletes when nothing else is done."""
    keys = [BlobId(str(uuid.uuid4())) for _ in range(_LIMIT)]
    asyncio.run(_put(stores, keys))
    with open_patient_store(stores.settings.s3, stores.own_blobs.bucket) as own:
        work: dict[str, Callable[[], object]] = {
            "copies": lambda: own.copies(stores.blobs.bucket, {key: key for key in keys}),
            "heads": lambda: own.heads(keys),
            "deletes": lambda: own.delete_many(keys),
        }
        limits = {f"{name}_per_second": round(_LIMIT / timed(ask)[1]) for name, ask in work.items()}
        stores.blobs.delete_many(keys)
    return limits
