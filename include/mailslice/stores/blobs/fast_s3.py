"""HEADs and copies by `small`, which take less CPU than boto3's."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import TypeVar

from mailslice.model.mail import BlobId
from mailslice.model.settings import S3Settings
from mailslice.stores.blobs.keys import is_impossible, needs_boto3
from mailslice.stores.blobs.small import SmallObjects, can_serve
from mailslice.stores.blobs.store import StoredBlob
from mailslice.stores.loop_thread import LoopThread

_IN_FLIGHT = 16
T = TypeVar("T")


class FastRequests:
    """HEADs in one bucket, and copies into it. Threads may share it.

    Only successes are reported. The caller repeats the rest by boto3, so that one place interprets
    S3's other answers (no such key, too busy, denied).
    """

    def __init__(self, settings: S3Settings, bucket: str) -> None:
        self._settings = settings
        self._bucket = bucket
        self._is_usable = can_serve(settings)
        self._running: tuple[SmallObjects, LoopThread] | None = None
        self._starting = Lock()

    def close(self) -> None:
        """Ends the loop's thread. A later request starts another."""
        running, self._running = self._running, None
        if running is not None:
            small, loop = running
            loop.call_soon(small.close)
            loop.stop()

    def heads(self, keys: Sequence[BlobId]) -> dict[BlobId, StoredBlob]:
        """The objects' state now, `modified` in whole seconds. Keys without success are absent."""
        seconds = self._settings.timeout.total_seconds()
        answers = self._ask_all(
            filter(self._can, keys), lambda small, key: small.head(key), seconds
        )
        return {key: StoredBlob(key, *answer) for key, answer in answers.items()}

    def copies(self, source: str, targets: Mapping[BlobId, BlobId]) -> Collection[BlobId]:
        """Copies objects of bucket `source` into this one, within S3. Returns the keys copied."""
        possible = (key for key, to in targets.items() if self._can(key) and self._can(to))
        seconds = 2 * self._settings.timeout.total_seconds()
        return self._ask_all(
            possible, lambda small, key: small.copy(source, key, targets[key]), seconds
        )

    def _ask_all(
        self,
        keys: Iterable[BlobId],
        ask: Callable[[SmallObjects, BlobId], Awaitable[T | None]],
        seconds: float,
    ) -> dict[BlobId, T]:
        """The answers by key, without those that are None or take more than `seconds`."""
        if not (waiting := list(keys)):
            return {}
        small, loop = self._started()
        answers: dict[BlobId, T] = {}

        async def ask_in_turn() -> None:
            while waiting:
                key = waiting.pop()
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        if (answer := await ask(small, key)) is not None:
                            answers[key] = answer

        async def ask_all() -> None:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(len(waiting), _IN_FLIGHT)):
                    group.create_task(ask_in_turn())

        loop.call(ask_all())
        return answers

    def _started(self) -> tuple[SmallObjects, LoopThread]:
        with self._starting:
            if self._running is None:
                small = SmallObjects(self._settings, self._bucket)
                loop = LoopThread(f"requests to bucket {self._bucket}")
                loop.start()
                self._running = small, loop
            return self._running

    def _can(self, key: str) -> bool:
        """Whether this client can ask for the key: see `can_serve` and `needs_boto3`."""
        return self._is_usable and not is_impossible(key) and not needs_boto3(key)
