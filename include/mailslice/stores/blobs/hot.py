"""The blob store of the hot path: many requests in flight on no thread of ours.

Small objects go by a client of our own on the event loop (`small`).
What it does not do, and whatever does not go well, goes by obstore (Rust).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from mailslice.model import crash
from mailslice.model.errors import ContentMissing, MailsliceError, StoreUnavailable
from mailslice.model.mail import BlobId
from mailslice.model.settings import S3Settings
from mailslice.stores.blobs.crate import CRATE_ERRORS, s3_store
from mailslice.stores.blobs.keys import is_impossible, needs_boto3, s3_location, wrong_key
from mailslice.stores.blobs.small import SMALL, SmallObjects, speaks_to
from mailslice.stores.blobs.window import Window

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from mailslice.stores.blobs.admin import AdminBlobs

_SLOWEST_BYTES_A_SECOND = 1024 * 1024
"""A request may take the time-out, and as long on top as its bytes take at this speed."""
_CHUNK = 1024 * 1024
_BOTO_THREADS = 4
_HEADS_AT_ONCE = 64
T = TypeVar("T")
_NOBODYS_KEY = "mailslice-asks-for-what-is-not-there"


class HotBlobs:
    """One bucket, for one event loop. Raises StoreUnavailable, or BadSetting for a refused key."""

    def __init__(self, settings: S3Settings, bucket: str) -> None:
        self._settings = settings
        self._bucket = bucket
        self._seconds = settings.timeout.total_seconds()
        self._store = s3_store(settings, bucket, timeout=timedelta(hours=1), retries=2)
        self._threads: ThreadPoolExecutor | None = None
        self._small = SmallObjects(settings, bucket) if speaks_to(settings) else None
        self.puts, self.gets = Window(), Window()
        """Of small objects; large ones are bounded by who holds their bytes."""

    def use_obstore_alone(self) -> None:
        """No client of our own for small objects: for measurements."""
        self._small = None

    def close(self) -> None:
        """Closes the connections that are unused."""
        if self._small is not None:
            self._small.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None

    @cached_property
    def _admin(self) -> AdminBlobs:
        """For what obstore cannot do, in a thread. Imported when needed: boto3 takes 25 MiB."""
        from mailslice.stores.blobs.admin import AdminBlobs

        return AdminBlobs(self._settings, self._bucket)

    async def _by_boto(self, ask: Callable[..., T], *args: object) -> T:
        """In threads of its own: a HEAD that hangs must not hold up what others do in the loop's."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_BOTO_THREADS, "boto3")
        return await asyncio.get_running_loop().run_in_executor(self._threads, ask, *args)

    async def bucket_is_there(self) -> bool:
        """Whether the bucket exists, by S3; False also when S3 may not tell us."""
        try:
            async with asyncio.timeout(self._seconds):
                await obstore.get_async(self._store, _NOBODYS_KEY)
        except FileNotFoundError as error:
            return "NoSuchKey" in str(error)
        except (UnauthenticatedError, PermissionDeniedError):
            return False
        except CRATE_ERRORS as error:
            raise self._meaning(error) from error
        return True

    async def put(self, blob_id: BlobId, content: Buffer) -> None:
        """Writes the object in one request, over an older one: its last-modified moves."""
        size = memoryview(content).nbytes
        if _needs_boto(blob_id):
            await self._by_boto(lambda: self._admin.put(blob_id, bytes(content)))
            return
        try:
            async with self.puts.entered() if size <= SMALL else nullcontext():
                async with asyncio.timeout(self._allowed(size)):
                    await self._put(blob_id, content, size)
        except CRATE_ERRORS as error:
            raise self._meaning(error) from error
        crash.point("blobs:put")

    async def _put(self, blob_id: BlobId, content: Buffer, size: int) -> None:
        if self._small is None or size > SMALL or not await self._small.put(blob_id, content):
            await obstore.put_async(self._store, blob_id, content, use_multipart=False)

    async def open(self, blob_id: BlobId) -> OpenBlob:
        """Asks for the object; its size is known before its bytes. Raises ContentMissing."""
        if _needs_boto(blob_id):
            content = await self._by_boto(lambda: self._admin.get(blob_id))
            return OpenBlob(self, blob_id, content, len(content))
        try:
            async with self.gets.entered(), asyncio.timeout(self._seconds):
                return await self._opened(blob_id)
        except FileNotFoundError as error:
            raise await self._missing(blob_id, error) from error
        except CRATE_ERRORS as error:
            raise self._meaning(error) from error

    async def _opened(self, blob_id: BlobId) -> OpenBlob:
        part = None if self._small is None else await self._small.get(blob_id)
        if part is not None:
            return OpenBlob(self, blob_id, *part)
        try:
            first = await obstore.get_range_async(self._store, blob_id, start=0, end=SMALL)
        except (FileNotFoundError, UnauthenticatedError, PermissionDeniedError):
            raise
        except BaseError:  # an empty object has no part, and some server may give none
            content = await (await obstore.get_async(self._store, blob_id)).bytes_async()
            return OpenBlob(self, blob_id, content, memoryview(content).nbytes)
        size = len(first)
        if size == SMALL:
            size = int((await obstore.head_async(self._store, blob_id))["size"])
        return OpenBlob(self, blob_id, first, size)

    async def get(self, blob_id: BlobId) -> bytes:
        """All bytes of the object; see `open`."""
        return b"".join([chunk async for chunk in (await self.open(blob_id)).chunks()])

    async def missing(self, blob_ids: Iterable[BlobId]) -> set[BlobId]:
        """Those that do not exist, by a HEAD each. Raises StoreUnavailable without a bucket."""
        at_once = asyncio.Semaphore(_HEADS_AT_ONCE)

        async def one(blob_id: BlobId) -> BlobId | None:
            async with at_once, asyncio.timeout(self._seconds):
                if _needs_boto(blob_id):
                    return None if await self._by_boto(self._exists, blob_id) else blob_id
                try:
                    await obstore.head_async(self._store, blob_id)
                except FileNotFoundError:
                    return blob_id
            return None

        try:
            missing_ids = {
                answer for answer in await asyncio.gather(*map(one, blob_ids)) if answer is not None
            }
        except CRATE_ERRORS as error:
            raise self._meaning(error) from error
        if missing_ids and not await self.bucket_is_there():
            raise StoreUnavailable(
                f"S3 at {s3_location(self._settings)}: there is no bucket {self._bucket!r}, or it may "
                "not be read"
            )
        return missing_ids

    async def delete_many(self, blob_ids: Sequence[BlobId]) -> None:
        """Deletes them in one request (up to 1,000); what is not there counts as deleted."""
        if not blob_ids:
            return
        if any(_needs_boto(blob_id) for blob_id in blob_ids):
            await self._by_boto(lambda: self._admin.delete_many(blob_ids))
            return
        try:
            async with asyncio.timeout(self._seconds):
                await obstore.delete_async(self._store, list(blob_ids))
        except CRATE_ERRORS as error:
            raise self._meaning(error) from error
        crash.point("blobs:deleted")

    async def _missing(self, blob_id: BlobId, error: FileNotFoundError) -> MailsliceError:
        """Asked twice, as a mail is dead-lettered for it: the bucket may be gone, a proxy wrong."""
        if "NoSuchBucket" in str(error) or await self._by_boto(self._exists, blob_id):
            return self._meaning(error)
        return ContentMissing(
            f"S3 bucket {self._bucket!r} at {s3_location(self._settings)} has no object {blob_id!r}"
        )

    def _exists(self, blob_id: BlobId) -> bool:
        return self._admin.exists(blob_id)

    def _allowed(self, size: int) -> float:
        return self._seconds + size / _SLOWEST_BYTES_A_SECOND

    def _meaning(self, error: Exception) -> MailsliceError:
        if isinstance(error, UnauthenticatedError | PermissionDeniedError):
            return wrong_key(self._settings, f"bucket {self._bucket!r}")
        late = f"no answer in {self._seconds:g} s"
        why = late if isinstance(error, TimeoutError) else _first_words(error)
        return StoreUnavailable(
            f"S3 at {s3_location(self._settings)}, bucket {self._bucket!r}: {why}"
        )


class OpenBlob:
    """An object whose size and first bytes, up to 64 KiB, are here.

    The rest is asked for when it is read.
    """

    def __init__(self, blobs: HotBlobs, blob_id: BlobId, first: Buffer, size: int) -> None:
        self._blobs = blobs
        self._blob_id = blob_id
        self._first = first
        self.size = size
        """Bytes of the object."""

    async def chunks(self) -> AsyncIterator[Buffer]:
        """The bytes, piece by piece: no second copy of a large object is ever in memory."""
        if self._first:
            yield self._first
        at = memoryview(self._first).nbytes
        if at >= self.size:
            return
        blobs = self._blobs
        try:
            async with asyncio.timeout(blobs._allowed(self.size)):  # noqa: SLF001 - one thing in two classes
                rest = await obstore.get_async(
                    blobs._store,  # noqa: SLF001
                    self._blob_id,
                    options={"range": {"offset": at}},
                )
                if self.size - at <= _CHUNK:
                    yield await rest.bytes_async()
                    return
                async for chunk in rest.stream(min_chunk_size=_CHUNK):
                    yield chunk
        except FileNotFoundError as error:
            raise await blobs._missing(self._blob_id, error) from error  # noqa: SLF001
        except CRATE_ERRORS as error:
            raise blobs._meaning(error) from error  # noqa: SLF001


def _needs_boto(blob_id: str) -> bool:
    """Whether only boto3 can ask for this key, or say that nobody can."""
    return needs_boto3(blob_id) or is_impossible(blob_id)


def _first_words(error: Exception) -> str:
    """The error's text, without the chain of causes in Rust's debug form behind its first line."""
    text = str(error).partition("\n\nDebug source")[0]
    return " ".join(text.split())[:300]
