"""Many requests beside each other, bounded, by the driver's callbacks: no thread a request."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

from cassandra import OperationTimedOut
from cassandra.cluster import ResponseFuture, ResultSet

Page = tuple[Sequence[object], list[tuple[Any, ...]]]
Again: TypeAlias = Callable[[BaseException, ResponseFuture, Callable[..., ResponseFuture]], ResultSet]
Done: TypeAlias = "Callable[[Job, Any, BaseException | None], None]"


class Job:
    """One request and its pages. The next page is asked for when the last one is taken, so that it comes while that one is worked on.

    `send(paging_state=..., host=...)` asks for a page; each is a request of its own, with its own time-out. `again(error, future, send)` gives a page whose
    request failed, or raises.
    """

    def __init__(self, params: Sequence[object], send: Callable[..., ResponseFuture], again: Again) -> None:
        self.params = params
        self._send = send
        self._again = again
        self._state: bytes | None = None
        self._future: ResponseFuture = None
        self._done: Done = _nobody

    def start(self, done: Done) -> None:
        """Send. `done` is called on the driver's thread for every page, with rows or with an error."""
        self._done = done
        self._ask()

    def ask_on(self) -> bool:
        """Ask for the next page; False when that was the last."""
        if not self._future.has_more_pages:
            return False
        self._state = ResultSet(self._future, []).paging_state
        self._ask()
        return True

    def ask_again(self, error: BaseException) -> Any:
        """The rows of the page that ended with `error`, and of no other: those before it were given. Waits for them; raises when they do not come."""
        found = self._again(error, self._future, partial(self._send, paging_state=self._state))
        self._future = found.response_future
        return found.current_rows

    def _ask(self) -> None:
        self._future = self._send(paging_state=self._state)
        self._future.add_callbacks(lambda rows: self._done(self, rows, None), lambda error: self._done(self, None, error))


def _nobody(*_: object) -> None:
    """Hears of a job that was not started."""


def as_they_come(jobs: Iterable[Job], in_flight: int, patience: float) -> Iterator[Page]:
    """Pages in the order of their arrival."""
    answers: queue.SimpleQueue[tuple[Job, Any, BaseException | None]] = queue.SimpleQueue()
    waiting = iter(jobs)
    running = 0
    exhausted = False
    while True:
        while running < in_flight and not exhausted:
            job = next(waiting, None)
            if job is None:
                exhausted = True
            else:
                job.start(lambda *answer: answers.put(answer))
                running += 1
        if not running:
            return
        job, rows, error = _take(answers, patience)
        if error is not None:
            rows = job.ask_again(error)
        if not job.ask_on():
            running -= 1
        yield job.params, rows or []


def in_order(jobs: Iterable[Job], in_flight: int, patience: float) -> Iterator[Page]:
    """Pages in the order of the jobs: the first page of each waits until its turn, further pages are asked for only then."""
    waiting = iter(jobs)
    started: deque[tuple[Job, queue.SimpleQueue[tuple[Job, Any, BaseException | None]]]] = deque()

    def start_more() -> None:
        while len(started) < in_flight and (job := next(waiting, None)) is not None:
            answers: queue.SimpleQueue[tuple[Job, Any, BaseException | None]] = queue.SimpleQueue()
            job.start(lambda *answer, to=answers: to.put(answer))
            started.append((job, answers))

    start_more()
    while started:
        job, answers = started[0]
        more = True
        while more:
            _, rows, error = _take(answers, patience)
            if error is not None:
                rows = job.ask_again(error)
            more = job.ask_on()
            if not more:
                started.popleft()
                start_more()
            yield job.params, rows or []


def _take(answers: queue.SimpleQueue[Any], patience: float) -> Any:
    try:
        return answers.get(timeout=patience)
    except queue.Empty:
        raise OperationTimedOut(errors={"client": f"no answer within {patience:.0f} s"}) from None
