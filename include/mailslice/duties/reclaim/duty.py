"""The duty: free the disk space that deleted rows and marks still use, one node at a time."""

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from mailslice.checks.expectations import Expectation, Frame
from mailslice.duties.reclaim.node_work import RECLAIMED, NodeWork, Sleep
from mailslice.duties.reclaim.nodetool import Nodetool
from mailslice.duties.reclaim.params import Params
from mailslice.duties.reclaim.survey import NodesPlan, make_plan, total_mib
from mailslice.maintenance.duty import Duty
from mailslice.maintenance.plot import say_empty, svg_axes
from mailslice.maintenance.progress import Progress
from mailslice.maintenance.result import Result, Summaries
from mailslice.maintenance.run import Run
from mailslice.model.errors import PlanRefused
from mailslice.stores.cassandra.nodes import MAX_CLOCK_SKEW, Nodes
from mailslice.stores.cassandra.repairs import TableRepair, table_repairs

DISK_PICTURE = "disk.svg"
_BEFORE, _AFTER = "#9aa5b1", "#2f9e6e"
_MAX_BARS = 40
_SKEWED = "allowed is a minute: set the clocks right"


class Reclaim(Duty[NodesPlan]):
    """On each node: flush, measure, garbagecollect, measure. Never on two nodes at once."""

    plan_type = NodesPlan
    items = "nodes"
    bulky = frozenset({"mib", "repairs"})
    unfinished = "the node it was at may still be at work; the next run waits for it and goes on"

    def __init__(self, sleep: Sleep = time.sleep) -> None:
        self._sleep = sleep

    def plan(self, run: Run) -> NodesPlan:
        return make_plan(run)

    def check(self, run: Run, plan: NodesPlan) -> Iterable[Frame]:
        """Judges that all nodes are up and, unless `unrepaired`, that tables were repaired."""
        session, params = run.stores.cassandra, run.params(Params)
        up = {node.address: node.up for node in Nodes(session).all()}
        tool = Nodetool.parse(run.settings.duty.nodetool)
        yield check_nodes(plan, up, names_host=tool is not None and tool.names_host)
        repairs = table_repairs(session, plan.keyspace, plan.tables) if plan.nodes else ()
        if repairs and not params.unrepaired:
            # The age of a repair depends on it.
            run.stores.cassandra.require_clock(run.clock, MAX_CLOCK_SKEW, _SKEWED)
            yield check_tables(repairs, run.clock(), params)

    def apply(self, run: Run, plan: NodesPlan, progress: Progress) -> None:
        """After a kill the node may still be at work. The next run sees that, and waits for it."""
        tool = Nodetool.parse(run.settings.duty.nodetool)
        if tool is None:
            raise PlanRefused(
                f"the plan of run {plan.run} needs MAILSLICE_NODETOOL, which is not set any more: "
                "set it, or plan again"
            )
        # Verify compares the run's times with the node's own history.
        run.stores.cassandra.require_clock(run.clock, MAX_CLOCK_SKEW, _SKEWED)
        NodeWork(run, plan, tool, progress, self._sleep).reclaim_all()

    def verify(self, run: Run, plan: NodesPlan, result: Result) -> Iterable[Frame]:
        """Reads the sizes on the nodes' disks, and each reclaimed node's compaction history."""
        nodes = Nodes(run.stores.cassandra)
        asked = [node.address for node in nodes.all() if node.asked]
        mib = {node: nodes.disk_mib(node, plan.keyspace, plan.tables) for node in asked}
        run.report(after={"mib": total_mib(mib.values())}, mib=mib)
        rows = [
            _reclaimed(nodes, plan, outcome)
            for outcome in result.fields.get("nodes", ())
            if outcome["status"] == RECLAIMED and outcome["node"] in mib
        ]
        rewritten = "Every reclaimed node says that it rewrote its tables."
        expect = [
            Expectation.rows(result.applied, "Every reclaimed node was asked."),
            Expectation.equal("collecting", 0, "No reclaimed node is still collecting."),
            Expectation.equal("uncollected", 0, rewritten),
        ]
        yield Frame("nodes", rows, expect, may_be_empty=not result.applied)

    def describe(self, steps: Summaries) -> str:
        result = steps.result
        if not result.applied:
            return ""
        return f"{result.fields['freedMib']} MiB came back on {result.applied} nodes{_rest(result)}"

    def nothing(self, steps: Summaries) -> str:
        rest = _rest(steps.result)
        return f"no node was reclaimed{rest}" if rest else super().nothing(steps)

    def report_fields(self, steps: Summaries) -> dict[str, Any]:
        """`nodes` has an entry a node: `mib` as planned; `before`, `after` if it was reached."""
        fields = steps.result.fields
        outcomes = {outcome["node"]: outcome for outcome in fields.get("nodes", ())}
        unknown = {"status": None, "before": None, "after": None}
        freed = int(fields.get("freedMib", 0))
        report = {
            "bytes": freed * 2**20,
            "freedMib": freed,
            "nodes": [
                {**node, **outcomes.get(node["node"], unknown)}
                for node in steps.plan.get("nodes", ())
            ],
        }
        if not steps.plan:
            report |= {"waitingMib": 0, "command": None, "tables": []}
        if steps.verified is None:
            report["after"] = None if steps.result.touched else steps.plan.get("before")
        return report

    def conclude(self, run: Run, steps: Summaries) -> None:
        file = run.folder.file(DISK_PICTURE)
        run.folder.artifacts.write(file, nodes_svg(self.report_fields(steps)["nodes"]))
        run.report(plot=run.folder.artifacts.uri(file))


DUTY = Reclaim()


def check_nodes(plan: NodesPlan, up: Mapping[str, bool], *, names_host: bool) -> Frame:
    """One row a node of the cluster and of the plan. All pass if the plan has no node."""
    has_work = bool(plan.nodes)
    rows = [
        {
            "node": name,
            "down": int(has_work and not up.get(name, False)),
            "same_for_all": int(has_work and len(up) > 1 and not names_host),
        }
        for name in sorted({*up, *plan.nodes})
    ]
    up_sentence = "Every node is up: while one is away the others have enough to do."
    host_sentence = (
        "With several nodes MAILSLICE_NODETOOL names {host}: else it goes to one node only."
    )
    expect = [
        Expectation.equal("down", 0, up_sentence),
        Expectation.equal("same_for_all", 0, host_sentence),
    ]
    return Frame("nodes", rows, expect)


def check_tables(repairs: Sequence[TableRepair], now: datetime, params: Params) -> Frame:
    """One row a table. A repair must stay recent until the time-out of a collection is over."""
    rows = [
        {"table": repair.sentence(), "repaired": int(repair.is_recent(now, params.node_timeout))}
        for repair in repairs
    ]
    sentence = (
        "Every table was repaired within gc_grace: else a mail whose end a node missed may come "
        "back (runbook, Repair; --unrepaired goes on)."
    )
    return Frame("tables", rows, [Expectation.equal("repaired", 1, sentence)])


def _reclaimed(nodes: Nodes, plan: NodesPlan, outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Judges no sizes: mails that arrive during the run may make a table larger than before."""
    node, since = outcome["node"], datetime.fromisoformat(outcome["reclaimedAt"])
    rewritten = nodes.compacted(node, plan.keyspace, since)
    return {
        "node": node,
        "collecting": int(nodes.compacting(node).collecting),
        "uncollected": sum(
            mib > 0 and table not in rewritten for table, mib in outcome["before"].items()
        ),
    }


def _rest(result: Result) -> str:
    if not result.remaining:
        return ""
    why = result.fields["stopped"]
    return f"; {result.remaining} nodes are left to the next run: {why}"


def bars(nodes: Sequence[dict[str, Any]]) -> list[tuple[str, int, int | None]]:
    """(node and table, MiB before, MiB after or None) of the largest non-empty tables."""
    rows = []
    for node in nodes:
        before = node["before"] or node["mib"] or {}
        after = node["after"] or {}
        rows += [
            (f"{node['node']} {table}", size, after.get(table))
            for table, size in before.items()
            if size or after.get(table)
        ]
    return sorted(rows, key=lambda bar: -bar[1])[:_MAX_BARS]


def nodes_svg(nodes: Sequence[dict[str, Any]]) -> bytes:
    """The picture of one run. `nodes`: the field of its report."""
    shown = bars(nodes)
    at = range(len(shown))
    with svg_axes(9, 1.2 + 0.45 * max(1, len(shown))) as (axes, picture):
        for shift, sizes, color, label in (
            (0.2, [before for _, before, _ in shown], _BEFORE, "before"),
            (-0.2, [after or 0 for _, _, after in shown], _AFTER, "after"),
        ):
            axes.barh([y + shift for y in at], sizes, height=0.36, color=color, label=label)
        axes.set_yticks(list(at), [bar[0] for bar in shown])
        if not shown:
            say_empty(axes, "nothing on disk")
        axes.set_xlabel("MiB")
        axes.legend(loc="lower right", frameon=False)
    return picture.getvalue()
