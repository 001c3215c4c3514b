"""Step 3: each planned mail, its proof looked at again: its holder lives now, and still holds it.
Then by the mode: note, close, or recover.

Everything is written before it takes effect: content and row in quarantine, the decision, and only then the mark. What a kill leaves, the next run finishes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any

from mailslice.duties.stuck_mails.acting import Acting, Skipped
from mailslice.duties.stuck_mails.leftovers import finish, forget_notes, sweep
from mailslice.duties.stuck_mails.noted import noted_before
from mailslice.duties.stuck_mails.plan_file import Plan, PlannedMail, read_plan
from mailslice.duties.stuck_mails.seen import Seen, Stuck, look, stuck
from mailslice.duties.stuck_mails.verdicts import Action
from mailslice.duty.context import StepContext
from mailslice.duty.lock import Lock, locked
from mailslice.duty.plans import require_gate
from mailslice.duty.throttle import Throttle
from mailslice.model import crash
from mailslice.model.errors import MailsliceError, TryAgain
from mailslice.model.mail import EnqueueId
from mailslice.model.settings import StuckMode
from mailslice.queue.quarantine import Quarantine

OLDEST_PLAN = timedelta(hours=1)
PROGRESS = "progress.json"
SETTLED, RETURNED, GONE = "settled meanwhile", "given back meanwhile", "its holder is silent"


def run(context: StepContext, *, sleep: Callable[[float], None] = time.sleep) -> dict[str, Any]:
    """Apply the plan of this run. Raises PlanRefused when it was changed, is old, or the gate did not pass it."""
    plan = read_plan(context.need("plan"), context.request.run, context.queue)
    require_gate(context, plan, OLDEST_PLAN)
    with locked(
        context.stores.own.locks, f"stuck_mails/{context.queue}", context.request.run
    ) as lock:
        crash.point("apply:locked")
        return _Work(context, plan, lock, sleep).run()


@dataclass
class _Work:
    context: StepContext
    plan: Plan
    lock: Lock
    sleep: Callable[[float], None]
    done: list[dict[str, Any]] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    discarded: int = 0

    @cached_property
    def throttle(self) -> Throttle:
        """Each mail is a handful of writes and the copy of its content."""
        return self.context.throttle("s3")

    def run(self) -> dict[str, Any]:
        context, stores = self.context, self.context.stores
        quarantine = Quarantine(stores, context.queue, context.clock)
        shadow = self.plan.mode is StuckMode.SHADOW
        planned = {mail.enqueue_id for mail in self.plan.mails}
        finished, unswept = ({}, None) if shadow else self._tidied(quarantine, planned)
        seen = self._look()
        found = {each.mail.enqueue_id: each for each in stuck(seen, self.plan.timeout)}
        acting = Acting(
            context, self.plan, quarantine, self.lock.check, noted_before(context) if shadow else {}
        )
        earlier = {} if shadow else acting.earlier_try()
        left = 0
        for number, mail in enumerate(self.plan.mails):
            if mail.enqueue_id in earlier:
                self.done.append(earlier[mail.enqueue_id])
                continue
            if context.out_of_time():
                left = len(self.plan.mails) - number
                break
            self._one(acting, mail, seen, found.get(mail.enqueue_id))
        self.errors += acting.alarms
        if shadow:
            forget_notes(quarantine)
        else:
            self._discard(seen)
        return self._summary(left, finished, unswept)

    def _tidied(
        self, quarantine: Quarantine, planned: Collection[EnqueueId]
    ) -> tuple[dict[str, int], str | None]:
        finished = finish(self.context, quarantine, planned)
        swept, unswept = sweep(quarantine)
        return finished | swept, unswept

    def _look(self) -> Seen:
        """Who lives now, by records that are written from now on: not by one since the plan."""
        if not self.plan.mails and not self.plan.dead:
            return Seen((), (), (), ())
        table = self.context.stores.own.worker_records
        return look(lambda: table.list(self.context.queue), self.sleep)

    def _one(self, acting: Acting, planned: PlannedMail, seen: Seen, found: Stuck | None) -> None:
        """One mail; a store that is away for one of them stops no other, and is told at the end."""
        self.lock.check()
        if found is None or found.record.worker != planned.worker:
            self.skipped[_why_not(planned, seen)] += 1
            return
        self.throttle.take()
        try:
            self.done.append(acting.act(planned, found))
        except Skipped as skipped:
            self.skipped[str(skipped)] += 1
        except TryAgain:
            raise
        except MailsliceError as error:
            self.errors.append(f"{planned.enqueue_id}: {error}")
        self._keep()

    def _discard(self, seen: Seen) -> None:
        """The records of the planned dead, where they have not spoken since."""
        table = self.context.stores.own.worker_records
        now = {record.worker: record for record in (*seen.dead, *seen.silent)}
        for dead in self.plan.dead:
            record = now.get(dead.worker)
            if record is not None and record.beat == dead.beat:
                self.lock.check()
                table.discard(self.context.queue, record)
                self.discarded += 1

    def _keep(self) -> None:
        """In the run's folder, for the report of a run that ends early."""
        self.context.folder.write_json(PROGRESS, self._summary(0, {}))

    def _summary(
        self, left: int, finished: dict[str, int], unswept: str | None = None
    ) -> dict[str, Any]:
        counts = Counter(each["action"] for each in self.done)
        applied = 0 if self.plan.mode is StuckMode.SHADOW else len(self.done)
        return {
            "planDigest": self.plan.digest,
            "planned": len(self.plan.mails),
            "applied": applied,
            "skipped": sum(self.skipped.values()),
            "skippedBy": dict(self.skipped),
            "left": left,
            **{action.value: counts[action] for action in Action},
            "noted": len(self.done) - applied,
            "discardedRecords": self.discarded,
            "errors": self.errors[:20],
            "errorCount": len(self.errors),
            "finishedOfEarlierRuns": finished,
            "unswept": unswept,
            "decisions": self.done,
        }


def _why_not(planned: PlannedMail, seen: Seen) -> str:
    record = seen.record(planned.worker)
    if record is None:
        return (
            GONE
            if any(each.worker == planned.worker for each in (*seen.dead, *seen.silent))
            else SETTLED
        )
    mail = next((each for each in record.in_flight if each.enqueue_id == planned.enqueue_id), None)
    return SETTLED if mail is None else RETURNED
