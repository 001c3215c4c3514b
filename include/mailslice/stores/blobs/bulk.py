"""Many objects of a bucket at once, for maintenance: listings by ranges of keys, HEADs, copies and deletes, each patient with a busy S3."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import cached_property, partial
from typing import Any, Protocol, TypeVar

from botocore.exceptions import ClientError

from mailslice.model.clock import Clock, system_clock
from mailslice.model.errors import SlowDown, StoreUnavailable
from mailslice.model.mail import BlobId
from mailslice.model.settings import S3Settings
from mailslice.stores.blobs.admin import BUSY, KEYS_A_DELETE, AdminBlobs, StoredBlob
from mailslice.stores.blobs.key_ranges import before, inside, prefix_of
from mailslice.stores.blobs.quick import QuickObjects

PATIENCE_S = 300.0
"""How long one request is tried again while S3 says that it is too busy."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 15.0
_THREADS = 16
_KEYS_A_PAGE = 1000
_MISSING = frozenset({"NoSuchKey", "404", "NotFound"})

T = TypeVar("T")
K = TypeVar("K")


class Turns(Protocol):
    """What holds copies and deletes to so many keys a second: `duty.throttle.Throttle` is one."""

    def take(self, count: int = 1) -> None:
        """Wait for the turn of `count` keys."""


class _NoLimit:
    def take(self, count: int = 1) -> None:
        """At once."""


class BulkBlobs(AdminBlobs):
    """One bucket, asked by several threads. A SlowDown is waited out, up to five minutes for each request, and raised then."""

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
        self._quick = QuickObjects(settings, bucket)

    def close(self) -> None:
        """End the threads."""
        if pool := self.__dict__.pop("_pool", None):
            pool.shutdown()

    def __enter__(self) -> BulkBlobs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def bucket_exists(self) -> bool:
        """As AdminBlobs'."""
        found: bool = self._patiently(super().bucket_exists)
        return found

    def now_skew(self, clock: Clock = system_clock) -> timedelta:
        """As AdminBlobs'."""
        found: timedelta = self._patiently(partial(super().now_skew, clock))
        return found

    def pages(self, low: str = "", high: str = "") -> Iterator[list[StoredBlob]]:
        """All objects whose key is in [low, high) (empty: no bound), in S3's order of keys (UTF-8), a page at a time.

        Raises StoreUnavailable when a page cannot be had: a listing that ends is whole.
        """
        return (page for page, _ in self._pages(low, high, _KEYS_A_PAGE))

    def first_page(self, low: str = "", high: str = "") -> tuple[list[StoredBlob], bool]:
        """The first objects of [low, high), up to 1,000; and whether there are more pages."""
        return next(self._pages(low, high, _KEYS_A_PAGE))

    def first(self, low: str, high: str = "") -> BlobId | None:
        """The smallest key in [low, high); None when there is none."""
        return next((blob.key for page, _ in self._pages(low, high, 1) for blob in page), None)

    def _pages(self, low: str, high: str, most: int) -> Iterator[tuple[list[StoredBlob], bool]]:
        """Pages of the range, each with whether there may be another one."""
        prefix = prefix_of(low, high)
        wanted = {"Prefix": prefix} if prefix else {}
        more = {"StartAfter": before(low)} if low != prefix else {}
        while True:
            page = self._patiently(
                partial(
                    self.client.list_objects_v2, Bucket=self.bucket, MaxKeys=most, **wanted, **more
                )
            )
            found = [
                StoredBlob(BlobId(each["Key"]), int(each["Size"]), each["LastModified"])
                for each in page.get("Contents", ())
            ]
            goes_on = bool(page.get("IsTruncated")) and not (
                high and found and found[-1].key >= high
            )
            yield [each for each in found if inside(each.key, low, high)], goes_on
            if not goes_on:
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def heads(self, keys: Sequence[BlobId]) -> dict[BlobId, StoredBlob | None]:
        """What S3 says of each object now; None where there is none. `modified` is in whole seconds, as HTTP has it."""
        return dict(zip(keys, self._beside(self._head, keys), strict=True))

    def copies(self, source: str, wanted: Mapping[BlobId, BlobId]) -> dict[BlobId, str]:
        """Copy objects of the bucket `source` into this one, within S3, with their metadata: key there -> key here. Those that failed, with the reason."""
        keys = list(wanted)
        answers = self._beside(lambda key: self._copy(source, key, wanted[key]), keys)
        return {key: why for key, why in zip(keys, answers, strict=True) if why is not None}

    def delete(self, keys: Iterable[BlobId]) -> dict[BlobId, str]:
        """Delete, up to 1,000 keys a request; a key that is not there counts as deleted. Those that failed, with the reason."""
        left, failed = list(keys), dict[BlobId, str]()
        for at in range(0, len(left), KEYS_A_DELETE):
            failed |= self._delete(left[at : at + KEYS_A_DELETE])
        return failed

    def _head(self, key: BlobId) -> StoredBlob | None:
        if (there := self._quick.head(key)) is not None:
            return there
        try:
            found = self._patiently(
                lambda: self.client.head_object(Bucket=self.bucket, Key=key), key
            )
        except _Absent:
            return None
        return StoredBlob(key, int(found["ContentLength"]), found["LastModified"])

    def _copy(self, source: str, key: BlobId, to: BlobId) -> str | None:
        self._turns.take()
        if self._quick.copy(source, key, to):
            return None
        try:
            self._patiently(
                lambda: self.client.copy_object(
                    Bucket=self.bucket, Key=to, CopySource={"Bucket": source, "Key": key}
                ),
                key,
            )
        except _Absent:
            return "the object is not there"
        except StoreUnavailable as error:
            if isinstance(error, SlowDown) or not isinstance(error.__cause__, ClientError):
                raise
            return str(error)  # S3 answered: it is about this object, and stops no other
        return None

    def _delete(self, keys: list[BlobId]) -> dict[BlobId, str]:
        failed: dict[BlobId, str] = {}
        begun, pause = time.monotonic(), _FIRST_PAUSE_S
        while keys:
            self._turns.take(len(keys))
            objects = [{"Key": key} for key in keys]
            answer = self._patiently(
                partial(
                    self.client.delete_objects,
                    Bucket=self.bucket,
                    Delete={"Objects": objects, "Quiet": True},
                )
            )
            errors = {
                BlobId(each["Key"]): str(each.get("Code", ""))
                for each in answer.get("Errors", ())
                if each.get("Code") not in _MISSING
            }
            busy = [key for key, code in errors.items() if code in BUSY]
            failed |= {
                key: f"S3 would not delete it: {code}"
                for key, code in errors.items()
                if code not in BUSY
            }
            if busy and time.monotonic() - begun > PATIENCE_S:
                return failed | dict.fromkeys(busy, "S3 is too busy")
            keys = busy
            if keys:
                self._sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, _LONGEST_PAUSE_S)
        return failed

    def _patiently(self, ask: Callable[[], Any], key: BlobId | None = None) -> Any:
        """The answer. Raises _Absent when S3 has no such key, what `AdminBlobs` raises otherwise, SlowDown when patience is over."""
        begun, pause = time.monotonic(), _FIRST_PAUSE_S
        while True:
            try:
                with self._translated():
                    try:
                        return ask()
                    except ClientError as error:
                        if (
                            key is not None
                            and error.response.get("Error", {}).get("Code") in _MISSING
                        ):
                            raise _Absent from error
                        raise
            except SlowDown:
                if time.monotonic() - begun + pause > PATIENCE_S:
                    raise
                self._sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _beside(self, work: Callable[[K], T], items: Sequence[K]) -> list[T]:
        return list(self._pool.map(work, items)) if items else []

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_THREADS, thread_name_prefix="blobs")


class _Absent(Exception):
    """S3 has no such key."""
