"""Both clients of the blob store, on one bucket."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mailslice.model.errors import BadSetting, ContentMissing, StoreUnavailable
from mailslice.model.mail import BlobId
from mailslice.stores.blobs.admin import AdminBlobs
from mailslice.stores.blobs.hot import HotBlobs

KEYS = [
    "0c2a3f5e-51ff-40e3-8f4b-ec489435b214",
    "1_628_Ck5SoRNWUpSR4X0COv7R5ub2pUTtl6xz4dTFz++ji4M=",
    "uor62xX/dcod8wDY3z4Zd9kdWozSe9CzbLvAt+bUjpM=",
    "1/628/M/2f/k",
]


@pytest.fixture
def admin(fresh: Any) -> AdminBlobs:
    return AdminBlobs(fresh.settings.s3, fresh.settings.s3.bucket)


@pytest.fixture(params=["small", "obstore"])
async def hot(
    fresh: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[HotBlobs]:
    """Both clients in turn: `small` in front of obstore, and obstore alone."""
    if request.param == "obstore":
        monkeypatch.setattr("mailslice.stores.blobs.hot.speaks_to", lambda _settings: False)
    blobs = HotBlobs(fresh.settings.s3, fresh.settings.s3.bucket)
    yield blobs
    blobs.close()


@pytest.mark.parametrize("key", KEYS)
async def test_what_one_client_writes_the_other_reads_under_the_same_key(
    admin: AdminBlobs, hot: HotBlobs, key: str
) -> None:
    await hot.put(BlobId(key), b"hot")
    assert await asyncio.to_thread(admin.get, BlobId(key)) == b"hot"
    assert [blob.key for blob in admin.list()] == [key]
    admin.put(BlobId(key), b"admin")
    assert await hot.get(BlobId(key)) == b"admin"
    await hot.delete_many([BlobId(key)])
    assert not admin.exists(BlobId(key))


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 300_000, 5_000_001])
async def test_any_size_comes_back_and_is_known_before_it_is_read(hot: HotBlobs, size: int) -> None:
    content = os.urandom(size)
    await hot.put(BlobId("sized"), memoryview(b"??" + content)[2:])
    opened = await hot.open(BlobId("sized"))
    assert opened.size == size
    assert b"".join([bytes(chunk) async for chunk in opened.chunks()]) == content


def test_an_object_can_be_read_piece_by_piece(admin: AdminBlobs) -> None:
    content = os.urandom(2_500_000)
    admin.put(BlobId("large"), content)
    pieces = list(admin.pieces(BlobId("large")))
    assert max(map(len, pieces)) <= 1024 * 1024
    assert b"".join(pieces) == content
    admin.put(BlobId("empty"), b"")
    assert b"".join(admin.pieces(BlobId("empty"))) == b""
    with pytest.raises(ContentMissing, match="has no object 'gone'"):
        next(admin.pieces(BlobId("gone")))


async def test_a_bucket_that_is_there_is_told_from_one_that_is_not(
    fresh: Any, hot: HotBlobs
) -> None:
    assert await hot.bucket_is_there()
    assert not await HotBlobs(fresh.settings.s3, "no-such-bucket-anywhere").bucket_is_there()
    assert not await HotBlobs(
        fresh.but(MAILSLICE_S3_SECRET_KEY="sesame").settings.s3, fresh.settings.s3.bucket
    ).bucket_is_there()
    with pytest.raises(StoreUnavailable, match=r"S3 at 127\.0\.0\.1:1"):
        await HotBlobs(
            fresh.but(MAILSLICE_S3_ENDPOINT="http://127.0.0.1:1").settings.s3, "b"
        ).bucket_is_there()


async def test_a_missing_object_is_missing_content_and_a_missing_bucket_is_not(
    fresh: Any, hot: HotBlobs, admin: AdminBlobs
) -> None:
    with pytest.raises(ContentMissing, match="has no object 'gone'"):
        await hot.open(BlobId("gone"))
    with pytest.raises(ContentMissing, match="has no object 'gone'"):
        admin.get(BlobId("gone"))
    nowhere = HotBlobs(fresh.settings.s3, "no-such-bucket-anywhere")
    with pytest.raises(StoreUnavailable, match="no-such-bucket-anywhere"):
        await nowhere.open(BlobId("gone"))
    with pytest.raises(StoreUnavailable, match="no-such-bucket-anywhere"):
        await nowhere.put(BlobId("new"), b"x")
    with pytest.raises(StoreUnavailable):
        AdminBlobs(fresh.settings.s3, "no-such-bucket-anywhere").exists(BlobId("gone"))


async def test_of_many_those_that_are_not_there_are_told_unless_the_bucket_is_gone(
    fresh: Any, hot: HotBlobs
) -> None:
    there = [BlobId(name) for name in ("one", "a b", "with/slash")]
    await asyncio.gather(*(hot.put(blob_id, b"x") for blob_id in there))
    gone = {BlobId("gone"), BlobId("not there either"), BlobId("with/")}
    assert await hot.missing([*there, *gone]) == gone
    assert await hot.missing(there) == set() == await hot.missing([])
    with pytest.raises(StoreUnavailable, match="there is no bucket 'no-such-bucket-anywhere'"):
        await HotBlobs(fresh.settings.s3, "no-such-bucket-anywhere").missing(there)
    with pytest.raises(StoreUnavailable, match=r"S3 at 127\.0\.0\.1:1"):
        await HotBlobs(
            fresh.but(MAILSLICE_S3_ENDPOINT="http://127.0.0.1:1").settings.s3, "b"
        ).missing(there)


@pytest.mark.parametrize(
    "key",
    [
        "/or62xXOdcod8wDY3z4Zd9kdWozSe9CzbLvAt+bUjpM=",
        "..",
        "a//b",
        "line\nbreak",
        "\x7f",
        "nul\0",
        "x" * 1100,
        "",
        "\ud800",
    ],
)
async def test_a_key_that_the_server_or_the_client_cannot_express_is_missing_and_no_outage(
    fresh: Any, hot: HotBlobs, admin: AdminBlobs, key: str
) -> None:
    gone = BlobId(key)
    for ask in (hot.open(gone), asyncio.to_thread(admin.get, gone)):
        with pytest.raises(ContentMissing, match="has no object"):
            await ask
    assert await hot.missing([gone]) == {gone}
    with pytest.raises(StoreUnavailable):
        await HotBlobs(fresh.settings.s3, "no-such-bucket-anywhere").open(gone)


async def test_many_are_deleted_in_one_request_and_those_that_are_not_there_count(
    hot: HotBlobs, admin: AdminBlobs
) -> None:
    ids = [BlobId(f"k-{number}") for number in range(120)]
    await asyncio.gather(*(hot.put(blob_id, b"x") for blob_id in ids))
    await hot.delete_many([*ids[:100], BlobId("never-there")])
    assert {blob.key for blob in admin.list()} == set(ids[100:])
    assert list(admin.delete_many([*ids, BlobId("never-there")])) == []
    assert list(admin.list()) == []


def test_a_missing_bucket_is_created_once(fresh: Any) -> None:
    blobs = AdminBlobs(fresh.settings.s3, fresh.settings.s3.bucket + "-x")
    assert blobs.ensure_bucket()
    assert not blobs.ensure_bucket()
    blobs.client.delete_bucket(Bucket=blobs.bucket)


def test_a_listing_goes_on_after_its_first_page(admin: AdminBlobs) -> None:
    for number in range(5):
        admin.put(BlobId(f"p-{number}"), b"x" * number)
    original = admin.client.list_objects_v2
    admin.client.list_objects_v2 = lambda **given: original(**{**given, "MaxKeys": 2})
    assert [(blob.key, blob.size) for blob in admin.list("p-")] == [
        (f"p-{number}", number) for number in range(5)
    ]


async def test_a_wrong_key_names_its_settings_and_not_itself(fresh: Any) -> None:
    settings = fresh.but(MAILSLICE_S3_SECRET_KEY="sesame").settings.s3
    for error in (await refused_hot(settings), refused_admin(settings)):
        assert "MAILSLICE_S3_SECRET_KEY" in str(error)
        assert "sesame" not in str(error)


async def refused_hot(settings: Any) -> BadSetting:
    with pytest.raises(BadSetting) as raised:
        await HotBlobs(settings, settings.bucket).put(BlobId("x"), b"x")
    return raised.value


def refused_admin(settings: Any) -> BadSetting:
    with pytest.raises(BadSetting) as raised:
        AdminBlobs(settings, settings.bucket).put(BlobId("x"), b"x")
    return raised.value


async def test_an_endpoint_that_is_down_is_named_soon(fresh: Any) -> None:
    settings = fresh.but(MAILSLICE_S3_ENDPOINT="http://127.0.0.1:1").settings.s3
    async with asyncio.timeout(15):
        with pytest.raises(StoreUnavailable, match=r"S3 at 127\.0\.0\.1:1"):
            await HotBlobs(settings, "b").get(BlobId("x"))
        with pytest.raises(StoreUnavailable, match=r"S3 at 127\.0\.0\.1:1"):
            await asyncio.to_thread(AdminBlobs(settings, "bbb").get, BlobId("x"))
