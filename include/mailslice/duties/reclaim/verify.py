"""Step 4: what is on the nodes' disks now, that each node collected, and that none is still at it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from mailslice.duties.reclaim.apply import RECLAIMED
from mailslice.duties.reclaim.plan_file import Plan, read_plan
from mailslice.duty.context import StepContext
from mailslice.duty.gates import judged
from mailslice.quality.gate import Expectation, Frame
from mailslice.stores.cassandra.nodes import Nodes


def run(context: StepContext) -> dict[str, Any]:
    """Whether every node that counts as reclaimed is. Raises GateFailed.

    `after`: MiB of the tables on all nodes that could be asked.
    """
    plan = read_plan(context.need("plan"), context.request.run)
    nodes = Nodes(context.stores.cassandra)
    asked = [each.address for each in nodes.all() if each.asked]
    now = {address: nodes.disk_mib(address, plan.keyspace, plan.tables) for address in asked}
    rows = [
        _row(nodes, plan, each)
        for each in context.need("apply")["nodes"]
        if each["status"] == RECLAIMED and each["node"] in now
    ]
    return {
        **judged(context, "verify", [Frame("nodes", rows, EXPECTED, may_be_empty=True)]),
        "after": {"mib": sum(sum(sizes.values()) for sizes in now.values())},
        "mib": now,
    }


EXPECTED = [
    Expectation.equal("collecting", 0, "No reclaimed node is still collecting."),
    Expectation.equal("uncollected", 0, "Every reclaimed node says that it rewrote its tables."),
]


def _row(nodes: Nodes, plan: Plan, done: dict[str, Any]) -> dict[str, Any]:
    """What a node that counts as reclaimed says itself.

    Mails that come in meanwhile may make it larger than it was: that is not judged.
    """
    since = datetime.fromisoformat(done["reclaimedAt"])
    rewritten = nodes.compacted(done["node"], plan.keyspace, since)
    return {
        "node": done["node"],
        "collecting": int(nodes.compacting(done["node"]).collecting),
        "uncollected": sum(
            mib > 0 and table not in rewritten for table, mib in done["before"].items()
        ),
    }
