"""Disk use and compactions of single nodes. A virtual table describes the node that answers."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from mailslice.stores.cassandra.session import CassandraSession

COLLECTING = "remove deleted data"
"""The kind of a running garbagecollect in system_views.sstable_tasks."""
_POOL = "CompactionExecutor"
_POLL = 0.05
"""Seconds between two checks of the connections."""
MAX_CLOCK_SKEW = timedelta(minutes=1)
"""A node's clock may be behind by so much."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node, by its client address. `asked`: reachable; False: away or in another data centre."""

    address: str
    datacenter: str
    up: bool
    asked: bool


@dataclass(frozen=True, slots=True)
class Compacting:
    """Tasks that run or wait on a node, and whether a running one is a garbagecollect."""

    pending: int
    collecting: bool


class Nodes:
    """Questions to single nodes. Raises StoreUnavailable when one does not answer."""

    def __init__(self, session: CassandraSession) -> None:
        self._session = session

    def all(self) -> tuple[Node, ...]:
        """Every node, sorted by address. Waits for nodes that a new session has not reached yet."""
        until = time.monotonic() + self._session.settings.timeout.total_seconds()
        while True:
            connected = self._session.connected()
            local = {getattr(host, "datacenter", None) for host in connected}
            absent = [host for host in self._hosts() if host not in connected]
            awaited = any(host.is_up is not False and host.datacenter in local for host in absent)
            if not awaited or time.monotonic() >= until:
                break
            time.sleep(_POLL)
        nodes = []
        for host in self._hosts():
            asked = host in connected
            up = host.is_up is not False and (asked or host.datacenter not in local)
            nodes.append(Node(str(host.address), str(host.datacenter), up=up, asked=asked))
        return tuple(sorted(nodes, key=lambda node: node.address))

    def disk_mib(self, address: str, keyspace: str, tables: Iterable[str]) -> dict[str, int]:
        """MiB of each table on the node's disk, rounded up. Memtables do not count."""
        query = "SELECT keyspace_name, table_name, mebibytes FROM system_views.disk_usage"
        rows = self._session.ask(self._host(address), query)
        sizes = {row[1]: int(row[2]) for row in rows if row[0] == keyspace.lower()}
        return {table: sizes.get(table, 0) for table in tables}

    def compacting(self, address: str) -> Compacting:
        """The node's compaction tasks, of all tables."""
        host = self._host(address)
        query = "SELECT active_tasks, pending_tasks FROM system_views.thread_pools WHERE name = %s"
        pending = sum(map(sum, self._session.ask(host, query, [_POOL])))
        kinds = self._session.ask(host, "SELECT kind FROM system_views.sstable_tasks")
        return Compacting(pending, any(row[0] == COLLECTING for row in kinds))

    def compacted(self, address: str, keyspace: str, since: datetime) -> frozenset[str]:
        """The tables whose files the node rewrote since then, by its own history and clock."""
        query = (
            "SELECT columnfamily_name, keyspace_name, compacted_at FROM system.compaction_history"
        )
        rows = self._session.ask(self._host(address), query)
        begin = since - MAX_CLOCK_SKEW
        recent = (row for row in rows if row[2].replace(tzinfo=UTC) >= begin)
        return frozenset(table for table, name, _ in recent if name == keyspace.lower())

    def _hosts(self) -> Iterable[Any]:
        hosts: Iterable[Any] = self._session.cluster.metadata.all_hosts()
        return hosts

    def _host(self, address: str) -> Any:
        return next(host for host in self._hosts() if str(host.address) == address)
