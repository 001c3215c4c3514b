"""Partitions are computed while they are few; else the keys of both tables are scanned."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from mailslice.model.mail import Partition, QueueName
from mailslice.view.configuration import Shape
from mailslice.view.partitions import partitions_in_use, partitions_to_read

HOUR = timedelta(hours=1)
START = datetime(2026, 11, 22, tzinfo=UTC)
SHAPE = Shape(HOUR, HOUR, (2,))
QUEUE = QueueName("spool")


def at(hours: int, bucket: int = 0) -> Partition:
    return Partition(START + hours * HOUR, bucket)


class Tables:
    """Two tables with keys; counts how often these are scanned."""

    def __init__(self, *keys: list[Partition]) -> None:
        self.scans = 0
        self.existing = [SimpleNamespace(partitions=self._scan(one)) for one in keys]

    def _scan(self, keys: list[Partition]) -> Any:
        def partitions(queue: QueueName) -> list[Partition]:
            assert queue == QUEUE
            self.scans += 1
            return keys

        return partitions


def read(tables: Tables, first: datetime | None, last: datetime, **options: Any) -> list[Partition]:
    return partitions_to_read(tables, QUEUE, SHAPE, first, last, **options)


def test_few_partitions_are_computed_and_a_start_within_a_slice_is_floored() -> None:
    tables = Tables([at(0)])
    found = read(tables, START + HOUR / 2, START + 1.5 * HOUR)
    assert (found, tables.scans) == ([at(0), at(0, 1), at(1), at(1, 1)], 0)


def test_the_limit_counts_requested_buckets_only() -> None:
    tables = Tables([])
    assert read(tables, START, START + 3 * HOUR, buckets={1}, scan_from=3) == [
        at(hours, 1) for hours in range(4)
    ]
    assert tables.scans == 0
    read(tables, START, START + 3 * HOUR, scan_from=3)
    assert tables.scans == 1


@pytest.mark.parametrize(
    ("first", "buckets", "expected"),
    [
        (START + HOUR, None, [at(1, 5), at(2), at(3)]),
        (None, None, [at(0), at(1, 5), at(2), at(3)]),
        (START, {0}, [at(0), at(2), at(3)]),
    ],
)
def test_of_many_those_with_a_key_in_either_table_are_read_once_and_in_order(
    first: datetime | None, buckets: set[int] | None, expected: list[Partition]
) -> None:
    tables = Tables([at(4), at(3), at(0)], [at(2), at(1, 5), at(3)])
    assert read(tables, first, START + 3 * HOUR, buckets=buckets, scan_from=0) == expected
    assert tables.scans == 2


def test_partitions_in_use_are_those_of_both_tables() -> None:
    assert partitions_in_use(Tables([at(0)], [at(0), at(9)]), QUEUE) == {at(0), at(9)}
