"""Items a few at a time."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

K = TypeVar("K")
T = TypeVar("T")


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in their order, at most `size` at a time, drawn as they are needed."""
    remaining = iter(items)
    return iter(lambda: list(islice(remaining, size)), [])


def batches_by_key(pairs: Iterable[tuple[K, T]], size: int) -> Iterator[tuple[K, list[T]]]:
    """Key and items, at most `size` of them at a time: all of one key, then all of the next."""
    by_key: dict[K, list[T]] = {}
    for key, item in pairs:
        by_key.setdefault(key, []).append(item)
    return ((key, batch) for key, items in by_key.items() for batch in batches(items, size))
