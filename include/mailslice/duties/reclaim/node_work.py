"""Apply: on one node after the other flush, measure, garbagecollect, measure.

It starts no node while any other one collects, even if somebody else started that one.
"""

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from mailslice.duties.reclaim.nodetool import CommandFailed, Nodetool, collect, flush
from mailslice.duties.reclaim.params import Params
from mailslice.duties.reclaim.survey import NodesPlan, not_repaired
from mailslice.maintenance.artifacts import iso
from mailslice.maintenance.json_model import JsonModel
from mailslice.maintenance.progress import Progress
from mailslice.maintenance.run import Run
from mailslice.model import crash
from mailslice.model.errors import MailsliceError
from mailslice.stores.cassandra.nodes import Nodes
from mailslice.stores.cassandra.repairs import table_repairs

PATIENCE = timedelta(minutes=2)
"""How long a run waits before each node for the end of another garbagecollect."""
POLL_S = 2.0
_REREAD_S, _EQUAL_READINGS, _MAX_READINGS = 0.5, 3, 60
"""After a collection sizes are read every `_REREAD_S` seconds.

Reading ends when `_EQUAL_READINGS` in a row are equal, or after `_MAX_READINGS`.
"""
Sleep = Callable[[float], None]
RECLAIMED, FAILED, REMAINING = "reclaimed", "failed", "left"


class NodeOutcome(JsonModel):
    """The outcome of one node.

    `before` and `after` the collection: MiB by table, after the flush; None if not reached.
    `reclaimed_at` is when the flush began: the collection does not free what is deleted later.
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
        return sum((self.before or {}).values()) - sum((self.after or {}).values())


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
        """Reclaim node by node until one stops the run. Skips nodes that a killed try finished."""
        for earlier in self.progress.earlier.get("nodes", ()):
            if earlier["status"] == RECLAIMED:
                outcome = NodeOutcome.model_validate(earlier)
                self.outcomes[outcome.node] = outcome
        self._report(None)
        self.progress.done(count=len(self.outcomes))
        for node in self.plan.nodes:
            if node in self.outcomes:
                continue
            stopped = self._obstacle(node)
            if stopped is None:
                outcome = self._reclaim(node)
                self._add(outcome)
                crash.point("apply:after-node")
                stopped = outcome.problem if outcome.status == REMAINING else None
            if stopped is not None:
                for rest in self.plan.nodes:
                    self.outcomes.setdefault(rest, NodeOutcome(node=rest, status=REMAINING))
                self._report(stopped)
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

    def _obstacle(self, node: str) -> str | None:
        """Why no node may be started now; None: this one may.

        The time is over, a node is collecting or down, a repair is missing, or this node has too
        many compactions.
        """
        if self.run.out_of_time():
            return "the time limit is over"
        deadline = time.monotonic() + PATIENCE.total_seconds()
        while collecting := self._collecting_node():
            if time.monotonic() >= deadline:
                return f"a garbagecollect is at work on {collecting}: never two nodes at once"
            self.sleep(POLL_S)
        self.run.require_lock()
        up = {node: False} | {other.address: other.up for other in self.nodes.all()}
        if away := [address for address, is_up in up.items() if not is_up]:
            return f"{', '.join(away)} is down: while a node is away the others have enough to do"
        if not self.params.unrepaired:
            # A node starts only if all that it may purge is older than the last repair, as of now.
            repairs = table_repairs(self.run.stores.cassandra, self.plan.keyspace, self.plan.tables)
            if lacking := not_repaired(repairs, self.run.clock(), self.params):
                return f"not repaired within gc_grace: {'; '.join(lacking)}"
        pending, allowed = self.nodes.compacting(node).pending, self.params.max_pending
        if pending > allowed:
            return f"{node} has {pending} pending compactions, allowed are {allowed} (max_pending)"
        return None

    def _collecting_node(self) -> str | None:
        """A node that collects garbage now, no matter who started it; None if there is none."""
        asked = (node.address for node in self.nodes.all() if node.asked)
        return next((node for node in asked if self.nodes.compacting(node).collecting), None)

    def _reclaim(self, node: str) -> NodeOutcome:
        """Reclaim one node.

        A command that fails ends work on this node only. A command that times out may still run
        there, so the run ends.
        """
        began, began_at = time.perf_counter(), iso(self.run.clock())
        keyspace, tables, timeout = self.plan.keyspace, self.plan.tables, self.params.node_timeout
        fields: dict[str, Any]
        before = None
        try:
            self.tool.run(node, flush(keyspace, tables), timeout)
            before = self._disk_mib(node)
            self.run.require_lock()
            crash.point("apply:before-collect")
            self.tool.run(node, collect(keyspace, tables), timeout)
            after = self._wait_for_deletion(node, before)
            fields = {"status": RECLAIMED, "after": after, "reclaimed_at": began_at}
        except CommandFailed as error:
            fields = {"status": REMAINING if error.timed_out else FAILED, "problem": str(error)}
        except MailsliceError as error:
            # Cassandra did not answer between two commands, or the lock is lost. The state of this
            # node is unknown, and no other may be started.
            fields = {"status": REMAINING, "problem": str(error)}
        seconds = round(time.perf_counter() - began, 3)
        return NodeOutcome(node=node, before=before, seconds=seconds, **fields)

    def _wait_for_deletion(self, node: str, before: Mapping[str, int]) -> dict[str, int]:
        """The sizes after Cassandra deleted the replaced SSTables.

        It deletes them after the command has returned, and counts old and new ones until then. New
        mails may make a table larger than before: the last of `_MAX_READINGS` is reported then.
        """
        sizes, equal = self._disk_mib(node), 1
        for _ in range(_MAX_READINGS - 1):
            if equal >= _EQUAL_READINGS and sum(sizes.values()) <= sum(before.values()):
                break
            self.sleep(_REREAD_S)
            earlier, sizes = sizes, self._disk_mib(node)
            equal = equal + 1 if sizes == earlier else 1
        return sizes

    def _disk_mib(self, node: str) -> dict[str, int]:
        return self.nodes.disk_mib(node, self.plan.keyspace, self.plan.tables)
