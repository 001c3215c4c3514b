"""Step 1: read the workers' records, wait until it is known who lives, and write down which mails are stuck. Changes nothing, scans no view."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from mailslice.duties.stuck_mails.params import Params
from mailslice.duties.stuck_mails.plan_file import DeadRecord, Plan, PlannedMail
from mailslice.duties.stuck_mails.seen import P99, Seen, Stuck, lock_timeout, look, stuck
from mailslice.duties.stuck_mails.verdicts import is_superseded, would
from mailslice.duty.context import StepContext
from mailslice.model.durations import format_duration
from mailslice.model.errors import Refused
from mailslice.model.mail import EnqueueId
from mailslice.model.settings import StuckMode

BULKY = ("decided",)
_MILLISECOND = timedelta(milliseconds=1)


def run(context: StepContext, *, sleep: Callable[[float], None] = time.sleep) -> dict[str, Any]:
    """Which mails are stuck. Raises Refused for mode recover on a queue without stage marks: a stage would say nothing there."""
    mode = _mode(context)
    stores, queue = context.stores, context.queue
    seen = look(lambda: stores.own.worker_records.list(queue), sleep=sleep)
    timeout = _timeout(context, seen)
    found = [each for each in stuck(seen, timeout) if not is_superseded(stores, queue, each)]
    marked = stores.tables.deleted.marked(queue, [each.mail.enqueue_id for each in found])
    plan = Plan(
        context.request.run,
        queue,
        context.clock(),
        mode,
        timeout,
        tuple(
            _planned(context, each, mode) for each in found if each.mail.enqueue_id not in marked
        ),
        tuple(
            DeadRecord(record.worker, record.beat, len(record.in_flight)) for record in seen.dead
        ),
    )
    return _summary(context, plan, seen, marked)


def _mode(context: StepContext) -> StuckMode:
    mode = context.params(Params).mode_or(context.settings.duty.stuck_mode)
    if mode is StuckMode.RECOVER and context.queue not in context.settings.queue.stage_marks:
        raise Refused(
            f"stuck_mails --mode recover: the workers of {context.queue} write no stage marks (MAILSLICE_QUEUE_STAGE_MARKS), "
            "so nobody can tell what was sent; allowed are shadow and close"
        )
    return mode


def _timeout(context: StepContext, seen: Seen) -> timedelta:
    given = context.params(Params).lock_timeout
    duty = context.settings.duty
    found = (
        given
        if given is not None
        else lock_timeout(seen.times, factor=duty.stuck_factor, at_least=duty.stuck_at_least)
    )
    return found // _MILLISECOND * _MILLISECOND


def _planned(context: StepContext, found: Stuck, mode: StuckMode) -> PlannedMail:
    mail, record = found.mail, found.record
    since = record.since(mail) or context.clock()
    action = would(
        context.stores, context.queue, found, mode, by=context.request.run, now=context.clock()
    )
    age = found.age // _MILLISECOND * _MILLISECOND
    return PlannedMail(
        mail.enqueue_id,
        mail.name,
        record.worker,
        mail.stage,
        mail.attempt,
        since,
        age,
        action,
    )


def _summary(
    context: StepContext, plan: Plan, seen: Seen, marked: set[EnqueueId]
) -> dict[str, Any]:
    duty, in_flight = context.settings.duty, seen.in_flight
    p99 = seen.times.quantile(P99)
    return {
        "planDigest": plan.digest,
        "decided": plan.decided(),
        "planned": len(plan.mails),
        "mode": plan.mode.value,
        "lockTimeout": format_duration(plan.timeout),
        "lockTimeoutSeconds": plan.timeout / timedelta(seconds=1),
        "lockTimeoutGiven": context.params(Params).lock_timeout is not None,
        "p99Seconds": None if p99 is None else round(p99, 3),
        "measured": seen.times.total,
        "factor": duty.stuck_factor,
        "atLeast": format_duration(duty.stuck_at_least),
        "inFlight": len(in_flight),
        "waitingForHandler": sum(1 for mail in in_flight if not mail.begun),
        "alreadyMarked": len(marked),
        "workers": {
            "alive": len(seen.alive),
            "dead": len(seen.dead),
            "silent": len(seen.silent),
            "idle": _idle(seen),
        },
        "oldestSeconds": round(
            max(
                (
                    record.age(mail).total_seconds()
                    for record in seen.alive
                    for mail in record.in_flight
                ),
                default=0.0,
            ),
            3,
        ),
    }


def _idle(seen: Seen) -> int:
    return sum(1 for record in seen.all if not record.in_flight and record.is_alive)
