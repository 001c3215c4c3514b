"""Measures both phases of blob_gc over James' tables and two buckets.

Also measures the rates of S3 alone.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from mailslice.bench.queues import insert_all
from mailslice.bench.spark_runs import DutyRun, own_stores, peak_memory, rate, run_duty, timed
from mailslice.duties.blob_gc.trash import Trash
from mailslice.model.batches import batches
from mailslice.model.mail import BlobId
from mailslice.stores.blobs.async_store import AsyncBlobStore
from mailslice.stores.blobs.store import KEYS_A_DELETE

if TYPE_CHECKING:
    from mailslice.model.settings import Settings
    from mailslice.stores import Stores

KEYSPACE = "mailslice_bench_blobs"
_ABSENT = "enqueuedMailsV3", "enqueuedMailsV4", "attachmentV2", "mailRepositoryContentV2"
_CONTENT = b"a blob of mailslice bench\r\n" * 8
_AT_ONCE, _IN_FLIGHT = 5000, 64
_ORPHAN_ONE_IN = 4
_OLD_ENOUGH_S = 3.0
"""Longer than the grace of a second plus the rounding of S3, which has whole seconds."""
_LIMIT, _MAX_LIMIT = 2000, 10_000
"""Least and most objects to measure S3 alone; between them, as many as there are orphans."""
_GROUPS_AT_ONCE = 4
"""As many as apply uses on two cores."""
_PATIENCE = timedelta(minutes=2)
"""A server that stores files, as the local one, walks all of them for a late page of keys."""


def measure_gc(
    settings: Settings,
    *,
    blobs: int,
    references: int,
    keep: bool,
    print_progress: Callable[[str], None],
) -> dict[str, Any]:
    """Fills the stores, runs blob_gc to record candidates (and start Spark), then to delete them.

    Rates a second, times in seconds, memory in MiB, CPU of apply in microseconds a key. The limits
    of S3 alone are measured last, when the server is warm.
    """
    groups = {
        "gc": {"absent_sources": _ABSENT, "sources": ""},
        "s3": {"timeout": _PATIENCE},
    }
    with own_stores(settings, KEYSPACE, buckets=True, **groups) as stores:
        stores.cassandra.execute(
            f"CREATE TABLE {KEYSPACE}.messagev3 "
            "(messageid timeuuid PRIMARY KEY, headercontent text, bodycontent text)"
        )
        print_progress(f"{blobs} blobs and {references} references: putting and inserting")
        keys, filled = timed(lambda: _fill(stores, blobs, references))
        orphans = len(keys[::_ORPHAN_ONE_IN])
        time.sleep(_OLD_ENOUGH_S)
        with peak_memory(settings) as peak:
            print_progress("the run that records candidates")
            first = _run(stores.settings, keep=keep).report
            print_progress("the run that deletes them")
            deletion = _run(stores.settings, keep=keep)
        second = deletion.report
        counted = tuple(first[name] for name in ("candidates", "references", "blobCount"))
        deleted = second["gcedBlobCount"], second["errorCount"]
        if (*counted, *deleted) != (orphans, references, blobs, orphans, 0):
            raise RuntimeError(
                f"{blobs} blobs, {orphans} orphans, {references} references were planted; the runs "
                f"counted {counted}, deleted {deleted}: {second['message']}"
            )
        print_progress("what S3 can do")
        limits = _limits(stores, orphans)
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
        "apply_seconds_by_part": seconds,
        "listed_blobs_per_second": rate(blobs, seconds["listing"]),
        "references_per_second": rate(references, seconds["references"]),
        "join_seconds": seconds["join"],
        "deleted_keys_per_second": rate(orphans, deleting),
        "applied_keys_per_second": rate(orphans, second["seconds"]["apply"]),
        "apply_cpu": deletion.cpu.by_rows(orphans, "apply")["apply"],
        "s3_limits": {**limits, "keys_per_second": round(limit)},
        "deleted_share_of_limit": round(orphans / deleting / limit, 2) if deleting else None,
        **peak.as_json(),
    }


def _run(settings: Settings, *, keep: bool) -> DutyRun:
    times: dict[str, Any] = {"grace": "1s", "delete_after": "1ms", "keep": "7d" if keep else "0s"}
    return run_duty(settings, "blob_gc", store="s3", max_share=1, **times)


def _key(number: int) -> BlobId:
    """A random id in the form that James uses for servers that store files, such as MinIO.

    Its folders are small: such a server walks all files of a folder for each page of keys.
    """
    text = str(uuid.uuid4())
    return BlobId(f"1/{600 + number % 8}/{text[0]}/{text[1:3]}/{text[3:]}")


def _fill(stores: Stores, blobs: int, references: int) -> list[BlobId]:
    """Writes blobs of old generations. Every fourth is an orphan; the others share the references.

    Returns the keys.
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
    """Deletes by key: on a server that stores files, a listing costs more than the runs."""
    with Trash(stores.settings) as trash:
        for folder in [one.folder for one in trash.runs()]:
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


def _limits(stores: Stores, orphans: int) -> dict[str, int]:
    """Objects a second that S3 heads, copies and deletes while nothing else runs.

    Uses the same folders and the same requests as apply.
    """
    keys = [_key(number) for number in range(min(max(orphans, _LIMIT), _MAX_LIMIT))]
    asyncio.run(_put(stores, keys))
    groups = list(batches(keys, KEYS_A_DELETE))
    with Trash(stores.settings) as trash, ThreadPoolExecutor(_GROUPS_AT_ONCE) as pool:
        james, own = trash.james, trash.own
        work: dict[str, Callable[[list[BlobId]], object]] = {
            "copies": lambda group: own.copies(james.bucket, {key: key for key in group}),
            "heads": james.heads,
            "deletes": james.delete_many,
        }

        def per_second(ask: Callable[[list[BlobId]], object]) -> int:
            _, seconds = timed(lambda: [*pool.map(ask, groups)])
            return round(len(keys) / seconds)

        limits = {f"{name}_per_second": per_second(ask) for name, ask in work.items()}
        own.delete_many(keys)
    return limits
