"""Step 2: the gate over the plan. A cluster that is not whole is not burdened."""

from __future__ import annotations

from typing import Any

from mailslice.duties.reclaim.plan_file import read_plan
from mailslice.duty.context import StepContext
from mailslice.quality.docs import Docs
from mailslice.quality.gate import Expectation, Frame, run_gate


def run(context: StepContext) -> dict[str, Any]:
    """Whether the plan may be applied. Raises GateFailed naming the expectation and the value."""
    summary = context.need("plan")
    plan = read_plan(summary, context.request.run)
    docs = Docs(context.folder.artifacts, context.request.duty, context.queue, context.request.run)
    result = run_gate("check", frames(summary), docs)
    return {
        "success": True,
        "planDigest": plan.digest,
        "expectations": result.lines(),
        "dataDocs": result.link,
    }


def frames(summary: dict[str, Any]) -> list[Frame]:
    """One row for the whole, one row a planned node."""
    planned, nodes = summary["decided"]["nodes"], summary["nodes"]
    known = {each["node"]: each for each in nodes}
    row = {
        "planned": summary["planned"],
        "nodes_down": sum(not each["up"] for each in nodes) if planned else 0,
        "same_node_for_all": int(len(planned) > 0 and len(nodes) > 1 and not summary["namesHost"]),
        "without_tables": int(bool(planned) and not summary["decided"]["tables"]),
    }
    totals = [
        Expectation.equal("planned", len(planned), "The plan counts as many nodes as it lists."),
        Expectation.equal(
            "nodes_down", 0, "Every node is up: while one is away the others have enough to do."
        ),
        Expectation.equal(
            "same_node_for_all",
            0,
            "With several nodes MAILSLICE_NODETOOL names {host}: else it would go to the same node each time.",
        ),
        Expectation.equal("without_tables", 0, "There is a table to reclaim."),
    ]
    rows = [
        {
            "node": name,
            "known": int(name in known),
            "sized": int(known.get(name, {}).get("mib") is not None),
        }
        for name in planned
    ]
    each_node = [
        Expectation.unique("node", "Every node is planned once."),
        Expectation.equal("known", 1, "Every planned node is one of the cluster."),
        Expectation.equal("sized", 1, "Every planned node said how much it holds."),
    ]
    return [Frame("totals", [row], totals), Frame("nodes", rows, each_node)]
