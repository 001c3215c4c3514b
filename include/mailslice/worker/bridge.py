"""The Cassandra driver's callbacks, which come on its thread, as awaitables of the event loop.

Many share one wake-up: one each took half of the hot path's CPU (reference/hot-path.md).
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Any

from cassandra.cluster import ResponseFuture

from mailslice.stores.cassandra.session import CassandraSession

Rows = list[tuple[Any, ...]]


class Bridge:
    """Belongs to the loop on which it was made."""

    def __init__(self, session: CassandraSession) -> None:
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._finished: deque[tuple[asyncio.Future[Rows], Rows | None, BaseException | None]] = (
            deque()
        )
        self._woken = False

    def rows(self, future: ResponseFuture) -> asyncio.Future[Rows]:
        """Awaits the driver's future: the rows of its first page. Raises mailslice's errors (StoreUnavailable, BadSetting)."""
        waiting: asyncio.Future[Rows] = self._loop.create_future()
        future.add_callbacks(
            self._done, self._failed, callback_args=(waiting,), errback_args=(waiting,)
        )
        return waiting

    def _done(self, rows: Rows | None, waiting: asyncio.Future[Rows]) -> None:
        self._finish(waiting, rows, None)

    def _failed(self, error: BaseException, waiting: asyncio.Future[Rows]) -> None:
        self._finish(waiting, None, self._session.error(error))

    def _finish(
        self, waiting: asyncio.Future[Rows], rows: Rows | None, error: BaseException | None
    ) -> None:
        with self._lock:
            self._finished.append((waiting, rows, error))
            if self._woken:
                return
            self._woken = True
        try:
            self._loop.call_soon_threadsafe(self._hand_over)
        except RuntimeError:
            return  # the loop is closed: nobody waits

    def _hand_over(self) -> None:
        with self._lock:
            finished, self._finished = self._finished, deque()
            self._woken = False
        for waiting, rows, error in finished:
            if waiting.done():
                continue
            if error is None:
                waiting.set_result(rows or [])
            else:
                waiting.set_exception(error)
