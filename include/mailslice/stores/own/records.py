"""What a store must do for an own table: rows by key, conditional writes, an end by time.

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
    """A table: its columns by their type in CQL, and its key."""

    name: str
    columns: Mapping[str, str]
    """text, int, bigint or timestamp."""
    partition: tuple[str, ...]
    clustering: tuple[str, ...] = ()
    newest_first: bool = False
    """Rows of a partition come by the first clustering column, largest first."""
    gc_grace_seconds: int = 864_000

    @property
    def key(self) -> tuple[str, ...]:
        return (*self.partition, *self.clustering)


class Records(Protocol):
    """One table in one store. Raises StoreUnavailable where a write may or may not be done."""

    def put(self, values: Values, ttl: timedelta | None = None) -> None:
        """Write the row over another of its key."""

    def add(self, values: Values, ttl: timedelta | None = None) -> Values | None:
        """Writes the row unless its key has one: its columns of `values` and the key, else None."""

    def get(self, key: Values) -> Values | None:
        """The row, with every write that may have been done."""

    def rows(self, partition: Values, limit: int | None = None) -> Iterator[Values]:
        """The rows of a partition, in their order."""

    def first_rows(self, partitions: Iterable[Values], limit: int) -> Iterator[Values]:
        """The first rows of each of these partitions, those of one in their order."""

    def each_key(self) -> Iterator[Values]:
        """The keys of all rows, in any order."""

    def partitions(self) -> Iterator[Values]:
        """The partitions that have rows."""

    def change(
        self, key: Values, changes: Values, expected: Values, ttl: timedelta | None = None
    ) -> bool:
        """Write the changes where the row has the expected values; whether it had."""

    def remove(self, key: Values) -> None:
        """Delete the row."""

    def remove_if(self, key: Values, expected: Values) -> bool:
        """Delete the row where it has the expected values; whether it had."""
