"""Step 1: what each node holds, what waits to come back, and which nodes are due. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from mailslice.duties.reclaim import waiting
from mailslice.duties.reclaim.nodetool import VARIABLE, Nodetool, by_hand
from mailslice.duties.reclaim.params import Params
from mailslice.duties.reclaim.plan_file import PROGRESS, Plan
from mailslice.duty.artifacts import iso
from mailslice.duty.context import FILES, StepContext
from mailslice.duty.ledger import Ledger
from mailslice.duty.request import NO_QUEUE
from mailslice.model.names import DELETED_MAILS, QueueTable
from mailslice.stores.cassandra.ddl import replication_of, tables_of
from mailslice.stores.cassandra.nodes import Node, Nodes
from mailslice.stores.cassandra.repairs import TableRepair, copies, table_repairs

BIG_TABLES = (*(table.cql for table in QueueTable), DELETED_MAILS)
"""The tables of the view that compaction never shrinks (TimeWindowCompactionStrategy); the others hold one row a queue."""
_RUNS = 1000


def run(context: StepContext) -> dict[str, Any]:
    """The plan, for plan.json. `planned` counts nodes; without a command none is planned, and the message says what a person can do."""
    params, now = context.params(Params), context.clock()
    for name in (*(FILES[step] for step in ("check", "apply", "verify")), PROGRESS):
        context.folder.artifacts.remove(
            context.folder.file(name)
        )  # of an earlier try of this run, with another plan
    session, keyspace, template = (
        context.stores.cassandra,
        context.settings.cassandra.keyspace,
        context.settings.duty.nodetool,
    )
    tool = Nodetool.parse(template)
    there = tables_of(session, keyspace)
    tables = tuple(table for table in BIG_TABLES if table in there)
    nodes = Nodes(session)
    waits = _Waits.read(context, copies(replication_of(session, keyspace)))
    cluster = nodes.all() if tables else ()
    found = [_node(nodes, each, keyspace, tables) for each in cluster]
    for each in found:
        each["waitingBytes"] = waits.on(each["node"], len(cluster))
        each["why"] = _why(each, waits.last(each["node"]), now, params)
    due = tuple(each["node"] for each in found if each["why"]) if tool is not None else ()
    plan = Plan(context.request.run, now, keyspace, tables, due)
    repairs = table_repairs(session, keyspace, tables)
    waiting_mib = waiting.to_mib(sum(each["waitingBytes"] for each in found))
    return {
        "decided": plan.decided(),
        "planDigest": plan.digest,
        "planned": len(due),
        "nodes": found,
        "tables": list(tables),
        "waitingMib": waiting_mib,
        "command": by_hand(keyspace, tables, template) if tables else None,
        "hasCommand": tool is not None,
        "namesHost": tool is not None and tool.names_host,
        "before": {
            "mib": sum(sum(each["mib"].values()) for each in found if each["mib"] is not None)
        },
        "repairs": [
            {
                "table": each.table,
                "gcGraceSeconds": each.gc_grace.total_seconds(),
                "repairedSince": iso(each.since),
                "recent": each.is_recent(now, params.node_timeout),
            }
            for each in repairs
        ],
        "message": _message(plan, found, waiting_mib, template) + _unrepaired(repairs, now, params),
    }


def _unrepaired(repairs: Sequence[TableRepair], now: datetime, params: Params) -> str:
    """Which tables no repair protects, in words; empty where each is repaired, or has one replica."""
    lacking = [each.sentence() for each in repairs if not each.is_recent(now, params.node_timeout)]
    return f"; not repaired within gc_grace: {'; '.join(lacking)}" if lacking else ""


class _Waits:
    """What earlier runs say: bytes that were deleted, and when each node was reclaimed."""

    def __init__(
        self, cleanups: list[dict[str, Any]], runs: list[dict[str, Any]], copies: int
    ) -> None:
        self._cleanups = cleanups
        self._reclaimed = waiting.reclaimed_at(runs)
        self._copies = copies

    @classmethod
    def read(cls, context: StepContext, copies: int) -> _Waits:
        """From the ledger."""
        ledger = Ledger(context.stores, context.settings)
        return cls(
            ledger.list("queue_cleanup", None, _RUNS),
            ledger.list(context.request.duty, NO_QUEUE, _RUNS),
            copies,
        )

    def last(self, node: str) -> datetime | None:
        """When it was last reclaimed."""
        return self._reclaimed.get(node)

    def on(self, node: str, nodes: int) -> int:
        """About how many deleted bytes wait on one of so many nodes."""
        return (
            waiting.deleted_bytes(self._cleanups, self.last(node))
            * min(self._copies, nodes)
            // nodes
        )


def _node(nodes: Nodes, node: Node, keyspace: str, tables: tuple[str, ...]) -> dict[str, Any]:
    """What a node says of itself; None for what nobody can ask it from here."""
    return {
        "node": node.address,
        "datacenter": node.datacenter,
        "up": node.up,
        "mib": nodes.disk_mib(node.address, keyspace, tables) if node.asked else None,
        "pending": nodes.compacting(node.address).pending if node.asked else None,
    }


def _why(node: dict[str, Any], last: datetime | None, now: datetime, params: Params) -> str | None:
    """Why the node is due; None when it is not, or cannot be asked."""
    if node["mib"] is None or (node["waitingBytes"] < params.least * 2**20 and not params.force):
        return None
    return waiting.why_due(
        sum(node["mib"].values()), node["waitingBytes"], last, now, force=params.force
    )


def _message(plan: Plan, nodes: list[dict[str, Any]], waiting_mib: int, template: str) -> str:
    """What the plan comes to, in words."""
    if not plan.tables:
        return f"nothing to do: keyspace {plan.keyspace} has no table of a queue view"
    elsewhere = [each["node"] for each in nodes if each["mib"] is None and each["up"]]
    more = (
        f"; {len(elsewhere)} nodes of other data centres cannot be asked from here: run reclaim there, too"
        if elsewhere
        else ""
    )
    if plan.nodes:
        return f"about {waiting_mib} MiB wait to come back on {len(plan.nodes)} of {len(nodes)} nodes{more}"
    if any(each["why"] for each in nodes):
        hand = by_hand(plan.keyspace, plan.tables, template)
        return (
            f"about {waiting_mib} MiB wait to come back, and {VARIABLE} is not set: set it (such as 'ssh {{host}} nodetool'), "
            f"or run on each node, one after the other: {hand}{more}"
        )
    return f"nothing to do: nothing was deleted since the nodes were last reclaimed{more}"
