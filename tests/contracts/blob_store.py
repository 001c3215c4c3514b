"""The contract of every provider of the content store, by both clients: blocking and async.

A subclass gives the fixture `buckets`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from mailslice.model.errors import ContentMissing, StoreUnavailable
from mailslice.model.mail import BlobId
from mailslice.stores.blobs.async_store import AsyncBlobStore
from mailslice.stores.blobs.key_ranges import behind
from mailslice.stores.blobs.store import BlobStore

KEYS = [
    "0c2a3f5e-51ff-40e3-8f4b-ec489435b214",
    "1_628_Ck5SoRNWUpSR4X0COv7R5ub2pUTtl6xz4dTFz++ji4M=",
    "uor62xX/dcod8wDY3z4Zd9kdWozSe9CzbLvAt+bUjpM=",
    "1/628/M/2f/k",
]
AWKWARD = [
    "/or62xXOdcod8wDY3z4Zd9kdWozSe9CzbLvAt+bUjpM=",
    "or62xXOdcod8wDY3z4Zd9kdWozSe9CzbLvAt+bUjpM/",
    "..",
    "a//b",
    "a/./b",
    "line\nbreak",
    "\x7f",
    "%",
    "a%2Fb",
    "%x/y",
]
IMPOSSIBLE = ["nul\0", "x" * 1100, "", "\ud800"]


@dataclass
class Buckets:
    """Two empty buckets of one provider, and the name of a missing bucket."""

    open: Callable[..., BlobStore]
    open_async: Callable[[str], AsyncBlobStore]
    name: str = "mails"
    own_name: str = "own-mails"
    missing: str = "no-such-bucket-anywhere"


class BlobStoreContract:
    @pytest.fixture
    async def clients(self, buckets):
        """The blocking and the async client of the first bucket."""
        with buckets.open(buckets.name) as store, closing(buckets.open_async(buckets.name)) as hot:
            yield store, hot

    @pytest.fixture
    def store(self, clients):
        return clients[0]

    @pytest.fixture
    def hot(self, clients):
        return clients[1]

    @pytest.mark.parametrize("key", KEYS)
    async def test_what_one_face_writes_the_other_reads_under_the_same_key(self, store, hot, key):
        await hot.put(BlobId(key), b"hot")
        assert await asyncio.to_thread(store.get, BlobId(key)) == b"hot"
        assert [blob.key for blob in store.list()] == [key]
        store.put(BlobId(key), b"admin")
        assert await hot.get(BlobId(key)) == b"admin"
        assert store.exists(BlobId(key))
        await hot.delete_many([BlobId(key)])
        assert not store.exists(BlobId(key))

    @pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 300_000, 5_000_001])
    async def test_any_size_comes_back_and_is_known_before_it_is_read(self, store, hot, size):
        content = os.urandom(size)
        await hot.put(BlobId("sized"), memoryview(b"??" + content)[2:])
        opened = await hot.open(BlobId("sized"))
        assert opened.size == size
        assert b"".join([bytes(chunk) async for chunk in opened.chunks()]) == content
        assert b"".join(store.pieces(BlobId("sized"))) == content
        assert [(blob.key, blob.size) for blob in store.list()] == [("sized", size)]

    @pytest.mark.parametrize("key", IMPOSSIBLE)
    async def test_a_key_that_nobody_can_hold_is_missing_and_no_outage(self, store, hot, key):
        gone = BlobId(key)
        for ask in (hot.open(gone), asyncio.to_thread(store.get, gone)):
            with pytest.raises(ContentMissing, match="has no object"):
                await ask
        assert not store.exists(gone)
        assert await hot.missing([gone]) == {gone}

    async def test_a_missing_object_is_missing_content(self, store, hot):
        with pytest.raises(ContentMissing, match="has no object 'gone'"):
            await hot.open(BlobId("gone"))
        with pytest.raises(ContentMissing, match="has no object 'gone'"):
            store.get(BlobId("gone"))

    async def test_a_bucket_that_is_there_is_not_created(self, store, hot):
        assert await hot.bucket_exists()
        assert store.bucket_exists()
        assert not store.ensure_bucket()

    async def test_of_many_those_that_are_not_there_are_told(self, hot):
        there = [BlobId(name) for name in ("one", "a b", "with/slash")]
        await asyncio.gather(*(hot.put(blob_id, b"x") for blob_id in there))
        gone = {BlobId("gone"), BlobId("not there either"), BlobId("with/")}
        assert await hot.missing([*there, *gone]) == gone
        assert await hot.missing(there) == set() == await hot.missing([])

    async def test_many_are_deleted_in_one_request_and_those_that_are_not_there_count(
        self, store, hot
    ):
        ids = [BlobId(f"k-{number}") for number in range(120)]
        await asyncio.gather(*(hot.put(blob_id, b"x") for blob_id in ids))
        await hot.delete_many([*ids[:100], BlobId("never-there")])
        assert {blob.key for blob in store.list()} == set(ids[100:])
        assert list(store.delete_many([BlobId("never-there"), *ids])) == []
        assert list(store.list()) == []

    def test_a_listing_has_all_that_begins_so_page_by_page(self, store):
        sizes = {f"p-{number}": number for number in range(5)} | {"p/x": 7, "q/p-0": 8}
        for key, size in sizes.items():
            store.put(BlobId(key), b"x" * size)
        store.page_size = 2
        for prefix in ("", "p", "p-", "p/", "p/x", "q/", "q/p", "r"):
            expected = {key: size for key, size in sizes.items() if key.startswith(prefix)}
            assert {blob.key: blob.size for blob in store.list(prefix)} == expected
        page, more = store.first_page("p-", behind("p-"))
        assert (len(page), more) == (2, True)
        page, more = store.first_page("p-4", behind("p-"))
        assert ([blob.key for blob in page], more) == (["p-4"], False)
        assert store.first_page("r") == ([], False)

    def test_a_range_has_its_low_end_and_not_its_high_end(self, store):
        for key in ("a", "b-", "b/c", "b/d", "c"):
            store.put(BlobId(key), b"x")
        for low, high, keys in (
            ("b", "c", {"b-", "b/c", "b/d"}),
            ("b/c", "b/d", {"b/c"}),
            ("b-\0", "", {"b/c", "b/d", "c"}),
            ("", "b/", {"a", "b-"}),
        ):
            pages = list(store.pages(low, high))
            assert {blob.key for page in pages for blob in page} == keys
            assert store.first(low, high) == min(keys)
        assert store.first("c\0") is None

    def test_a_head_tells_size_and_time_and_none_where_there_is_none(self, store):
        before = datetime.now(UTC).replace(microsecond=0)
        store.put(BlobId("a/b"), b"12345")
        heads = store.heads([BlobId("a/b"), BlobId("gone"), BlobId("a")])
        assert list(heads) == ["a/b", "gone", "a"]
        assert (heads["gone"], heads["a"]) == (None, None)
        head = heads["a/b"]
        assert (head.key, head.size, head.modified.microsecond) == ("a/b", 5, 0)
        assert abs(head.modified - before) <= timedelta(seconds=20)
        (listed,) = store.list()
        assert listed.modified.replace(microsecond=0) == head.modified

    def test_copies_go_from_bucket_to_bucket_and_those_that_failed_are_said(self, buckets, store):
        for key in ("a/b", "c"):
            store.put(BlobId(key), key.encode())
        targets = {BlobId(key): BlobId(f"kept/{key}") for key in ("a/b", "c", "gone")}
        with buckets.open(buckets.own_name) as own:
            assert own.copies(buckets.name, targets) == {"gone": "the object is not there"}
            assert {blob.key for blob in own.list()} == {"kept/a/b", "kept/c"}
            assert own.get(BlobId("kept/a/b")) == b"a/b"
            assert store.get(BlobId("a/b")) == b"a/b"

    def test_deletes_and_copies_wait_for_their_turns(self, buckets, store):
        taken = []
        store.put(BlobId("a"), b"x")
        with buckets.open(buckets.name, turns=taken.append) as slow:
            slow.copies(buckets.name, {BlobId("a"): BlobId("b")})
            slow.delete_many([BlobId("a"), BlobId("b")])
        assert taken == [1, 2]


class MissingBucketContract:
    """The contract of providers with buckets. Memory and disk have none."""

    @pytest.mark.parametrize("key", ["gone", "", "a//b"])
    async def test_what_a_missing_bucket_has_is_unknown(self, buckets, key):
        gone = BlobId(key)
        with buckets.open(buckets.missing) as nowhere:
            for ask in (nowhere.get, nowhere.exists):
                with pytest.raises(StoreUnavailable, match=buckets.missing):
                    ask(gone)
        with closing(buckets.open_async(buckets.missing)) as nowhere:
            for ask in (nowhere.open, nowhere.get):
                with pytest.raises(StoreUnavailable, match=buckets.missing):
                    await ask(gone)

    async def test_nothing_can_be_done_in_a_missing_bucket(self, buckets):
        key = BlobId("new")
        with buckets.open(buckets.missing) as nowhere:
            assert not nowhere.bucket_exists()
            for ask in (lambda: nowhere.put(key, b"x"), lambda: list(nowhere.list())):
                with pytest.raises(StoreUnavailable, match=buckets.missing):
                    ask()
        with closing(buckets.open_async(buckets.missing)) as nowhere:
            assert not await nowhere.bucket_exists()
            with pytest.raises(StoreUnavailable, match=buckets.missing):
                await nowhere.put(key, b"x")
            with pytest.raises(StoreUnavailable, match=f"there is no bucket '{buckets.missing}'"):
                await nowhere.missing([key])


class EscapedKeys(BlobStoreContract):
    """The contract of providers that name objects by `escape_key`."""

    async def test_every_key_that_mailslice_can_make_is_held(self, store, hot):
        for number, key in enumerate(AWKWARD):
            await hot.put(BlobId(key), b"%d" % number)
        keys = [BlobId(key) for key in AWKWARD]
        assert [store.get(key) for key in keys] == [b"%d" % number for number in range(len(keys))]
        assert {blob.key for blob in store.list()} == set(keys)
        assert {blob.key for blob in store.list("a/")} == {"a//b", "a/./b"}
        assert await hot.missing(keys) == set()
        assert None not in store.heads(keys).values()
        await hot.delete_many(keys[:2])
        assert store.delete_many(keys) == {}
        assert list(store.list()) == []
