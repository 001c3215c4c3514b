"""Token ranges that tile the ring: reading all of them reads the whole table."""

from collections.abc import Iterable
from itertools import chain, pairwise
from typing import TypeAlias

from mailslice.model.errors import Refused
from mailslice.stores.cassandra.session import CassandraSession

TokenRange: TypeAlias = tuple[int, int]
"""(low, high): every token with low < token <= high."""
LOWEST, HIGHEST = -(2**63), 2**63 - 1
"""No key has the lowest token: Murmur3Partitioner maps it to the highest."""


def token_ranges(session: CassandraSession, least: int) -> list[TokenRange]:
    """At least `least` ranges that tile the ring, each within one node's range. `least` below 2
    gives one range of all nodes. Raises Refused for partitioners other than Murmur3Partitioner.
    """
    metadata = session.cluster.metadata
    if metadata.partitioner and not metadata.partitioner.endswith("Murmur3Partitioner"):
        raise Refused(
            f"Cassandra at {session.address} uses {metadata.partitioner}: scans need "
            "Murmur3Partitioner"
        )
    if least < 2:
        return [(LOWEST, HIGHEST)]
    ring = [int(token.value) for token in metadata.token_map.ring] if metadata.token_map else []
    edges = sorted({LOWEST, HIGHEST, *ring})
    width = (HIGHEST - LOWEST) // max(1, least)
    parts = (split(low, high, max(1, -(-(high - low) // width))) for low, high in pairwise(edges))
    return [*chain.from_iterable(parts)]


def holes(ranges: Iterable[TokenRange]) -> int:
    """Counts gaps, overlaps and missing ends. 0: the ranges tile the ring."""
    ordered = sorted(ranges)
    ends = [LOWEST, *(high for _, high in ordered)]
    starts = [*(low for low, _ in ordered), HIGHEST]
    return sum(end != start for end, start in zip(ends, starts, strict=True))


def split(low: int, high: int, parts: int) -> list[TokenRange]:
    """Splits (low, high] into parts as equal as tokens allow."""
    return list(pairwise(low + (high - low) * part // parts for part in range(parts + 1)))
