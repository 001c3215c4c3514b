"""HEADs by `small` and copies by obstore (Rust), which take less CPU than boto3's."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock

import obstore
from obstore.store import S3Store

from mailslice.model.mail import BlobId
from mailslice.model.settings import S3Settings
from mailslice.stores.blobs.keys import is_impossible, needs_boto3
from mailslice.stores.blobs.object_store import CRATE_ERRORS, s3_store
from mailslice.stores.blobs.small import SmallObjects, speaks_to
from mailslice.stores.blobs.store import StoredBlob
from mailslice.stores.loop_thread import LoopThread

_IN_FLIGHT = 16


class FastRequests:
    """HEADs in one bucket, and copies into it. Threads may share it.

    Only success counts. For the rest boto3 is asked again, so that S3's answers (no such key, too
    busy, denied) are understood in one place.
    """

    def __init__(self, settings: S3Settings, bucket: str) -> None:
        self._settings = settings
        self._bucket = bucket
        self._sources: dict[str, S3Store] = {}
        self._heads: tuple[SmallObjects, LoopThread] | None = None
        self._starting = Lock()

    def close(self) -> None:
        """End the loop's thread. A later `heads` starts another."""
        heads, self._heads = self._heads, None
        if heads is not None:
            small, loop = heads
            loop.soon(small.close)
            loop.stop()

    def heads(self, keys: Sequence[BlobId]) -> dict[BlobId, StoredBlob]:
        """The objects now, `modified` in whole seconds, but for those that are unknown."""
        possible = [key for key in keys if self._can(key)]
        if not possible or not speaks_to(self._settings):
            return {}
        small, loop = self._started()
        return loop.call(self._asked(small, possible))

    async def _asked(self, small: SmallObjects, keys: Sequence[BlobId]) -> dict[BlobId, StoredBlob]:
        blobs: dict[BlobId, StoredBlob] = {}
        waiting, seconds = iter(keys), self._settings.timeout.total_seconds()

        async def ask() -> None:
            for key in waiting:
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        if (answer := await small.head(key)) is not None:
                            blobs[key] = StoredBlob(key, *answer)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(len(keys), _IN_FLIGHT)):
                group.create_task(ask())
        return blobs

    def _started(self) -> tuple[SmallObjects, LoopThread]:
        with self._starting:
            if self._heads is None:
                loop = LoopThread(f"HEADs of bucket {self._bucket}")
                loop.start()
                self._heads = SmallObjects(self._settings, self._bucket), loop
            return self._heads

    def copy(self, source: str, key: BlobId, to: BlobId) -> bool:
        """Copies an object of the bucket `source` into this one, within S3. False: perhaps not."""
        if not self._can(key) or not self._can(to):
            return False
        if source not in self._sources:
            # One request, no retries. The URL names no bucket: paths begin with a bucket's name.
            timeout, url = self._settings.timeout * 2, self._settings.endpoint.rstrip("/")
            self._sources[source] = s3_store(
                self._settings, source, timeout=timeout, retries=0, bucket_url=url
            )
        try:
            obstore.copy(self._sources[source], key, f"{self._bucket}/{to}")
        except CRATE_ERRORS:
            return False
        return True

    def _can(self, key: str) -> bool:
        """Not with credentials of the machine, nor keys that the crate would change."""
        credentials = (self._settings.access_key, self._settings.secret_key)
        return None not in credentials and not is_impossible(key) and not needs_boto3(key)
