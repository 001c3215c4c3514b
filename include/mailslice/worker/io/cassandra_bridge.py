"""Cassandra on the event loop: answers of the driver (`Bridge`), and deleted checks.

Many answers share one wake-up of the loop, and the checks of one turn of the loop share one
request (reference/hot-path.md: 93,000 checks/s of a server, against 9,400 with a request each).
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cassandra.cluster import ResponseFuture

from mailslice.model.mail import EnqueueId
from mailslice.stores.cassandra.session import CassandraSession
from mailslice.stores.deadlines import Deadlines

Rows = list[tuple[Any, ...]]
_Finished = tuple[asyncio.Future[Rows], Callable[[], None], Rows | None, BaseException | None]
MAX_IDS = 20
"""Ids a request: operators limit partitions (guardrail partition_keys_in_select)."""
_Asked = list[tuple[EnqueueId, asyncio.Future[bool]]]


@dataclass(eq=False, repr=False)
class DeletedChecks:
    """A queue's deleted checks on one event loop. Rows of its requests begin with a marked id."""

    ask_one: Callable[[EnqueueId], asyncio.Future[Rows]]
    ask_batch: Callable[[Sequence[EnqueueId]], asyncio.Future[Rows]]
    _asked: _Asked = field(init=False, default_factory=list)

    async def is_marked(self, enqueue_id: EnqueueId) -> bool:
        """Whether the mail has a mark, by a request sent after this call. Raises its error."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bool] = loop.create_future()
        self._asked.append((enqueue_id, answer))
        if len(self._asked) == 1:
            loop.call_soon(self._send)
        return await answer

    def _send(self) -> None:
        asked, self._asked = self._asked, []
        for at in range(0, len(asked), MAX_IDS):
            batch = [check for check in asked[at : at + MAX_IDS] if not check[1].done()]
            if len(batch) > 1:
                ids = [enqueue_id for enqueue_id, _ in batch]
                self._request(batch, partial(self.ask_batch, ids))
            else:
                self._request_singly(batch)

    def _request_singly(self, asked: _Asked) -> None:
        for check in asked:
            if not check[1].done():
                self._request([check], partial(self.ask_one, check[0]))

    def _request(self, asked: _Asked, send: Callable[[], asyncio.Future[Rows]]) -> None:
        try:
            send().add_done_callback(partial(self._on_answer, asked))
        except Exception as error:  # noqa: BLE001 - any error is for the waiting callers
            _fail(asked, error)

    def _on_answer(self, asked: _Asked, answered: asyncio.Future[Rows]) -> None:
        if (error := answered.exception()) is None:
            marked = {row[0] for row in answered.result()}
            for enqueue_id, answer in asked:
                if not answer.done():
                    answer.set_result(enqueue_id in marked)
        elif len(asked) > 1:
            # The replicas of one mail, or a guardrail, must not delay the others.
            self._request_singly(asked)
        else:
            _fail(asked, error)


def _fail(asked: _Asked, error: BaseException) -> None:
    for _, answer in asked:
        if not answer.done():
            answer.set_exception(error)


def _end(future: ResponseFuture) -> None:
    """Ends it as the driver's own timer does. Another request may use an answered one's id."""
    if not future._event.is_set():  # noqa: SLF001 - set before the id is free again
        future._on_timeout()  # noqa: SLF001 - forgets the request, which may be answered yet


class Bridge:
    """Brings the driver's answers to the loop on which it was made."""

    def __init__(self, session: CassandraSession) -> None:
        self._session = session
        self._seconds = session.settings.timeout.total_seconds()
        self._deadlines = Deadlines(self._seconds)
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._finished: deque[_Finished] = deque()
        self._woken = False

    def rows(self, future: ResponseFuture) -> asyncio.Future[Rows]:
        """The first page of a future of `submit`. Raises StoreUnavailable (in time), BadSetting."""
        waiting: asyncio.Future[Rows] = self._loop.create_future()
        # The driver's own timer would wake its thread once more: a tenth of a mail's CPU.
        timeout = self._deadlines.call(self._seconds, partial(_end, future))
        finish = partial(self._finish, waiting, timeout.cancel)
        future.add_callbacks(finish, lambda error: finish(None, self._session.error(error)))
        return waiting

    def _finish(
        self,
        waiting: asyncio.Future[Rows],
        end: Callable[[], None],
        rows: Rows | None,
        error: BaseException | None = None,
    ) -> None:
        """Runs on a thread of the driver, after a time-out on that of the loop."""
        with self._lock:
            self._finished.append((waiting, end, rows, error))
            if self._woken:
                return
            self._woken = True
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._hand_over)

    def _hand_over(self) -> None:
        with self._lock:
            finished, self._finished = self._finished, deque()
            self._woken = False
        for waiting, end, rows, error in finished:
            end()
            if waiting.done():
                continue
            if error is None:
                waiting.set_result(rows or [])
            else:
                waiting.set_exception(error)
