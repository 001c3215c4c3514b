"""Items beside each other on a few threads, drawn as needed: memory may not hold all."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
_AHEAD = 32


def map_concurrently(pool: Executor, work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """The results, in the order of the items.

    What one raises is raised in its turn; those that have not begun then are not begun.
    """
    flying: deque[Future[R]] = deque()
    try:
        for item in items:
            flying.append(pool.submit(work, item))
            if len(flying) >= _AHEAD:
                yield flying.popleft().result()
        while flying:
            yield flying.popleft().result()
    finally:
        for future in flying:
            future.cancel()
