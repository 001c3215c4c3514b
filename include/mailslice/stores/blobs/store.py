"""The port of the content store (ADR 70): `BlobStore`, and `async_store.AsyncBlobStore`."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import ClassVar, TypeAlias, TypeVar

from mailslice.model.back_off import pause_seconds
from mailslice.model.batches import batches
from mailslice.model.clock import Clock, system_clock
from mailslice.model.closing import Closing
from mailslice.model.errors import SlowDown
from mailslice.model.mail import BlobId
from mailslice.model.settings import S3Settings
from mailslice.stores.blobs.key_ranges import behind

KEYS_A_PAGE = KEYS_A_DELETE = 1000
"""The most that S3 takes in one request."""
PIECE = 1024 * 1024
MISSING = "the object is not there"
"""Why a copy failed."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 15.0
_THREADS = 16

T = TypeVar("T")
K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """One object; `size` in bytes."""

    key: BlobId
    size: int
    modified: datetime


Turns: TypeAlias = Callable[[int], None]
"""Waits until this many keys may be processed: `maintenance.rate_limit.Throttle.take` is one."""


@dataclass(eq=False, repr=False)
class BlobStore(Closing, ABC):
    """One bucket, for many threads. Raises StoreUnavailable, or BadSetting for refused credentials.
    A request that the store is too busy for is repeated for `patience_s`, then raises SlowDown.
    """

    lists_ranges: ClassVar[bool]
    """Whether the store can list a range of keys without reading the keys around it."""

    page_size = KEYS_A_PAGE
    """The most objects of a page."""

    settings: S3Settings
    bucket: str
    _: KW_ONLY
    turns: Turns | None = None
    """The rate limit of the keys that are copied and deleted."""
    patience_s: float = 0.0
    sleep: Callable[[float], None] = time.sleep

    def close(self) -> None:
        if pool := self.__dict__.pop("_pool", None):
            pool.shutdown()

    @abstractmethod
    def bucket_exists(self) -> bool:
        """Whether there is such a bucket."""

    @abstractmethod
    def ensure_bucket(self) -> bool:
        """Creates the bucket if it is missing; True when it did. BadSetting: it cannot do so."""

    @abstractmethod
    def now_skew(self, clock: Clock = system_clock) -> timedelta:
        """How far the store's clock is ahead of this machine's, exact to 1 s. Zero: unknown."""

    @abstractmethod
    def put(self, blob_id: BlobId, content: bytes) -> None:
        """Writes the object, over an older one of the same key."""

    def get(self, blob_id: BlobId) -> bytes:
        """The object's bytes. Raises ContentMissing when the bucket exists, the object does not."""
        return b"".join(self.pieces(blob_id))

    @abstractmethod
    def pieces(self, blob_id: BlobId) -> Iterator[bytes]:
        """The object's bytes, piece by piece; the first one sends the request. Raises as `get`."""

    @abstractmethod
    def exists(self, blob_id: BlobId) -> bool:
        """Whether the object exists. Raises StoreUnavailable when the bucket does not."""

    @abstractmethod
    def heads(self, keys: Sequence[BlobId]) -> dict[BlobId, StoredBlob | None]:
        """The state of each object now, `modified` in whole seconds; None: no such object."""

    @abstractmethod
    def copies(self, source: str, targets: Mapping[BlobId, BlobId]) -> dict[BlobId, str]:
        """Copies objects of bucket `source` (key there -> key here). Returns failed key -> why."""

    def list(self, prefix: str = "") -> Iterator[StoredBlob]:
        return (blob for page in self.pages(prefix, behind(prefix)) for blob in page)

    def pages(self, low: str = "", high: str = "") -> Iterator[Sequence[StoredBlob]]:
        """All objects whose key is in [low, high) (empty: no bound), a page at a time.

        In the order of keys (UTF-8), if no key needs an escape. Raises StoreUnavailable when a page
        fails: a listing that ends is complete.
        """
        return (page for page, _ in self._pages(low, high))

    def first_page(self, low: str = "", high: str = "") -> tuple[Sequence[StoredBlob], bool]:
        """The first objects of [low, high), up to 1,000; and whether there are more pages."""
        return next(self._pages(low, high))

    @abstractmethod
    def first(self, low: str, high: str = "") -> BlobId | None:
        """The smallest key in [low, high); None when there is none."""

    @abstractmethod
    def _pages(
        self, low: str, high: str, limit: int | None = None
    ) -> Iterator[tuple[Sequence[StoredBlob], bool]]:
        """Pages of the range, at least one, each with whether another one may follow."""

    def delete_many(self, blob_ids: Iterable[BlobId]) -> dict[BlobId, str]:
        """Deletes 1,000 keys a request. Returns failed key -> why; a missing key is no failure."""
        failed: dict[BlobId, str] = {}
        for batch in batches(blob_ids, KEYS_A_DELETE):
            failed |= self._delete(batch)
        return failed

    @abstractmethod
    def _delete(self, keys: Sequence[BlobId]) -> dict[BlobId, str]:
        """As `delete_many`, of at most 1,000 keys."""

    def _take(self, count: int = 1) -> None:
        if self.turns is not None:
            self.turns(count)

    def _patiently(self, ask: Callable[[], T]) -> T:
        """The result of `ask`. Repeats it while it raises SlowDown, for `patience_s`."""
        began, tries = time.monotonic(), 0
        while True:
            try:
                return ask()
            except SlowDown:
                pause = pause_s(tries)
                if time.monotonic() - began + pause > self.patience_s:
                    raise
            self.sleep(pause)
            tries += 1

    def _concurrently(self, work: Callable[[K], T], items: Sequence[K]) -> Sequence[T]:
        return [*self._pool.map(work, items)] if items else []

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_THREADS, thread_name_prefix="blobs")


def pause_s(tries: int) -> float:
    return pause_seconds(tries, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
