"""Items in batches."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

K = TypeVar("K")
T = TypeVar("T")


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in order, in lists of at most `size`, drawn lazily."""
    remaining = iter(items)
    return iter(lambda: list(islice(remaining, size)), [])


def batches_by_key(pairs: Iterable[tuple[K, T]], size: int) -> Iterator[tuple[K, list[T]]]:
    """Key and at most `size` of its items at a time: all items of one key, then of the next."""
    by_key: dict[K, list[T]] = {}
    for key, item in pairs:
        by_key.setdefault(key, []).append(item)
    return ((key, batch) for key, items in by_key.items() for batch in batches(items, size))


def batches_by_weight(
    items: Iterable[T], size: int, weigh: Callable[[T], int], limit: int
) -> Iterator[list[T]]:
    """As `batches`. A list ends earlier where the next item would bring its weight over `limit`."""
    batch: list[T] = []
    weight = 0
    for item in items:
        weight += weigh(item)
        if batch and (len(batch) >= size or weight > limit):
            yield batch
            batch, weight = [], weigh(item)
        batch.append(item)
    if batch:
        yield batch
