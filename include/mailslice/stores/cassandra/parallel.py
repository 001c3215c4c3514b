"""Many requests beside each other, bounded, by the driver's callbacks: no thread a request."""

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
"""Whose, to which of its requests, and the rows or an error."""
Done: TypeAlias = Callable[[Answer], None]


class Job:
    """One request and its pages.

    The next page is asked for when the last one is taken: it comes while that one is worked on.
    `send(paging_state=..., host=...)` asks for a page. Each page is a request of its own, with its
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
        self._done: Done = lambda _: None  # nobody hears of a job that is not started

    def start(self, done: Done) -> None:
        """Send. `done` is called on the driver's thread for every answer."""
        self._done = done
        self._ask()

    def ask_on(self) -> bool:
        """Ask for the next page; False when that was the last."""
        if not self._future.has_more_pages:
            return False
        self._state = ResultSet(self._future, []).paging_state
        self._ask()
        return True

    def takes(self, turn: int) -> bool:
        """Whether it is awaited: the driver can give a time-out, and late what came after all."""
        if self._awaited != turn:
            return False
        self._awaited = 0
        return True

    def retry(self, error: BaseException) -> Any:
        """Waits for the rows of the page that ended with `error`. Raises when they do not come."""
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
    """Pages as they arrive; `ordered`: in the order of the jobs, and beyond its first, a job's are
    asked for in its turn.
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
        if job.takes(turn):
            return job, rows, error
