"""Apply: node by node, flush, measure, garbagecollect, measure.

Never two nodes at once, whoever started the other.
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
"""How long a run waits for a garbagecollect that somebody else started to end, before each node."""
POLL_S = 2.0
_REREAD_S, _SAME, _READINGS = 0.5, 3, 60
"""After a collection sizes are read every `_REREAD_S` seconds.

Reading ends when `_SAME` readings in a row agree, or after `_READINGS` readings.
"""
Sleep = Callable[[float], None]
RECLAIMED, FAILED, REMAINING = "reclaimed", "failed", "left"


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
        """Each node in its turn; those after a stop remain. A killed try said what it finished."""
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
        while working := self._working():
            if time.monotonic() >= deadline:
                return f"a garbagecollect is at work on {working}: never two nodes at once"
            self.sleep(POLL_S)
        self.run.require_lock()
        up = {node: False} | {other.address: other.up for other in self.nodes.all()}
        if away := [address for address, is_up in up.items() if not is_up]:
            return f"{', '.join(away)} is down: while a node is away the others have enough to do"
        if not self.params.unrepaired:
            # What is purged from now on is older than the last repair: a proof is never older.
            known = table_repairs(self.run.stores.cassandra, self.plan.keyspace, self.plan.tables)
            if lacking := not_repaired(known, self.run.clock(), self.params):
                return f"not repaired within gc_grace: {'; '.join(lacking)}"
        pending, allowed = self.nodes.compacting(node).pending, self.params.max_pending
        if pending > allowed:
            return f"{node} has {pending} pending compactions, allowed are {allowed} (max_pending)"
        return None

    def _working(self) -> str | None:
        """A node that collects garbage now, whoever asked it to."""
        asked = (node.address for node in self.nodes.all() if node.asked)
        return next((node for node in asked if self.nodes.compacting(node).collecting), None)

    def _reclaim(self, node: str) -> NodeOutcome:
        """One node.

        After a command that fails the next node has its turn. A command that timed out may still
        run there, and ends the run.
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
            after = self._settled(node, before)
            fields = {"status": RECLAIMED, "after": after, "reclaimed_at": began_at}
        except CommandFailed as error:
            fields = {"status": REMAINING if error.timed_out else FAILED, "problem": str(error)}
        except MailsliceError as error:
            # Cassandra did not answer between two commands, or the lock is lost. The state of this
            # node is unknown, and no other may be started.
            fields = {"status": REMAINING, "problem": str(error)}
        seconds = round(time.perf_counter() - began, 3)
        return NodeOutcome(node=node, before=before, seconds=seconds, **fields)

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

    def _disk_mib(self, node: str) -> dict[str, int]:
        return self.nodes.disk_mib(node, self.plan.keyspace, self.plan.tables)
