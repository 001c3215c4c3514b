"""Many requests beside each other, bounded, by the driver's callbacks: no thread a request."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from cassandra import OperationTimedOut
from cassandra.cluster import ResponseFuture

Page = tuple[Sequence[object], list[tuple[Any, ...]]]


class Job:
    """One request and its pages. The next page is asked for when the last one is taken, so that it comes while that one is worked on."""

    def __init__(self, params: Sequence[object], send: Callable[[], ResponseFuture]) -> None:
        self.params = params
        self._send = send
        self._future: ResponseFuture | None = None

    def start(self, done: Callable[[Job, Any, BaseException | None], None]) -> None:
        """Send. `done` is called on the driver's thread for every page, with rows or with an error."""
        self._future = self._send()
        self._future.add_callbacks(lambda rows: done(self, rows, None), lambda error: done(self, None, error))

    def ask_on(self) -> bool:
        """Ask for the next page; False when that was the last."""
        if self._future is None or not self._future.has_more_pages:
            return False
        self._future.start_fetching_next_page()
        return True


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
            raise error
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
                raise error
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
