"""Step 2: the gate over the plan, by what Cassandra says now. A cluster that is not whole is not burdened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from mailslice.duties.reclaim.nodetool import Nodetool
from mailslice.duties.reclaim.params import Params
from mailslice.duties.reclaim.plan_file import Plan, read_plan
from mailslice.duty.context import StepContext
from mailslice.duty.gates import judged
from mailslice.quality.gate import Expectation, Frame
from mailslice.stores.cassandra.nodes import Nodes
from mailslice.stores.cassandra.repairs import TableRepair, table_repairs


def run(context: StepContext) -> dict[str, Any]:
    """Whether the plan may be applied. Raises GateFailed naming the expectation and the value."""
    plan = read_plan(context.need("plan"), context.request.run)
    session, params = context.stores.cassandra, context.params(Params)
    up = {each.address: each.up for each in Nodes(session).all()}
    tool = Nodetool.parse(context.settings.duty.nodetool)
    frames = [nodes(plan, up, names_host=tool is not None and tool.names_host)]
    repairs = table_repairs(session, plan.keyspace, plan.tables) if plan.nodes else ()
    if repairs and not params.unrepaired:
        frames.append(tables(repairs, context.clock(), params))
    return {**judged(context, "check", frames), "planDigest": plan.digest}


def nodes(plan: Plan, up: Mapping[str, bool], *, names_host: bool) -> Frame:
    """One row a node of the cluster and of the plan; without a planned node nobody is burdened."""
    burdened = bool(plan.nodes)
    rows = [
        {
            "node": name,
            "down": int(burdened and not up.get(name, False)),
            "same_for_all": int(burdened and len(up) > 1 and not names_host),
        }
        for name in sorted({*up, *plan.nodes})
    ]
    expect = [
        Expectation.equal(
            "down", 0, "Every node is up: while one is away the others have enough to do."
        ),
        Expectation.equal(
            "same_for_all",
            0,
            "With several nodes MAILSLICE_NODETOOL names {host}: else it goes to one node only.",
        ),
    ]
    return Frame("nodes", rows, expect)


def tables(repairs: Sequence[TableRepair], now: datetime, params: Params) -> Frame:
    """One row a table. A collection may purge until its time-out is over."""
    rows = [
        {
            "table": each.sentence(),
            "repaired": int(each.is_recent(now, params.node_timeout)),
        }
        for each in repairs
    ]
    sentence = (
        "Every table was repaired within gc_grace: else a mail whose end a node missed may come "
        "back (runbook, Repair; --unrepaired goes on)."
    )
    return Frame("tables", rows, [Expectation.equal("repaired", 1, sentence)])
