"""Plans the nodes to reclaim, by their sizes and an estimate of deleted data. Changes nothing.

CQL reports the size of a table on a node, not how much of it is deleted. The estimate is what
cleanups deleted since the last reclaim, by the ledger.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from mailslice.duties.reclaim.nodetool import VARIABLE, Nodetool, by_hand
from mailslice.duties.reclaim.params import Params
from mailslice.maintenance.artifacts import iso
from mailslice.maintenance.json_model import JsonModel
from mailslice.maintenance.ledger import Ledger
from mailslice.maintenance.plan import Plan
from mailslice.maintenance.run import Run
from mailslice.maintenance.run_request import NO_QUEUE
from mailslice.model.names import DELETED_MAILS, QueueTable
from mailslice.stores.cassandra.ddl import replication_of, tables_of
from mailslice.stores.cassandra.nodes import Node, Nodes
from mailslice.stores.cassandra.repairs import TableRepair, copies, table_repairs

BIG_TABLES = (*(table.cql for table in QueueTable), DELETED_MAILS)
"""The view's large tables, which compaction never shrinks. Others have one row for each queue."""
MARK_BYTES = 45
"""The approximate size of a deleted mark on disk, and of its tombstone."""
TOMBSTONES = timedelta(days=10)
"""gc_grace of James' tables. A collection also purges tombstones of marks that are older."""
_RUNS = 1000


class NodeState(JsonModel):
    """A node. `mib`, `pending`: None if it cannot be asked from here. `why`: None if not due."""

    node: str
    datacenter: str
    up: bool
    mib: Mapping[str, int] | None
    pending: int | None
    waiting_bytes: int
    why: str | None


class NodesPlan(Plan):
    """Flush and garbagecollect `tables` of `keyspace` on `nodes` (addresses), one by one."""

    keyspace: str
    tables: tuple[str, ...]
    nodes: tuple[str, ...]

    @property
    def planned(self) -> int:
        return len(self.nodes)


def make_plan(run: Run) -> NodesPlan:
    """Plan by the state of the cluster, and the ledger's reports of earlier cleanups and runs.

    Without MAILSLICE_NODETOOL no node is planned, and the message has commands for a person.
    """
    now, template = run.clock(), run.settings.duty.nodetool
    session, keyspace = run.stores.cassandra, run.settings.cassandra.keyspace
    existing = tables_of(session, keyspace)
    tables = tuple(table for table in BIG_TABLES if table in existing)
    nodes, params = Nodes(session), run.params(Params)
    cluster = nodes.all() if tables else ()
    ledger, runs = Ledger(run.stores, run.settings), run.stores.existing_runs()
    reclaimed = reclaimed_at(ledger.list(run.request.duty, NO_QUEUE, _RUNS))
    queues = runs.queues("queue_cleanup") if runs else ()
    cleanups = (ledger.list("queue_cleanup", queue, _RUNS) for queue in queues)
    deleted = deleted_since(cleanups, {one.address: reclaimed.get(one.address) for one in cluster})
    replicas = min(copies(replication_of(session, keyspace)), len(cluster))

    def state(node: Node) -> NodeState:
        last = reclaimed.get(node.address)
        waiting_bytes = deleted[node.address] * replicas // len(cluster)
        mib = nodes.disk_mib(node.address, keyspace, tables) if node.asked else None
        why = None
        if mib is not None and (params.force or waiting_bytes >= params.least * 2**20):
            why = why_due(sum(mib.values()), waiting_bytes, last, now, force=params.force)
        return NodeState(
            node=node.address,
            datacenter=node.datacenter,
            up=node.up,
            mib=mib,
            pending=nodes.compacting(node.address).pending if node.asked else None,
            waiting_bytes=waiting_bytes,
            why=why,
        )

    states, repairs = list(map(state, cluster)), table_repairs(session, keyspace, tables)
    due = tuple(state.node for state in states if state.why and Nodetool.parse(template))
    plan = NodesPlan(run=run.request.run, made_at=now, keyspace=keyspace, tables=tables, nodes=due)
    waiting = to_mib(sum(state.waiting_bytes for state in states))
    command, lacking = by_hand(keyspace, tables), not_repaired(repairs, now, params)
    unrepaired = f"; not repaired within gc_grace: {'; '.join(lacking)}" if lacking else ""
    run.report(
        nodes=[state.as_json() for state in states],
        tables=list(tables),
        waitingMib=waiting,
        command=command if tables else None,
        repairs=[
            {
                "table": repair.table,
                "gcGraceSeconds": repair.gc_grace.total_seconds(),
                "repairedSince": iso(repair.since),
                "recent": repair.is_recent(now, params.node_timeout),
            }
            for repair in repairs
        ],
        before={"mib": total_mib(state.mib or {} for state in states)},
        message=f"{_message(plan, states, waiting, command)}{unrepaired}",
    )
    return plan


def _message(plan: NodesPlan, states: Sequence[NodeState], waiting: int, command: str) -> str:
    if not plan.tables:
        return f"nothing to do: keyspace {plan.keyspace} has no table of a queue view"
    elsewhere = sum(state.mib is None and state.up for state in states)
    hint = f"; {elsewhere} nodes of other data centres cannot be asked from here: run reclaim there"
    hint = f"{hint}, too" if elsewhere else ""
    waits = f"about {waiting} MiB wait to come back"
    if plan.nodes:
        return f"{waits} on {len(plan.nodes)} of {len(states)} nodes{hint}"
    if any(state.why for state in states):
        return (
            f"{waits}, and {VARIABLE} is not set: set it (such as 'ssh {{host}} nodetool'), "
            f"or run on each node, one after the other: {command}{hint}"
        )
    return f"nothing to do: nothing was deleted since the nodes were last reclaimed{hint}"


def total_mib(sizes: Iterable[Mapping[str, int]]) -> int:
    """MiB of all tables on all nodes."""
    return sum(sum(tables.values()) for tables in sizes)


def not_repaired(repairs: Iterable[TableRepair], now: datetime, params: Params) -> list[str]:
    """Sentences on tables whose last repair is too old for a collection that begins now."""
    return [one.sentence() for one in repairs if not one.is_recent(now, params.node_timeout)]


def deleted_bytes(cleanups: Iterable[Mapping[str, Any]], since: datetime | None) -> int:
    """Bytes of the rows and marks that cleanups deleted after `since` (None: ever), one replica."""
    deleted = 0
    for report in cleanups:
        finished = report.get("finished")
        more = timedelta(hours=0 if finished else 48)  # a run that was killed has no end
        if since is None or datetime.fromisoformat(finished or report["started"]) + more > since:
            planned, applied = int(report.get("planned") or 0), int(report.get("applied") or 0)
            deleted += int(report.get("bytes") or 0) * applied // planned if planned else 0
            deleted += int((report.get("marks") or {}).get("dropped") or 0) * MARK_BYTES
    return deleted


def deleted_since(
    by_queue: Iterable[Iterable[Mapping[str, Any]]], since: Mapping[str, datetime | None]
) -> Counter[str]:
    """`deleted_bytes` of all queues, by node. Only one queue's reports are in memory at a time."""
    deleted = Counter[str]()
    for cleanups in by_queue:
        deleted.update({node: deleted_bytes(cleanups, at) for node, at in since.items()})
    return deleted


def reclaimed_at(runs: Iterable[Mapping[str, Any]]) -> dict[str, datetime]:
    """When each node was last reclaimed, by the reports of reclaim."""
    latest: dict[str, datetime] = {}
    for report in runs:
        for node in report.get("nodes") or ():
            if node.get("reclaimedAt"):
                at = datetime.fromisoformat(node["reclaimedAt"])
                latest[node["node"]] = max(at, latest.get(node["node"], at))
    return latest


def why_due(
    mib: int, waiting: int, last: datetime | None, now: datetime, *, force: bool
) -> str | None:
    """Why a node with `mib` on disk and about `waiting` deleted bytes is due; None if it is not."""
    if force:
        return "asked for"
    if waiting:
        return f"about {to_mib(waiting)} MiB were deleted since it was last reclaimed"
    if last is None and mib:
        return "never reclaimed"
    if last is not None and mib and now - last >= TOMBSTONES:
        return (
            f"last reclaimed {last:%Y-%m-%d}: tombstones older than {TOMBSTONES.days} days may go"
        )
    return None


def to_mib(count: int) -> int:
    """MiB, rounded up, as Cassandra rounds them."""
    return -(-count // 2**20)
