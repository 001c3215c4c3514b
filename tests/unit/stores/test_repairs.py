"""Whether repairs cover the ring, and since when."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random

import pytest

from mailslice.stores.cassandra.ranges import HIGHEST, LOWEST
from mailslice.stores.cassandra.repairs import Repair, TableRepair, complete_since, copies

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
TABLES = frozenset({"a"})


def repair(hours_ago, *ranges):
    return Repair(TABLES, NOW - timedelta(hours=hours_ago), ranges)


@pytest.mark.parametrize(
    ("repairs", "hours"),
    [
        ([], None),
        ([repair(5, (LOWEST, HIGHEST))], 5),
        ([repair(5, (LOWEST, HIGHEST)), repair(3, (LOWEST, HIGHEST))], 3),
        ([repair(5, (LOWEST, 0)), repair(3, (0, HIGHEST))], 5),
        ([repair(5, (LOWEST, 0)), repair(3, (1, HIGHEST))], None),
        ([repair(5, (LOWEST, 7)), repair(3, (-7, HIGHEST))], 5),
        ([repair(9, (LOWEST, HIGHEST)), repair(5, (LOWEST, 0)), repair(3, (-1, 5))], 9),
        ([repair(5, (LOWEST, HIGHEST - 1))], None),
        ([repair(5, (LOWEST + 1, HIGHEST))], None),
    ],
)
def test_the_ring_counts_as_repaired_since_the_oldest_repair_that_is_needed_to_cover_it(
    repairs, hours
):
    since = complete_since(repairs)
    assert since == (None if hours is None else NOW - timedelta(hours=hours))


class Edge(int):
    """Counts comparisons."""

    compared = 0

    def __lt__(self, other):
        Edge.compared += 1
        return int(self) < int(other)


def test_many_repairs_of_small_ranges_are_looked_through_a_few_times():
    """A tool that repairs a large ring in pieces has thousands of them in a month."""
    pieces = 500
    edges = [Edge(LOWEST + (HIGHEST - LOWEST) * at // pieces) for at in range(pieces)]
    edges.append(Edge(HIGHEST))
    ranges = list(pairwise(edges))
    Random(0).shuffle(ranges)
    repairs = [repair(1 + at, one) for at, one in enumerate(ranges)]
    assert complete_since(repairs) == NOW - timedelta(hours=pieces)
    assert Edge.compared < 100_000


@pytest.mark.parametrize(
    ("hours", "ahead", "recent"),
    [
        (None, 0, False),
        (23, 0, True),
        (24, 0, False),
        (25, 0, False),
        (21, 4, False),
        (19, 4, True),
    ],
)
def test_a_repair_is_recent_when_it_began_within_gc_grace_of_the_purge(hours, ahead, recent):
    since = None if hours is None else NOW - timedelta(hours=hours)
    table = TableRepair("a", timedelta(days=1), since)
    assert table.is_recent(NOW, timedelta(hours=ahead)) is recent


@pytest.mark.parametrize(
    ("replication", "count"),
    [
        ("{'class': 'org.apache.cassandra.locator.SimpleStrategy', 'replication_factor': '3'}", 3),
        (
            (
                "{'class': 'org.apache.cassandra.locator.NetworkTopologyStrategy', 'dc1': '3', "
                "'dc2': '2'}"
            ),
            5,
        ),
        (
            "{'class': 'org.apache.cassandra.locator.SimpleStrategy', 'replication_factor': '3/1'}",
            3,
        ),
        (None, 1),
        ("{'class': 'org.apache.cassandra.locator.LocalStrategy'}", 1),
    ],
)
def test_copies_by_replication(replication, count):
    assert copies(replication) == count
