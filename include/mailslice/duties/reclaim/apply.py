"""Step 3: node by node: flush, measure, garbagecollect, measure. Never two nodes at once, whoever started the other.

A run that is killed leaves the node at work on what it was told: the next run sees that in Cassandra itself, and begins no other node before it ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

from mailslice.duties.reclaim.nodetool import Nodetool, Outcome, collect, flush
from mailslice.duties.reclaim.params import Params
from mailslice.duties.reclaim.plan_file import PROGRESS, Plan, read_plan
from mailslice.duty.artifacts import iso
from mailslice.duty.context import StepContext
from mailslice.duty.lock import Lock, locked
from mailslice.duty.plans import require_gate
from mailslice.model import crash
from mailslice.model.errors import MailsliceError, PlanRefused
from mailslice.stores.cassandra.nodes import Nodes
from mailslice.stores.cassandra.repairs import table_repairs

PATIENCE = timedelta(minutes=2)
"""How long a run waits for a garbagecollect that somebody else started to end, before each node."""
_LOOK = 2.0
_READ_AGAIN, _SAME, _READINGS = 0.5, 3, 60
"""After a collection sizes are read every so many seconds, until so many readings in a row say the same, at most so many times."""
RECLAIMED, FAILED, LEFT = "reclaimed", "failed", "left"


@dataclass(frozen=True, slots=True)
class Done:
    """What became of one node. Sizes are MiB a table after the flush, before and after the collection; None where the run did not come so far.

    `reclaimed_at` is when the flush began: what is deleted later is not given back by this.
    """

    node: str
    status: str
    before: dict[str, int] | None = None
    after: dict[str, int] | None = None
    seconds: float = 0.0
    reclaimed_at: str | None = None
    problem: str | None = None

    def as_json(self) -> dict[str, Any]:
        """For reports."""
        value = asdict(self)
        value["reclaimedAt"] = value.pop("reclaimed_at")
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Done:
        """What `as_json` gave."""
        return cls(
            value["node"],
            value["status"],
            value["before"],
            value["after"],
            value["seconds"],
            value["reclaimedAt"],
            value["problem"],
        )


class _Stopped(Exception):
    """No further node may be begun in this run; the reason."""


def run(context: StepContext, *, sleep: Callable[[float], None] = time.sleep) -> dict[str, Any]:
    """Reclaim the planned nodes. Raises PlanRefused when the plan was changed, is old, or the gate was not passed."""
    plan = read_plan(context.need("plan"), context.request.run)
    require_gate(context, plan)
    if not plan.nodes:
        return _summary(plan, [], None)
    tool = Nodetool.parse(context.settings.duty.nodetool)
    if tool is None:
        raise PlanRefused(
            f"the plan of run {plan.run} needs MAILSLICE_NODETOOL, which is not set any more: set it, or plan again"
        )
    with locked(context.stores.own.locks, context.request.duty, context.request.run) as lock:
        crash.point("apply:locked")
        return _Work(context, plan, tool, lock, sleep).run()


@dataclass(frozen=True)
class _Work:
    context: StepContext
    plan: Plan
    tool: Nodetool
    lock: Lock
    sleep: Callable[[float], None]

    @property
    def nodes(self) -> Nodes:
        return Nodes(self.context.stores.cassandra)

    @property
    def params(self) -> Params:
        return self.context.params(Params)

    def run(self) -> dict[str, Any]:
        """Each node in its turn; what a stop leaves is the next run's. A try that was killed has told which nodes it was through with."""
        done: list[Done] = self._earlier_try()
        through = {each.node for each in done}
        stopped = None
        for node in (each for each in self.plan.nodes if each not in through):
            try:
                self._may_begin(node)
                done.append(self._reclaim(node))
                self._keep(done, None)
                crash.point("apply:after-node")
                self._stop_after(done[-1])
            except _Stopped as stop:
                stopped = str(stop)
                done += [
                    Done(each, LEFT)
                    for each in self.plan.nodes
                    if each not in {one.node for one in done}
                ]
                break
        self._keep(done, stopped)
        return _summary(self.plan, done, stopped)

    def _earlier_try(self) -> list[Done]:
        """The nodes that this run has reclaimed already."""
        kept = self.context.folder.read_json(PROGRESS) or {}
        return (
            [Done.from_json(each) for each in kept.get("nodes", ()) if each["status"] == RECLAIMED]
            if kept.get("planDigest") == self.plan.digest
            else []
        )

    def _keep(self, done: list[Done], stopped: str | None) -> None:
        """In the run's folder, for the report of a run that ends early."""
        self.context.folder.write_json(PROGRESS, _summary(self.plan, done, stopped))

    def _may_begin(self, node: str) -> None:
        """Raises _Stopped when no node may be begun now: time is over, one is at work or away, or this one has enough to compact."""
        if self.context.out_of_time():
            raise _Stopped("the time limit is over")
        deadline = time.monotonic() + PATIENCE.total_seconds()
        while working := self._working():
            if time.monotonic() >= deadline:
                raise _Stopped(f"a garbagecollect is at work on {working}: never two nodes at once")
            self.sleep(_LOOK)
        self.lock.check()
        away = [each.address for each in self.nodes.all() if not each.up]
        if away:
            raise _Stopped(
                f"{', '.join(away)} is down: while a node is away the others have enough to do"
            )
        self._require_repaired()
        pending = self.nodes.compacting(node).pending
        if pending > self.params.max_pending:
            raise _Stopped(
                f"{node} has {pending} pending compactions, allowed are {self.params.max_pending} (max_pending)"
            )

    def _require_repaired(self) -> None:
        """What is purged from now on is older than the last repair: a proof is never older."""
        if self.params.unrepaired:
            return
        now, ahead = self.context.clock(), self.params.node_timeout
        known = table_repairs(self.context.stores.cassandra, self.plan.keyspace, self.plan.tables)
        lacking = [each.sentence() for each in known if not each.is_recent(now, ahead)]
        if lacking:
            raise _Stopped(f"not repaired within gc_grace: {'; '.join(lacking)}")

    def _working(self) -> str | None:
        """A node that collects garbage now, whoever asked it to."""
        return next(
            (
                each.address
                for each in self.nodes.all()
                if each.asked and self.nodes.compacting(each.address).collecting
            ),
            None,
        )

    def _stop_after(self, done: Done) -> None:
        if done.problem is not None and done.status == LEFT:
            raise _Stopped(done.problem)

    def _reclaim(self, node: str) -> Done:
        """One node. A command that fails is told, and the next node has its turn; one that was given up may still be at work there, and ends the run."""
        keyspace, tables = self.plan.keyspace, self.plan.tables
        began, began_at = time.perf_counter(), iso(self.context.clock())
        done = Done(node, FAILED)
        try:
            outcome = self._run(node, flush(keyspace, tables))
            if outcome.problem is None:
                done = replace(done, before=self.nodes.disk_mib(node, keyspace, tables))
                self.lock.check()
                crash.point("apply:before-collect")
                outcome = self._run(node, collect(keyspace, tables))
            if outcome.problem is None:
                done = replace(
                    done,
                    status=RECLAIMED,
                    after=self._settled(node, done.before or {}),
                    reclaimed_at=began_at,
                )
            else:
                done = replace(
                    done, problem=outcome.problem, status=LEFT if outcome.timed_out else FAILED
                )
        except MailsliceError as error:
            # Cassandra did not answer between two commands, or the lock is lost: nothing is known of this node, and no other may be begun.
            done = replace(done, status=LEFT, problem=str(error))
        return replace(done, seconds=round(time.perf_counter() - began, 3))

    def _settled(self, node: str, before: Mapping[str, int]) -> dict[str, int]:
        """Sizes once the replaced files are gone: Cassandra deletes them behind the command's answer, and counts old and new together until then.

        Mails that come in may make a table larger than it was: after `_READINGS` what was read last is told.
        """
        found, same = self.nodes.disk_mib(node, self.plan.keyspace, self.plan.tables), 1
        for _ in range(_READINGS - 1):
            if same >= _SAME and sum(found.values()) <= sum(before.values()):
                break
            self.sleep(_READ_AGAIN)
            earlier, found = found, self.nodes.disk_mib(node, self.plan.keyspace, self.plan.tables)
            same = same + 1 if found == earlier else 1
        return found

    def _run(self, node: str, arguments: list[str]) -> Outcome:
        return self.tool.run(node, arguments, self.params.node_timeout)


def _summary(plan: Plan, done: list[Done], stopped: str | None) -> dict[str, Any]:
    """The step's summary, for so many nodes as were come to."""
    by_status = {
        status: [each for each in done if each.status == status]
        for status in (RECLAIMED, FAILED, LEFT)
    }
    freed = {
        each.node: sum((each.before or {}).values()) - sum((each.after or {}).values())
        for each in by_status[RECLAIMED]
    }
    return {
        "planDigest": plan.digest,
        "planned": len(plan.nodes),
        "applied": len(by_status[RECLAIMED]),
        "failed": len(by_status[FAILED]),
        "left": len(by_status[LEFT]),
        "skipped": len(by_status[LEFT]),
        "skippedBy": {stopped: len(by_status[LEFT])} if stopped and by_status[LEFT] else {},
        "stopped": stopped,
        "nodes": [each.as_json() for each in done],
        "freedMib": sum(freed.values()),
    }
