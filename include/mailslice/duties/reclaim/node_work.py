"""Apply: node by node, flush, measure, garbagecollect, measure.

Never two nodes at once, whoever started the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from mailslice.duties.reclaim.nodetool import CommandResult, Nodetool, collect, flush
from mailslice.duties.reclaim.params import Params
from mailslice.maintenance.artifacts import iso
from mailslice.maintenance.json_model import JsonModel
from mailslice.maintenance.plan import Plan
from mailslice.maintenance.progress import Progress
from mailslice.maintenance.run import Run
from mailslice.model import crash
from mailslice.model.errors import MailsliceError
from mailslice.stores.cassandra.nodes import Nodes
from mailslice.stores.cassandra.repairs import table_repairs

PATIENCE = timedelta(minutes=2)
"""How long a run waits for a garbagecollect that somebody else started to end, before each node."""
_POLL_S = 2.0
_REREAD_S, _SAME, _READINGS = 0.5, 3, 60
"""After a collection sizes are read every `_REREAD_S` seconds.

Reading ends when `_SAME` readings in a row agree, or after `_READINGS` readings.
"""
Sleep = Callable[[float], None]
RECLAIMED, FAILED, REMAINING = "reclaimed", "failed", "left"


class NodesPlan(Plan):
    """What one run may do.

    Flush and garbagecollect `tables` of `keyspace` on `nodes` (addresses), in this order.
    """

    keyspace: str
    tables: tuple[str, ...]
    nodes: tuple[str, ...]

    @property
    def planned(self) -> int:
        """Nodes."""
        return len(self.nodes)


class NodeOutcome(JsonModel):
    """What became of one node.

    Sizes are MiB by table after the flush, before and after the collection. None: not reached.

    `reclaimed_at` is when the flush began: what is deleted later is not given back by this.
    """

    node: str
    status: str
    before: dict[str, int] | None = None
    after: dict[str, int] | None = None
    seconds: float = 0.0
    reclaimed_at: str | None = None
    problem: str | None = None

    @property
    def freed_mib(self) -> int:
        """MiB that came back."""
        return sum((self.before or {}).values()) - sum((self.after or {}).values())


class _Stopped(Exception):
    """No further node may be begun in this run; the reason."""


class NodeWork:
    """The work of one apply."""

    def __init__(
        self, run: Run, plan: NodesPlan, tool: Nodetool, progress: Progress, sleep: Sleep
    ) -> None:
        self.run, self.plan, self.tool = run, plan, tool
        self.progress, self.sleep = progress, sleep
        self.params = run.params(Params)
        self.nodes = Nodes(run.stores.cassandra)
        self.outcomes: dict[str, NodeOutcome] = {}

    def reclaim_all(self) -> None:
        """Each node in its turn; nodes after a stop remain.

        A killed try has reported which nodes it finished.
        """
        for earlier in self.progress.earlier.get("nodes", ()):
            if earlier["status"] == RECLAIMED:
                outcome = NodeOutcome.model_validate(earlier)
                self.outcomes[outcome.node] = outcome
        self._report(None)
        self.progress.done(count=len(self.outcomes))
        for node in self.plan.nodes:
            if node in self.outcomes:
                continue
            try:
                self._require_ready(node)
                self._add(self._reclaim(node))
                crash.point("apply:after-node")
                self._stop_after(self.outcomes[node])
            except _Stopped as stop:
                for rest in self.plan.nodes:
                    self.outcomes.setdefault(rest, NodeOutcome(node=rest, status=REMAINING))
                self._report(str(stop))
                return

    def _add(self, outcome: NodeOutcome) -> None:
        self.outcomes[outcome.node] = outcome
        self._report(None)
        if outcome.status == RECLAIMED:
            self.progress.done()
        elif outcome.status == FAILED:
            self.progress.fail(outcome.node, outcome.problem or "")
        self.progress.save()

    def _report(self, stopped: str | None) -> None:
        outcomes = self.outcomes.values()
        self.run.report(
            nodes=[outcome.as_json() for outcome in outcomes],
            freedMib=sum(one.freed_mib for one in outcomes if one.status == RECLAIMED),
            stopped=stopped,
        )

    def _require_ready(self, node: str) -> None:
        """Raises _Stopped when no node may be started now.

        The time is over, a node is collecting or down, or this node has too many compactions.
        """
        if self.run.out_of_time():
            raise _Stopped("the time limit is over")
        deadline = time.monotonic() + PATIENCE.total_seconds()
        while working := self._working():
            if time.monotonic() >= deadline:
                raise _Stopped(f"a garbagecollect is at work on {working}: never two nodes at once")
            self.sleep(_POLL_S)
        self.run.require_lock()
        away = [other.address for other in self.nodes.all() if not other.up]
        if away:
            raise _Stopped(
                f"{', '.join(away)} is down: while a node is away the others have enough to do"
            )
        self._require_repaired()
        pending = self.nodes.compacting(node).pending
        if pending > self.params.max_pending:
            raise _Stopped(
                f"{node} has {pending} pending compactions, "
                f"allowed are {self.params.max_pending} (max_pending)"
            )

    def _require_repaired(self) -> None:
        """What is purged from now on is older than the last repair: a proof is never older."""
        if self.params.unrepaired:
            return
        now, ahead = self.run.clock(), self.params.node_timeout
        known = table_repairs(self.run.stores.cassandra, self.plan.keyspace, self.plan.tables)
        lacking = [repair.sentence() for repair in known if not repair.is_recent(now, ahead)]
        if lacking:
            raise _Stopped(f"not repaired within gc_grace: {'; '.join(lacking)}")

    def _working(self) -> str | None:
        """A node that collects garbage now, whoever asked it to."""
        return next(
            (
                node.address
                for node in self.nodes.all()
                if node.asked and self.nodes.compacting(node.address).collecting
            ),
            None,
        )

    def _stop_after(self, outcome: NodeOutcome) -> None:
        if outcome.problem is not None and outcome.status == REMAINING:
            raise _Stopped(outcome.problem)

    def _reclaim(self, node: str) -> NodeOutcome:
        """One node.

        After a command that fails the next node has its turn. A command that timed out may still
        run there, and ends the run.
        """
        began, began_at = time.perf_counter(), iso(self.run.clock())
        fields: dict[str, Any] = {"status": FAILED}
        try:
            command = self._command(node, flush(self.plan.keyspace, self.plan.tables))
            if command.problem is None:
                before = fields["before"] = self._disk_mib(node)
                self.run.require_lock()
                crash.point("apply:before-collect")
                command = self._command(node, collect(self.plan.keyspace, self.plan.tables))
            if command.problem is None:
                after = self._settled(node, before)
                fields |= {"status": RECLAIMED, "after": after, "reclaimed_at": began_at}
            else:
                fields |= {
                    "status": REMAINING if command.timed_out else FAILED,
                    "problem": command.problem,
                }
        except MailsliceError as error:
            # Cassandra did not answer between two commands, or the lock is lost. The state of this
            # node is unknown, and no other may be started.
            fields |= {"status": REMAINING, "problem": str(error)}
        return NodeOutcome(node=node, seconds=round(time.perf_counter() - began, 3), **fields)

    def _settled(self, node: str, before: Mapping[str, int]) -> dict[str, int]:
        """Sizes once the replaced files are deleted.

        Cassandra deletes them after the command returned, and counts old and new until then. New
        mails may make a table larger than it was: after `_READINGS` the last reading is reported.
        """
        sizes, same = self._disk_mib(node), 1
        for _ in range(_READINGS - 1):
            if same >= _SAME and sum(sizes.values()) <= sum(before.values()):
                break
            self.sleep(_REREAD_S)
            earlier, sizes = sizes, self._disk_mib(node)
            same = same + 1 if sizes == earlier else 1
        return sizes

    def _command(self, node: str, arguments: list[str]) -> CommandResult:
        return self.tool.run(node, arguments, self.params.node_timeout)

    def _disk_mib(self, node: str) -> dict[str, int]:
        return self.nodes.disk_mib(node, self.plan.keyspace, self.plan.tables)
