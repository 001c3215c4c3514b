"""What each node holds, what waits to come back there, and which nodes are due. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mailslice.duties.reclaim import waiting
from mailslice.duties.reclaim.nodetool import VARIABLE, Nodetool, by_hand
from mailslice.duties.reclaim.params import Params
from mailslice.maintenance.artifacts import iso
from mailslice.maintenance.json_model import JsonModel
from mailslice.maintenance.ledger import Ledger
from mailslice.maintenance.run import Run
from mailslice.maintenance.run_request import NO_QUEUE
from mailslice.model.names import DELETED_MAILS, QueueTable
from mailslice.stores.cassandra.ddl import replication_of, tables_of
from mailslice.stores.cassandra.nodes import Nodes
from mailslice.stores.cassandra.repairs import TableRepair, copies, table_repairs

BIG_TABLES = (*(table.cql for table in QueueTable), DELETED_MAILS)
"""Tables of the view that compaction never shrinks (TimeWindowCompactionStrategy).

The others have one row for each queue.
"""
_RUNS = 1000


class NodeState(JsonModel):
    """The state of a node; None for what cannot be asked from here.

    `why` it is due; None when it is not.
    """

    node: str
    datacenter: str
    up: bool
    mib: Mapping[str, int] | None
    pending: int | None
    waiting_bytes: int
    why: str | None


@dataclass(frozen=True, slots=True)
class Survey:
    """The cluster as it is. `template`: MAILSLICE_NODETOOL."""

    keyspace: str
    tables: tuple[str, ...]
    nodes: tuple[NodeState, ...]
    repairs: tuple[TableRepair, ...]
    template: str
    now: datetime
    params: Params

    @property
    def due(self) -> tuple[str, ...]:
        """Nodes that are to be reclaimed; none without a command."""
        if Nodetool.parse(self.template) is None:
            return ()
        return tuple(state.node for state in self.nodes if state.why)

    @property
    def sizes(self) -> list[Mapping[str, int]]:
        """MiB a table, of each node that could be asked."""
        return [state.mib for state in self.nodes if state.mib is not None]

    @property
    def waiting_mib(self) -> int:
        """About how much waits to come back."""
        return waiting.to_mib(sum(state.waiting_bytes for state in self.nodes))

    def as_json(self) -> dict[str, Any]:
        """For plan.json and reports."""
        by_table = [
            {
                "table": repair.table,
                "gcGraceSeconds": repair.gc_grace.total_seconds(),
                "repairedSince": iso(repair.since),
                "recent": repair.is_recent(self.now, self.params.node_timeout),
            }
            for repair in self.repairs
        ]
        return {
            "nodes": [state.as_json() for state in self.nodes],
            "tables": list(self.tables),
            "waitingMib": self.waiting_mib,
            "command": self._by_hand() if self.tables else None,
            "repairs": by_table,
        }

    def message(self) -> str:
        """What it comes to, in words."""
        lacking = [
            repair.sentence()
            for repair in self.repairs
            if not repair.is_recent(self.now, self.params.node_timeout)
        ]
        unrepaired = f"; not repaired within gc_grace: {'; '.join(lacking)}" if lacking else ""
        return self._due_in_words() + unrepaired

    def _due_in_words(self) -> str:
        if not self.tables:
            return f"nothing to do: keyspace {self.keyspace} has no table of a queue view"
        elsewhere = sum(state.mib is None and state.up for state in self.nodes)
        more = (
            f"; {elsewhere} nodes of other data centres cannot be asked from here: "
            "run reclaim there, too"
            if elsewhere
            else ""
        )
        waits = f"about {self.waiting_mib} MiB wait to come back"
        if self.due:
            return f"{waits} on {len(self.due)} of {len(self.nodes)} nodes{more}"
        if any(state.why for state in self.nodes):
            return (
                f"{waits}, and {VARIABLE} is not set: set it (such as 'ssh {{host}} nodetool'), "
                f"or run on each node, one after the other: {self._by_hand()}{more}"
            )
        return f"nothing to do: nothing was deleted since the nodes were last reclaimed{more}"

    def _by_hand(self) -> str:
        return by_hand(self.keyspace, self.tables, self.template)


def survey(run: Run, now: datetime) -> Survey:
    """The cluster as it is now, and what the ledger says of earlier cleanups and runs."""
    session, keyspace = run.stores.cassandra, run.settings.cassandra.keyspace
    existing = tables_of(session, keyspace)
    tables = tuple(table for table in BIG_TABLES if table in existing)
    nodes, params = Nodes(session), run.params(Params)
    cluster = nodes.all() if tables else ()
    ledger = Ledger(run.stores, run.settings)
    cleanups = ledger.list("queue_cleanup", None, _RUNS)
    reclaimed = waiting.reclaimed_at(ledger.list(run.request.duty, NO_QUEUE, _RUNS))
    replicas = min(copies(replication_of(session, keyspace)), len(cluster))
    states = []
    for node in cluster:
        last = reclaimed.get(node.address)
        waits = waiting.deleted_bytes(cleanups, last) * replicas // len(cluster)
        mib = nodes.disk_mib(node.address, keyspace, tables) if node.asked else None
        state = NodeState(
            node=node.address,
            datacenter=node.datacenter,
            up=node.up,
            mib=mib,
            pending=nodes.compacting(node.address).pending if node.asked else None,
            waiting_bytes=waits,
            why=_why(mib, waits, last, now, params),
        )
        states.append(state)
    repairs = tuple(table_repairs(session, keyspace, tables))
    template = run.settings.duty.nodetool
    return Survey(keyspace, tables, tuple(states), repairs, template, now, params)


def _why(
    mib: Mapping[str, int] | None,
    waits: int,
    last: datetime | None,
    now: datetime,
    params: Params,
) -> str | None:
    """Why the node is due; None when it is not, or cannot be asked."""
    if mib is None or (waits < params.least * 2**20 and not params.force):
        return None
    return waiting.why_due(sum(mib.values()), waits, last, now, force=params.force)
