"""Blobs of done mails, gathered into requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import uuid4

import pytest

from mailslice.model.errors import StoreUnavailable
from mailslice.model.mail import BlobId
from mailslice.worker.io.blob_deleter import KEYS_A_REQUEST, MAX_PENDING, BlobDiscarder


class Blobs:
    """Remembers what is deleted; may be slow, or down."""

    def __init__(self) -> None:
        self.requests: list[Sequence[BlobId]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.down = False

    async def delete_many(self, blob_ids: Sequence[BlobId]) -> None:
        await self.gate.wait()
        if self.down:
            raise StoreUnavailable("S3 at 127.0.0.1:1 does not answer")
        self.requests.append(blob_ids)


def ids(count: int) -> list[BlobId]:
    return [BlobId(str(uuid4())) for _ in range(count)]


async def test_many_mails_share_a_request_and_what_is_left_goes_after_a_moment() -> None:
    blobs = Blobs()
    discarder = BlobDiscarder(blobs)  # type: ignore[arg-type]
    for _ in range(75):
        await discarder.add(ids(2))
    await asyncio.sleep(0.15)
    assert [len(request) for request in blobs.requests] == [KEYS_A_REQUEST, 50]


async def test_only_random_ids_are_deleted() -> None:
    blobs = Blobs()
    discarder = BlobDiscarder(blobs)  # type: ignore[arg-type]
    kept = [
        BlobId("Ck5SoRNWUpSR4X0COv7R5ub2pUTtl6xz4dTFz++ji4M="),
        BlobId("1_628_Ck5SoRNWUpSR4X0COv7R5ub2pUTtl6xz4dTFz++ji4M="),
        BlobId("a" * 64),
    ]
    random = [*ids(1), BlobId(f"1_628_{uuid4()}")]
    await discarder.add([*kept, *random])
    await discarder.close()
    assert blobs.requests == [random]


async def test_completions_wait_while_too_many_blobs_are_pending() -> None:
    blobs = Blobs()
    blobs.gate.clear()
    discarder = BlobDiscarder(blobs)  # type: ignore[arg-type]
    for _ in range(MAX_PENDING // 2):
        await asyncio.wait_for(discarder.add(ids(2)), 1)
    one_more = asyncio.create_task(discarder.add(ids(2)))
    await asyncio.sleep(0.1)
    assert not one_more.done()
    blobs.gate.set()
    await asyncio.wait_for(one_more, 1)
    await discarder.close()
    assert sum(len(request) for request in blobs.requests) == MAX_PENDING + 2


async def test_deletes_that_hang_leave_orphans_and_hold_no_completion_up_for_long() -> None:
    blobs = Blobs()
    blobs.gate.clear()
    discarder = BlobDiscarder(blobs, room_timeout=0.05)  # type: ignore[arg-type]
    began = asyncio.get_running_loop().time()
    for _ in range(2 * MAX_PENDING):
        await discarder.add(ids(2))
    assert asyncio.get_running_loop().time() - began < 25, (
        "it waited once, and not a thousand times"
    )
    blobs.gate.set()
    await discarder.close()
    deleted = sum(len(request) for request in blobs.requests)
    assert MAX_PENDING <= deleted <= MAX_PENDING + 2
    await discarder.add(ids(2))
    await discarder.close()
    assert sum(len(request) for request in blobs.requests) == deleted + 2


async def test_a_close_does_not_wait_for_deletes_that_hang(
    caplog: pytest.LogCaptureFixture,
) -> None:
    blobs = Blobs()
    blobs.gate.clear()
    discarder = BlobDiscarder(blobs, close_timeout=0.05)  # type: ignore[arg-type]
    await discarder.add(ids(5 * KEYS_A_REQUEST))
    await asyncio.wait_for(discarder.close(), 1)
    assert len(asyncio.all_tasks()) == 1, "no request goes on"
    (told,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert told.blobs == 5 * KEYS_A_REQUEST  # type: ignore[attr-defined]
    blobs.gate.set()
    await discarder.add(ids(2))
    await discarder.close()
    assert [len(request) for request in blobs.requests] == [2], "only what came later"


async def test_a_store_that_is_down_leaves_orphans_and_stops_nothing() -> None:
    blobs = Blobs()
    blobs.down = True
    discarder = BlobDiscarder(blobs)  # type: ignore[arg-type]
    await discarder.add(ids(250))
    await asyncio.wait_for(discarder.close(), 1)
    assert blobs.requests == []
