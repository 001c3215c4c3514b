"""Many objects of a bucket at once: listings, HEADs, copies, deletes, patient with a busy S3."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from functools import cached_property, partial
from threading import Lock
from typing import Protocol, TypeVar

import obstore
from botocore.exceptions import ClientError
from obstore.store import S3Store

from mailslice.model.back_off import pause_seconds
from mailslice.model.errors import SlowDown, StoreUnavailable
from mailslice.model.mail import BlobId
from mailslice.model.settings import S3Settings
from mailslice.stores.blobs.admin import BUSY, KEYS_A_PAGE, NO_KEY, AdminBlobs, StoredBlob
from mailslice.stores.blobs.crate import CRATE_ERRORS, s3_store
from mailslice.stores.blobs.key_ranges import before, inside, prefix_of
from mailslice.stores.blobs.keys import is_impossible, needs_boto3
from mailslice.stores.blobs.small import SmallObjects, speaks_to
from mailslice.stores.loop_thread import LoopThread

PATIENCE_S = 300.0
"""How long one request is tried again while S3 says that it is too busy."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 15.0
_THREADS = _IN_FLIGHT = 16

T = TypeVar("T")
K = TypeVar("K")


class Turns(Protocol):
    """Limits copies and deletes to so many keys a second: `maintenance.rate_limit.Throttle` is one."""

    def take(self, count: int = 1) -> None:
        """Wait for the turn of `count` keys."""


class _NoLimit:
    def take(self, count: int = 1) -> None:
        """At once."""


class ObstoreObjects:
    """HEADs in one bucket by `small`, copies by obstore (Rust): less CPU than boto3 takes.

    HEADs go by obstore, too, where `small` cannot speak to S3. Only success counts. For the rest
    boto3 is asked again, so that S3's answers (no such key, too busy, denied) are understood in one
    place. Threads may share it.
    """

    def __init__(self, settings: S3Settings, bucket: str) -> None:
        self._settings = settings
        self._bucket = bucket
        self._sources: dict[str, S3Store] = {}
        self._small: SmallObjects | None = None
        self._loop: LoopThread | None = None
        self._starting = Lock()

    def close(self) -> None:
        """End the loop's thread. A later `heads` starts another."""
        loop, self._loop = self._loop, None
        if loop is not None:
            if self._small is not None:
                loop.soon(self._small.close)
            loop.stop()

    def heads(self, keys: Sequence[BlobId]) -> dict[BlobId, StoredBlob]:
        """The objects now, `modified` in whole seconds, but for those that are unknown."""
        can = [key for key in keys if self._can(key)]
        return self._running().call(self._heads(can)) if can else {}

    async def _heads(self, keys: Sequence[BlobId]) -> dict[BlobId, StoredBlob]:
        blobs: dict[BlobId, StoredBlob] = {}
        waiting, seconds = iter(keys), self._settings.timeout.total_seconds()

        async def ask() -> None:
            for key in waiting:
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        if (about := await self._head(key)) is not None:
                            blobs[key] = StoredBlob(key, *about)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(len(keys), _IN_FLIGHT)):
                group.create_task(ask())
        return blobs

    async def _head(self, key: BlobId) -> tuple[int, datetime] | None:
        if self._small is not None:
            return await self._small.head(key)
        try:
            meta = await obstore.head_async(self._store, key)
        except CRATE_ERRORS:
            return None
        return int(meta["size"]), meta["last_modified"]

    def _running(self) -> LoopThread:
        with self._starting:
            if self._loop is None:
                if speaks_to(self._settings):
                    self._small = SmallObjects(self._settings, self._bucket)
                self._loop = LoopThread(f"HEADs of bucket {self._bucket}")
                self._loop.start()
            return self._loop

    def copy(self, source: str, key: BlobId, to: BlobId) -> bool:
        """Copy an object of the bucket `source` into this one, within S3; False: perhaps not
        copied.
        """
        if not self._can(key) or not self._can(to):
            return False
        if source not in self._sources:
            self._sources[source] = self._made(source, "")
        try:
            obstore.copy(self._sources[source], key, f"{self._bucket}/{to}")
        except CRATE_ERRORS:
            return False
        return True

    def _can(self, key: str) -> bool:
        """Not with credentials of the machine, nor keys that the crate would change."""
        credentials = (self._settings.access_key, self._settings.secret_key)
        return None not in credentials and not is_impossible(key) and not needs_boto3(key)

    @cached_property
    def _store(self) -> S3Store:
        return self._made(self._bucket, f"/{self._bucket}")

    def _made(self, bucket: str, path: str) -> S3Store:
        """One request, no retries. Without a path, keys begin with a bucket's name."""
        timeout, url = self._settings.timeout * 2, self._settings.endpoint.rstrip("/") + path
        return s3_store(self._settings, bucket, timeout=timeout, retries=0, bucket_url=url)


class BulkBlobs(AdminBlobs):
    """One bucket, asked by several threads. A SlowDown is raised after five minutes of waiting."""

    def __init__(
        self,
        settings: S3Settings,
        bucket: str,
        turns: Turns | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(settings, bucket)
        self._turns = turns or _NoLimit()
        self._sleep = sleep
        self._obstore = ObstoreObjects(settings, bucket)

    def close(self) -> None:
        """End the threads."""
        if pool := self.__dict__.pop("_pool", None):
            pool.shutdown()
        self._obstore.close()

    def __enter__(self) -> BulkBlobs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def pages(self, low: str = "", high: str = "") -> Iterator[list[StoredBlob]]:
        """All objects whose key is in [low, high) (empty: no bound), a page at a time.

        In S3's order of keys (UTF-8). Raises StoreUnavailable when a page cannot be had: a listing
        that ends is whole.
        """
        return (page for page, _ in self._pages(low, high))

    def first_page(self, low: str = "", high: str = "") -> tuple[list[StoredBlob], bool]:
        """The first objects of [low, high), up to 1,000; and whether there are more pages."""
        return next(self._pages(low, high))

    def first(self, low: str, high: str = "") -> BlobId | None:
        """The smallest key in [low, high); None when there is none."""
        return next((blob.key for page, _ in self._pages(low, high, 1) for blob in page), None)

    def _pages(
        self, low: str, high: str, most: int = KEYS_A_PAGE
    ) -> Iterator[tuple[list[StoredBlob], bool]]:
        """Pages of the range, each with whether there may be another one."""
        prefix = prefix_of(low, high)
        request = {"Prefix": prefix} if prefix else {}
        if low != prefix:
            request["StartAfter"] = before(low)
        for page, more in self._listing(request, most):
            is_beyond = bool(high and page and page[-1].key >= high)
            yield [blob for blob in page if inside(blob.key, low, high)], more and not is_beyond
            if is_beyond:
                return

    def heads(self, keys: Sequence[BlobId]) -> dict[BlobId, StoredBlob | None]:
        """The state of each object now; None where there is none.

        `modified` is in whole seconds.
        """
        blobs = self._obstore.heads(keys)
        rest = [key for key in keys if key not in blobs]
        asked = dict(zip(rest, self._concurrently(self._head, rest), strict=True))
        return {key: blobs.get(key) or asked[key] for key in keys}

    def copies(self, source: str, targets: Mapping[BlobId, BlobId]) -> dict[BlobId, str]:
        """Copy objects (key there -> key here) within S3. Those that failed, with the reason."""
        keys = list(targets)
        answers = self._concurrently(lambda key: self._copy(source, key, targets[key]), keys)
        return {key: why for key, why in zip(keys, answers, strict=True) if why is not None}

    def _head(self, key: BlobId) -> StoredBlob | None:
        ask = partial(self.client.head_object, Bucket=self.bucket, Key=key)
        answer = self._unless(NO_KEY, ask)
        return answer and StoredBlob.of(answer, key, "ContentLength")

    def _copy(self, source: str, key: BlobId, to: BlobId) -> str | None:
        self._turns.take()
        if self._obstore.copy(source, key, to):
            return None
        origin = {"Bucket": source, "Key": key}
        copy = partial(self.client.copy_object, Bucket=self.bucket, Key=to, CopySource=origin)
        try:
            return "the object is not there" if self._unless(NO_KEY, copy) is None else None
        except StoreUnavailable as error:
            if isinstance(error, SlowDown) or not isinstance(error.__cause__, ClientError):
                raise
            return str(error)  # S3 answered: it is about this object, and stops no other

    def _delete(self, keys: Sequence[BlobId]) -> dict[BlobId, str]:
        failed: dict[BlobId, str] = {}
        began, tries = time.monotonic(), 0
        while keys:
            self._turns.take(len(keys))
            codes = super()._delete(keys)
            keys = [key for key, code in codes.items() if code in BUSY]
            refused = codes.keys() - set(keys)
            failed |= {key: f"S3 would not delete it: {codes[key]}" for key in refused}
            if keys and time.monotonic() - began > PATIENCE_S:
                return failed | dict.fromkeys(keys, "S3 is too busy")
            if keys:
                self._sleep(_pause(tries))
                tries += 1
        return failed

    def _ask(self, ask: Callable[[], T]) -> T:
        """As AdminBlobs'; SlowDown when patience is over."""
        began, tries = time.monotonic(), 0
        while True:
            try:
                return super()._ask(ask)
            except SlowDown:
                pause = _pause(tries)
                if time.monotonic() - began + pause > PATIENCE_S:
                    raise
            self._sleep(pause)
            tries += 1

    def _concurrently(self, work: Callable[[K], T], items: Sequence[K]) -> list[T]:
        return list(self._pool.map(work, items)) if items else []

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_THREADS, thread_name_prefix="blobs")


def _pause(tries: int) -> float:
    return pause_seconds(tries, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
