"""The content store of the hot path: many requests in flight without a Python thread each.

obstore (Rust) serves all providers. Small objects of S3 go through our own client on the event loop
(`small`) first. obstore takes over the requests that this client cannot do or fails to do.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from typing_extensions import Buffer

from mailslice.model import crash
from mailslice.model.errors import MailsliceError, StoreUnavailable
from mailslice.model.mail import BlobId
from mailslice.model.settings import BlobProvider, S3Settings
from mailslice.stores.blobs import keys
from mailslice.stores.blobs.object_store import CRATE_ERRORS, OpenBucket, open_obstore, translated
from mailslice.stores.blobs.small import SMALL, SmallObjects, can_serve
from mailslice.stores.blobs.store import BlobStore
from mailslice.stores.blobs.window import Window
from mailslice.stores.deadlines import Deadlines

_SLOWEST_BYTES_A_SECOND = 1024 * 1024
"""A request may take the time-out, plus the time that its bytes take at this speed."""
_CHUNK = 1024 * 1024
_THREADS = 4
_HEADS_AT_ONCE = 64
T = TypeVar("T")
_ABSENT_KEY = "mailslice-asks-for-what-is-not-there"


class AsyncBlobStore:
    """One bucket, for one event loop. Raises StoreUnavailable; BadSetting: refused credentials."""

    def __init__(
        self, settings: S3Settings, bucket: str, *, open_bucket: OpenBucket | None = None
    ) -> None:
        self._settings = settings
        self._bucket = bucket
        self._seconds = settings.timeout.total_seconds()
        self._deadlines = Deadlines(self._seconds)
        self._is_s3 = settings.provider is BlobProvider.S3
        self._open_bucket = open_bucket
        self._store = (open_bucket or partial(open_obstore, settings))(bucket)
        self._threads = ThreadPoolExecutor(_THREADS, "blobs")
        """Own threads: a hanging HEAD must not block the loop's default executor."""
        self.small = SmallObjects(settings, bucket) if can_serve(settings) else None
        """None: every request goes to obstore."""
        self.puts, self.gets = Window(), Window()
        """Limits for small objects. Callers bound large ones by the memory for their bytes."""

    def close(self) -> None:
        """Closes the idle connections."""
        if self.small is not None:
            self.small.close()
        self._threads.shutdown(wait=False)

    @cached_property
    def _sync(self) -> BlobStore:
        """For requests that obstore cannot do. Imported when needed: boto3 takes 25 MiB."""
        if self._is_s3:
            from mailslice.stores.blobs.factory import open_blob_store

            return open_blob_store(self._settings, self._bucket)
        from mailslice.stores.blobs.object_store import ObjectBlobStore

        return ObjectBlobStore(self._settings, self._bucket, open_bucket=self._open_bucket)

    async def _in_thread(self, ask: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, ask)

    def _path(self, blob_id: BlobId) -> str | None:
        """The object's path in obstore. None: only `_sync` can express the key, or nothing can."""
        if keys.is_impossible(blob_id) or (self._is_s3 and keys.needs_boto3(blob_id)):
            return None
        return blob_id if self._is_s3 else keys.escape_key(blob_id)

    async def bucket_exists(self) -> bool:
        """Whether the bucket exists. False, too, when S3 denies us the answer."""
        if not self._is_s3:
            return await self._in_thread(self._sync.bucket_exists)
        try:
            async with asyncio.timeout(self._seconds):
                await obstore.get_async(self._store, _ABSENT_KEY)
        except FileNotFoundError as error:
            return "NoSuchKey" in str(error)
        except (UnauthenticatedError, PermissionDeniedError):
            return False
        except CRATE_ERRORS as error:
            raise self._translate(error) from error
        return True

    async def put(self, blob_id: BlobId, content: Buffer) -> None:
        """Writes the object in one request. Over an older one, this renews its last-modified."""
        size = memoryview(content).nbytes
        if (path := self._path(blob_id)) is None:
            await self._in_thread(lambda: self._sync.put(blob_id, bytes(content)))
            return
        try:
            began = await self.puts.enter() if size <= SMALL else None
            try:
                with self._deadlines.within(self._allowed(size)):
                    small = self.small if size <= SMALL else None
                    if small is None or not await small.put(path, content):
                        await obstore.put_async(self._store, path, content, use_multipart=False)
            finally:
                if began is not None:
                    self.puts.leave(began)
        except CRATE_ERRORS as error:
            raise self._translate(error) from error
        crash.point("blobs:put")

    async def open(self, blob_id: BlobId) -> "OpenBlob":
        """Requests the object. Its size is known before the rest is read. Raises ContentMissing."""
        if (path := self._path(blob_id)) is None:
            content = await self._in_thread(lambda: self._sync.get(blob_id))
            return OpenBlob(self, blob_id, "", content, len(content))
        try:
            began = await self.gets.enter()
            try:
                with self._deadlines.within(self._seconds):
                    return await self._opened(blob_id, path)
            finally:
                self.gets.leave(began)
        except FileNotFoundError as error:
            raise await self._missing(blob_id, error) from error
        except CRATE_ERRORS as error:
            raise self._translate(error) from error

    async def _opened(self, blob_id: BlobId, path: str) -> "OpenBlob":
        if self.small is not None and (part := await self.small.get(path)) is not None:
            return OpenBlob(self, blob_id, path, *part)
        try:
            first = await obstore.get_range_async(self._store, path, start=0, end=SMALL)
        except BaseError as error:  # an empty object has no range; a server may not support ranges
            if "Error performing" in str(error) and "416 Range" not in str(error):
                raise  # the request failed
            answer = await obstore.get_async(self._store, path)
            if not answer.meta["e_tag"]:
                raise keys.no_answer(self._settings, self._bucket) from None
            size = int(answer.meta["size"])  # a large object waits for the reader's memory
            content = await answer.bytes_async() if size <= SMALL else b""
            return OpenBlob(self, blob_id, path, content, size)
        size = len(first)
        if size == SMALL:
            size = int((await obstore.head_async(self._store, path))["size"])
        return OpenBlob(self, blob_id, path, first, size)

    async def get(self, blob_id: BlobId) -> bytes:
        """All bytes of the object; see `open`."""
        return b"".join([chunk async for chunk in (await self.open(blob_id)).chunks()])

    async def missing(
        self, blob_ids: Iterable[BlobId], unanswered: set[BlobId] | None = None
    ) -> set[BlobId]:
        """The ids that have no object, by a HEAD each. Raises StoreUnavailable without a bucket.

        Ids without an answer, while the bucket gives one, go to `unanswered`. If it is None, they
        raise.
        """
        at_once = asyncio.Semaphore(_HEADS_AT_ONCE)

        async def unless_exists(blob_id: BlobId) -> BlobId | None:
            try:
                async with at_once, asyncio.timeout(self._seconds):
                    if (path := self._path(blob_id)) is None:
                        return None if await self._exists(blob_id) else blob_id
                    await obstore.head_async(self._store, path)
            except FileNotFoundError:
                return blob_id
            except (*CRATE_ERRORS, MailsliceError):
                if unanswered is None or not await self.bucket_exists():
                    raise
                unanswered.add(blob_id)
            return None

        try:
            answers = await asyncio.gather(*map(unless_exists, blob_ids))
        except CRATE_ERRORS as error:
            raise self._translate(error) from error
        missing_ids = {answer for answer in answers if answer is not None}
        if missing_ids and not await self.bucket_exists():
            raise StoreUnavailable(
                f"{keys.service(self._settings)}: there is no bucket {self._bucket!r}, or it may "
                "not be read"
            )
        return missing_ids

    async def delete_many(self, blob_ids: Sequence[BlobId]) -> None:
        """Deletes up to 1,000 objects in one request. A missing object counts as deleted."""
        if not blob_ids:
            return
        paths = [path for blob_id in blob_ids if (path := self._path(blob_id)) is not None]
        if len(paths) < len(blob_ids):
            await self._in_thread(lambda: self._sync.delete_many(blob_ids))
            return
        try:
            async with asyncio.timeout(self._seconds):
                await obstore.delete_async(self._store, paths)
        except FileNotFoundError:  # Azure answers a missing object with an error
            await self._in_thread(lambda: self._sync.delete_many(blob_ids))
        except CRATE_ERRORS as error:
            raise self._translate(error) from error
        crash.point("blobs:deleted")

    async def _missing(self, blob_id: BlobId, error: FileNotFoundError) -> MailsliceError:
        """Asks again, as the mail would be dead-lettered: the bucket may be gone, a proxy wrong."""
        if "NoSuchBucket" in str(error) or await self._exists(blob_id):
            return self._translate(error)
        return keys.missing_content(self._settings, self._bucket, blob_id)

    async def _exists(self, blob_id: BlobId) -> bool:
        return await self._in_thread(lambda: self._sync.exists(blob_id))

    def _allowed(self, size: int) -> float:
        return self._seconds + size / _SLOWEST_BYTES_A_SECOND

    def _translate(self, error: Exception) -> MailsliceError:
        return translated(self._settings, self._bucket, error)


@dataclass(slots=True, eq=False)
class OpenBlob:
    """An object: its size, and its first 64 KiB or none. The rest is requested when read."""

    _blobs: AsyncBlobStore
    _blob_id: BlobId
    _path: str
    _first: Buffer
    size: int
    """Bytes of the object."""

    async def chunks(self) -> AsyncIterator[Buffer]:
        """The bytes, piece by piece: no second copy of a large object is ever in memory."""
        if at := memoryview(self._first).nbytes:
            yield self._first
        if at >= self.size:
            return
        blobs, store = self._blobs, self._blobs._store  # noqa: SLF001 - one thing in two classes
        options: Any = {"range": {"offset": at}} if at else {}
        try:
            async with asyncio.timeout(blobs._allowed(self.size)):  # noqa: SLF001
                rest = await obstore.get_async(store, self._path, options=options)
                if (now := rest.meta["size"]) != self.size:
                    why = f"object {self._blob_id!r} had {self.size} bytes, has {now}"
                    raise StoreUnavailable(why)
                if self.size - at <= _CHUNK:
                    yield await rest.bytes_async()
                    return
                async for chunk in rest.stream(min_chunk_size=_CHUNK):
                    yield chunk
        except FileNotFoundError as error:
            raise await blobs._missing(self._blob_id, error) from error  # noqa: SLF001
        except CRATE_ERRORS as error:
            raise blobs._translate(error) from error  # noqa: SLF001
