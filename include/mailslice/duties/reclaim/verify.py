"""Step 4: what is on the nodes' disks now, and that none is still at work for us."""

from __future__ import annotations

from typing import Any

from mailslice.duties.reclaim.apply import RECLAIMED
from mailslice.duties.reclaim.plan_file import read_plan
from mailslice.duty.context import StepContext
from mailslice.quality.docs import Docs
from mailslice.quality.gate import Expectation, Frame, run_gate
from mailslice.stores.cassandra.nodes import Nodes


def run(context: StepContext) -> dict[str, Any]:
    """Whether every node that counts as reclaimed is. Raises GateFailed. `after`: MiB of the tables on all nodes that could be asked."""
    plan = read_plan(context.need("plan"), context.request.run)
    applied = context.need("apply")
    nodes = Nodes(context.stores.cassandra)
    asked = [each.address for each in nodes.all() if each.asked]
    now = {address: nodes.disk_mib(address, plan.keyspace, plan.tables) for address in asked}
    collecting = {address for address in asked if nodes.compacting(address).collecting}
    docs = Docs(context.folder.artifacts, context.request.duty, context.queue, context.request.run)
    after = {"mib": sum(sum(sizes.values()) for sizes in now.values())}
    result = run_gate("verify", [reclaimed(applied, collecting)], docs)
    return {
        "success": True,
        "after": after,
        "mib": now,
        "expectations": result.lines(),
        "dataDocs": result.link,
    }


def reclaimed(applied: dict[str, Any], collecting: set[str]) -> Frame:
    """One row a node that counts as reclaimed. Mails that come in meanwhile may make a node larger than it was: that is not judged."""
    rows = [
        {
            "node": each["node"],
            "measured": int(each["before"] is not None and each["after"] is not None),
            "collecting": int(each["node"] in collecting),
            "dated": int(bool(each["reclaimedAt"])),
        }
        for each in applied["nodes"]
        if each["status"] == RECLAIMED
    ]
    expect = [
        Expectation.unique("node", "Every node was reclaimed once."),
        Expectation.equal("measured", 1, "Every reclaimed node was measured before and after."),
        Expectation.equal("collecting", 0, "No reclaimed node is still collecting."),
        Expectation.equal("dated", 1, "It is known when every node was reclaimed."),
    ]
    return Frame("nodes", rows, expect)
