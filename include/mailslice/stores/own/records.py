"""The interface of an own table in any store: rows by key, conditional writes, TTL.

A row is a mapping of column to value. Times are milliseconds since the epoch when written, and
naive UTC datetimes when read.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TableShape:
    """A table: its columns with their CQL types, and its primary key."""

    name: str
    columns: Mapping[str, str]
    """text, int, bigint or timestamp."""
    partition: tuple[str, ...]
    clustering: tuple[str, ...] = ()
    newest_first: bool = False
    """Whether the rows of a partition are sorted by the first clustering column, descending."""
    gc_grace_seconds: int = 864_000

    @property
    def key(self) -> tuple[str, ...]:
        return (*self.partition, *self.clustering)


class Records(Protocol):
    """One table in one store. After StoreUnavailable a write may or may not have been done."""

    def put(self, values: Values, ttl: timedelta | None = None) -> None:
        """Writes the row, over an existing one of its key."""

    def add(self, values: Values, ttl: timedelta | None = None) -> Values | None:
        """Writes the row unless its key has one. Returns None, or the row that exists."""

    def get(self, key: Values) -> Values | None:
        """The row, or None. Includes a write that was done although its answer was lost."""

    def rows(self, partition: Values, limit: int | None = None) -> Iterator[Values]:
        """The rows of a partition, in their order."""

    def first_rows(self, partitions: Iterable[Values], limit: int) -> Iterator[Values]:
        """The first `limit` rows of each partition, in the order of the partition."""

    def stored_keys(self) -> Iterator[Values]:
        """The keys of all rows, in any order."""

    def partitions(self) -> Iterator[Values]:
        """The partitions that have rows."""

    def change(
        self, key: Values, changes: Values, expected: Values, ttl: timedelta | None = None
    ) -> bool:
        """Writes the changes if the row has the expected values. Returns whether it had them."""

    def remove(self, key: Values) -> None:
        """Delete the row."""

    def remove_if(self, key: Values, expected: Values) -> bool:
        """Deletes the row if it has the expected values. Returns whether it had them."""
