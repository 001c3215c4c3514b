"""Many concurrent requests, bounded, by the driver's callbacks: without a thread each."""

import queue
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

from cassandra import OperationTimedOut
from cassandra.cluster import ResponseFuture, ResultSet

Page = tuple[Sequence[object], list[tuple[Any, ...]]]
Send: TypeAlias = Callable[..., ResponseFuture]
RetryPage: TypeAlias = Callable[[BaseException, ResponseFuture, Send], ResultSet]
Answer: TypeAlias = "tuple[Job, int, Any, BaseException | None]"
"""The job, the number of its request, the rows, and the error."""
Done: TypeAlias = Callable[[Answer], None]


class Job:
    """One request and its pages.

    The next page is requested when the last one is taken, so it arrives while that is processed.
    `send(paging_state=..., host=...)` requests a page. Each page is a request of its own, with its
    own time-out. `retry_page(error, future, send)` gives a page whose request failed, or raises.
    """

    def __init__(self, params: Sequence[object], send: Send, retry_page: RetryPage) -> None:
        self.params = params
        self._send = send
        self._retry_page = retry_page
        self._state: bytes | None = None
        self._future: ResponseFuture = None
        self._turn = 0
        self._awaited = 0
        self._done: Done = lambda _: None

    def start(self, done: Done) -> None:
        """Sends the request. Calls `done` on the driver's thread for every answer."""
        self._done = done
        self._ask()

    def ask_on(self) -> bool:
        """Requests the next page. False: there is none."""
        if not self._future.has_more_pages:
            return False
        self._state = ResultSet(self._future, []).paging_state
        self._ask()
        return True

    def is_awaited(self, turn: int) -> bool:
        """Whether request `turn` is awaited: the driver may answer late, after its time-out."""
        if self._awaited != turn:
            return False
        self._awaited = 0
        return True

    def retry(self, error: BaseException) -> Any:
        """Waits for the rows of the page that failed with `error`. Raises if they do not come."""
        send = partial(self._send, paging_state=self._state)
        result = self._retry_page(error, self._future, send)
        self._future = result.response_future
        return result.current_rows

    def _ask(self) -> None:
        self._turn += 1
        self._awaited = turn = self._turn
        self._future = self._send(paging_state=self._state)
        self._future.add_callbacks(
            lambda rows: self._done((self, turn, rows, None)),
            lambda error: self._done((self, turn, None, error)),
        )


def pages(jobs: Iterable[Job], in_flight: int, patience: float, *, ordered: bool) -> Iterator[Page]:
    """Pages as they arrive. `ordered`: in the order of the jobs; further pages of a job are then
    requested only when it is the first in order.
    """
    waiting = iter(jobs)
    arrived: queue.SimpleQueue[Answer] = queue.SimpleQueue()
    started: dict[Job, queue.SimpleQueue[Answer]] = {}

    def start_more() -> None:
        for job in islice(waiting, in_flight - len(started)):
            started[job] = queue.SimpleQueue() if ordered else arrived
            job.start(started[job].put)

    start_more()
    while started:
        job, rows, error = _take(next(iter(started.values())), patience)
        if error is not None:
            rows = job.retry(error)
        if not job.ask_on():
            del started[job]
            start_more()
        yield job.params, rows or []


def _take(
    answers: queue.SimpleQueue[Answer], patience: float
) -> tuple[Job, Any, BaseException | None]:
    while True:
        try:
            job, turn, rows, error = answers.get(timeout=patience)
        except queue.Empty:
            errors = {"client": f"no answer within {patience:.0f} s"}
            raise OperationTimedOut(errors=errors) from None
        if job.is_awaited(turn):
            return job, rows, error
