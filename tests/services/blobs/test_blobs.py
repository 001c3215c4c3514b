"""The content store of the stack's S3."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from mailslice.model.errors import BadSetting, ContentMissing, StoreUnavailable
from mailslice.model.mail import BlobId
from mailslice.stores.blobs.async_store import AsyncBlobStore
from mailslice.stores.blobs.s3_store import S3BlobStore
from tests.contracts.blob_store import BlobStoreContract, Buckets, MissingBucketContract


class TestS3(BlobStoreContract, MissingBucketContract):
    @pytest.fixture(params=["small", "obstore"])
    def buckets(self, fresh: Any, request: pytest.FixtureRequest) -> Buckets:
        """Both clients of small objects in turn: `small` in front of obstore, and obstore alone."""
        s3, own = fresh.settings.s3, fresh.settings.own

        def open_async(bucket: str) -> AsyncBlobStore:
            blobs = AsyncBlobStore(s3, bucket)
            if request.param == "obstore":
                blobs.small = None
            return blobs

        return Buckets(partial(S3BlobStore, s3), open_async, s3.bucket, own.bucket)

    @pytest.mark.parametrize(
        "key", ["/or62xXOdcod8wDY3z4Zd9kdWozSe9CzbLvAt+bUjpM=", "..", "a//b", "line\nbreak", "\x7f"]
    )
    async def test_a_key_that_the_server_cannot_express_is_missing_and_no_outage(
        self, store: S3BlobStore, hot: AsyncBlobStore, key: str
    ) -> None:
        gone = BlobId(key)
        for ask in (hot.open(gone), asyncio.to_thread(store.get, gone)):
            with pytest.raises(ContentMissing, match="has no object"):
                await ask
        assert await hot.missing([gone]) == {gone}


async def test_a_bucket_is_missing_for_whom_it_may_not_be_told_and_unknown_without_an_answer(
    fresh: Any,
) -> None:
    settings = fresh.but(MAILSLICE_S3_SECRET_KEY="sesame").settings.s3
    assert not await AsyncBlobStore(settings, settings.bucket).bucket_exists()
    settings = fresh.but(MAILSLICE_S3_ENDPOINT="http://127.0.0.1:1").settings.s3
    with pytest.raises(StoreUnavailable, match=r"S3 at 127\.0\.0\.1:1"):
        await AsyncBlobStore(settings, "b").bucket_exists()
    with pytest.raises(StoreUnavailable, match=r"S3 at 127\.0\.0\.1:1"):
        await AsyncBlobStore(settings, "b").missing([BlobId("x")])


def test_a_missing_bucket_is_created_once(fresh: Any) -> None:
    blobs = S3BlobStore(fresh.settings.s3, fresh.settings.s3.bucket + "-x")
    assert blobs.ensure_bucket()
    assert not blobs.ensure_bucket()
    blobs.client.delete_bucket(Bucket=blobs.bucket)


async def test_a_wrong_key_names_its_settings_and_not_itself(fresh: Any) -> None:
    settings = fresh.but(MAILSLICE_S3_SECRET_KEY="sesame").settings.s3
    for error in (await refused_hot(settings), refused_admin(settings)):
        assert "MAILSLICE_S3_SECRET_KEY" in str(error)
        assert "sesame" not in str(error)


async def refused_hot(settings: Any) -> BadSetting:
    with pytest.raises(BadSetting) as raised:
        await AsyncBlobStore(settings, settings.bucket).put(BlobId("x"), b"x")
    return raised.value


def refused_admin(settings: Any) -> BadSetting:
    with pytest.raises(BadSetting) as raised:
        S3BlobStore(settings, settings.bucket).put(BlobId("x"), b"x")
    return raised.value


async def test_an_endpoint_that_is_down_is_named_soon(fresh: Any) -> None:
    settings = fresh.but(MAILSLICE_S3_ENDPOINT="http://127.0.0.1:1").settings.s3
    async with asyncio.timeout(15):
        with pytest.raises(StoreUnavailable, match=r"S3 at 127\.0\.0\.1:1"):
            await AsyncBlobStore(settings, "b").get(BlobId("x"))
        with pytest.raises(StoreUnavailable, match=r"S3 at 127\.0\.0\.1:1"):
            await asyncio.to_thread(S3BlobStore(settings, "bbb").get, BlobId("x"))
