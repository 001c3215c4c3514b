"""When tables were last repaired (`nodetool repair` or a tool that drives it), by Cassandra itself.

A node that missed a delete, or a deleted mark, brings the rows back once the other nodes have
purged the tombstones. A repair between the delete and the purge prevents that. This module reads
system_distributed.parent_repair_history, which has all token ranges of a repair: repair_history
keeps only the last range of each session.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

from cassandra import ConsistencyLevel

from mailslice.model.durations import format_duration
from mailslice.stores.cassandra.ddl import gc_grace_of, replication_of
from mailslice.stores.cassandra.ranges import HIGHEST, LOWEST, TokenRange
from mailslice.stores.cassandra.session import CassandraSession

_RANGE = re.compile(r"\((-?\d+),(-?\d+)\]", re.ASCII)
_PARTIAL = ("dataCenters", "hosts")
"""Options that restrict a repair to some replicas, when they have a value."""
_UNSOUND = ("forceRepair", "pullRepair", "paxosOnly")
"""Options by which a repair skips lost replicas, writes to one only, or repairs no rows."""
_HISTORY = """SELECT keyspace_name, columnfamily_names, started_at, options, successful_ranges,
    finished_at, exception_message FROM system_distributed.parent_repair_history"""


@dataclass(frozen=True, slots=True)
class TableRepair:
    """One table. Repairs that began at `since` or later cover the ring; None: none are known."""

    table: str
    gc_grace: timedelta
    since: datetime | None

    def is_recent(self, now: datetime, ahead: timedelta = timedelta(0)) -> bool:
        """Whether they began after all tombstones that may be purged until `now + ahead`."""
        return self.since is not None and self.since > now + ahead - self.gc_grace

    def sentence(self) -> str:
        """The last repair and gc_grace, for people."""
        began = f"{self.since:%Y-%m-%d %H:%M} UTC" if self.since else "not known"
        grace = format_duration(self.gc_grace)
        return f"{self.table}: last repair of all ranges began: {began}, gc_grace: {grace}"


@dataclass(frozen=True, slots=True)
class Repair:
    """One repair that ended well, on all replicas of its ranges."""

    tables: frozenset[str]
    started: datetime
    ranges: tuple[TokenRange, ...]


def table_repairs(
    session: CassandraSession, keyspace: str, tables: Sequence[str]
) -> tuple[TableRepair, ...]:
    """The repairs of each table; empty if rows have one replica. Raises StoreUnavailable, and
    BadSetting if the role may not read system_distributed.
    """
    nodes = len(session.cluster.metadata.all_hosts())
    if min(copies(replication_of(session, keyspace)), nodes) < 2:
        return ()
    return repaired(session, keyspace, tables)


def repaired(
    session: CassandraSession, keyspace: str, tables: Sequence[str]
) -> tuple[TableRepair, ...]:
    """As `table_repairs`, for any number of replicas."""
    seconds, known = gc_grace_of(session, keyspace), _repairs(session, keyspace.lower())
    repairs = {table: [repair for repair in known if table in repair.tables] for table in tables}
    return tuple(
        TableRepair(table, timedelta(seconds=seconds[table]), complete_since(repairs[table]))
        for table in tables
    )


def complete_since(repairs: Iterable[Repair]) -> datetime | None:
    """The latest time since which repairs cover the token ring; None if all together do not."""
    newest = sorted(repairs, key=lambda repair: repair.started, reverse=True)
    end = bisect_left(range(len(newest) + 1), True, key=lambda end: _cover_ring(newest[:end]))
    return newest[end - 1].started if end <= len(newest) else None


def copies(replication: str | None) -> int:
    """Copies of a row in all data centres, by the keyspace's replication (CQL map); at least 1."""
    return max(1, sum(map(int, re.findall(r":\s*'(\d+)(?:/\d+)?'", replication or ""))))


def _repairs(session: CassandraSession, keyspace: str) -> list[Repair]:
    """The sound repairs. Reads one replica: a repair whose row it lacks stays unknown."""
    statement = session.prepare(_HISTORY)
    statement.consistency_level = ConsistencyLevel.ONE
    return [
        Repair(frozenset(names or ()), started.replace(tzinfo=UTC), _ranges(ranges or ()))
        for name, names, started, options, ranges, finished, problem in session.stream(statement)
        if name == keyspace and started and finished and problem is None and _is_sound(options)
    ]


def _is_sound(options: Mapping[str, Any] | None) -> bool:
    """Whether a repair with these options synchronises all replicas."""
    values = dict(options or {})
    return not any(str(values.get(name) or "").strip("[]{} ") for name in _PARTIAL) and not any(
        str(values.get(name)).lower() == "true" for name in _UNSOUND
    )


def _ranges(texts: Iterable[str]) -> tuple[TokenRange, ...]:
    """Parses Cassandra's ranges, `(low,high]`. Splits a range that wraps around the ring's end."""
    ranges: list[TokenRange] = []
    for match in filter(None, map(_RANGE.fullmatch, texts)):
        low, high = int(match[1]), int(match[2])
        ranges += [(low, high)] if low < high else [(low, HIGHEST), (LOWEST, high)]
    return tuple(ranges)


def _cover_ring(repairs: Iterable[Repair]) -> bool:
    reached = LOWEST
    for low, high in sorted(chain.from_iterable(repair.ranges for repair in repairs)):
        if low > reached:
            return False
        reached = max(reached, high)
    return reached >= HIGHEST
