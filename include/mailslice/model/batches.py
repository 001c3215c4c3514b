"""Items a few at a time."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in their order, at most `size` at a time, drawn as they are needed."""
    remaining = iter(items)
    return iter(lambda: list(islice(remaining, size)), [])
