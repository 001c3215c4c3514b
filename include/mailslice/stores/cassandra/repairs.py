"""When tables were last repaired (`nodetool repair` or a tool that drives it), by Cassandra itself.

A node that missed a delete, or a deleted mark, gives the rows back once the other nodes have purged
the tombstones. A repair between the delete and the purge prevents it. The table to read is
system_distributed.parent_repair_history, which has all token ranges of a repair: repair_history
keeps the last range of each session.
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
"""Options of a repair that leave replicas out, when they name any."""
_UNSOUND = ("forceRepair", "pullRepair", "paxosOnly")
"""Options of a repair that skip replicas that are away, write to one only, or repair no rows."""
_HISTORY = """SELECT keyspace_name, columnfamily_names, started_at, options, successful_ranges,
    finished_at, exception_message FROM system_distributed.parent_repair_history"""


@dataclass(frozen=True, slots=True)
class TableRepair:
    """One table. Repairs that began at `since` or later cover the ring; None: none known."""

    table: str
    gc_grace: timedelta
    since: datetime | None

    def is_recent(self, now: datetime, ahead: timedelta = timedelta(0)) -> bool:
        """Whether all tombstones that may be purged until `now + ahead` are older than they."""
        return self.since is not None and self.since > now + ahead - self.gc_grace

    def sentence(self) -> str:
        """For people."""
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
    """Each of these tables; none where a row has one replica. Raises StoreUnavailable, and
    BadSetting where the role may not read system_distributed.
    """
    nodes = len(session.cluster.metadata.all_hosts())
    if min(copies(replication_of(session, keyspace)), nodes) < 2:
        return ()
    return repaired(session, keyspace, tables)


def repaired(
    session: CassandraSession, keyspace: str, tables: Sequence[str]
) -> tuple[TableRepair, ...]:
    """As `table_repairs`, however many replicas there are."""
    seconds, known = gc_grace_of(session, keyspace), _repairs(session, keyspace.lower())
    repairs = {table: [one for one in known if table in one.tables] for table in tables}
    return tuple(
        TableRepair(table, timedelta(seconds=seconds[table]), complete_since(repairs[table]))
        for table in tables
    )


def complete_since(repairs: Iterable[Repair]) -> datetime | None:
    """The latest time from which on repairs cover the token ring; None when all do not."""
    newest = sorted(repairs, key=lambda repair: repair.started, reverse=True)
    end = bisect_left(range(len(newest) + 1), True, key=lambda end: _cover_ring(newest[:end]))
    return newest[end - 1].started if end <= len(newest) else None


def copies(replication: str | None) -> int:
    """Copies of a row in all data centres, by the keyspace's replication (CQL map); at least 1."""
    return max(1, sum(map(int, re.findall(r":\s*'(\d+)(?:/\d+)?'", replication or ""))))


def _repairs(session: CassandraSession, keyspace: str) -> list[Repair]:
    """Sound repairs. One replica is asked: a row that it lacks makes a repair unknown."""
    statement = session.prepare(_HISTORY)
    statement.consistency_level = ConsistencyLevel.ONE
    return [
        Repair(frozenset(names or ()), started.replace(tzinfo=UTC), _ranges(ranges or ()))
        for name, names, started, options, ranges, finished, problem in session.stream(statement)
        if name == keyspace and started and finished and problem is None and _is_sound(options)
    ]


def _is_sound(options: Mapping[str, Any] | None) -> bool:
    """Whether a repair with these options brings all replicas together."""
    values = dict(options or {})
    return not any(str(values.get(name) or "").strip("[]{} ") for name in _PARTIAL) and not any(
        str(values.get(name)).lower() == "true" for name in _UNSOUND
    )


def _ranges(texts: Iterable[str]) -> tuple[TokenRange, ...]:
    """Ranges as Cassandra writes them, `(low,high]`; one over the ring's end is cut there."""
    ranges: list[TokenRange] = []
    for match in filter(None, map(_RANGE.fullmatch, texts)):
        low, high = int(match[1]), int(match[2])
        ranges += [(low, high)] if low < high else [(low, HIGHEST), (LOWEST, high)]
    return tuple(ranges)


def _cover_ring(repairs: Iterable[Repair]) -> bool:
    reached = LOWEST
    for low, high in sorted(chain.from_iterable(one.ranges for one in repairs)):
        if low > reached:
            return False
        reached = max(reached, high)
    return reached >= HIGHEST
