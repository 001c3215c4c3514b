"""The duty: find mails whose holder lives and hangs; close or recover them by stage marks."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from mailslice.admin.quarantine import Holder, Quarantine
from mailslice.admin.queues import require
from mailslice.checks.expectations import Expectation, Frame
from mailslice.duties.stuck_mails.decided import DecidedMails
from mailslice.duties.stuck_mails.mails import (
    Action,
    DeadRecord,
    PlannedMail,
    StuckPlan,
    action_for,
    is_superseded,
)
from mailslice.duties.stuck_mails.params import Params
from mailslice.duties.stuck_mails.work import GAVE_UP, KINDS, NOTED, StuckMailWork
from mailslice.maintenance.duty import Duty
from mailslice.maintenance.liveness import (
    P99,
    Stuck,
    WorkerLiveness,
    lock_timeout,
    observe,
    stuck_mails,
)
from mailslice.maintenance.progress import Progress
from mailslice.maintenance.result import Result, Summaries
from mailslice.maintenance.run import Run
from mailslice.model.durations import format_duration
from mailslice.model.errors import Refused
from mailslice.model.mail import EnqueueId
from mailslice.model.settings import StuckMode

_MILLISECOND, _SECOND = timedelta(milliseconds=1), timedelta(seconds=1)
_MAX_MAILS, _MAX_NOTED, _MAX_ERRORS = 200, 1000, 20
"""Limits of entries in a report. In shadow mode `stuck list` shows these entries."""


class StuckMails(Duty[StuckPlan]):
    """Acts on mails of living workers. The broker redelivers a dead worker's: its record goes."""

    plan_type = StuckPlan
    plan_max_age = timedelta(hours=1)
    items = "stuck mails"
    kinds = tuple(KINDS.values())
    bulky = frozenset({"decisions", "mails"})
    unfinished = "the next run finishes it"

    def plan(self, run: Run) -> StuckPlan:
        """Scans no view. Raises UnknownQueue; Refused for mode recover without stage marks."""
        mode, stores, queue = _mode(run), run.stores, require(run.stores, run.queue)
        liveness = observe(lambda: stores.own.worker_records.list(queue))
        timeout, now = _lock_timeout(run, liveness), run.clock()
        stuck = [
            one for one in stuck_mails(liveness, timeout) if not is_superseded(stores, queue, one)
        ]
        marked = stores.tables.deleted.marked(queue, [one.mail.enqueue_id for one in stuck])
        mails = [
            _planned(run, one, mode, now) for one in stuck if one.mail.enqueue_id not in marked
        ]
        figures = _figures(run, liveness, timeout)
        run.report(
            **figures,
            mode=mode.value,
            alreadyMarked=len(marked),
            mails=[mail.as_json() for mail in mails[:_MAX_MAILS]],
            message=_message(figures, len(mails)),
        )
        return StuckPlan(
            run=run.request.run,
            queue=queue,
            made_at=now,
            mode=mode,
            lock_timeout=timeout,
            mails=run.write_rows("mails", mails, PlannedMail),
            dead=tuple(
                DeadRecord(record.worker, record.beat, len(record.in_flight))
                for record in liveness.dead
            ),
        )

    def check(self, run: Run, plan: StuckPlan) -> Iterable[Frame]:
        """Checks every planned mail, and that its holder has a record now."""
        if not plan.planned:
            return
        limit = run.params(Params).most
        sentence = f"One run decides about {limit} mails at most (most)."
        yield Frame.facts("totals", planned=(plan.planned, None, limit, sentence))
        records = run.stores.own.worker_records.list(run.queue)
        workers = {record.worker for record in records}
        yield _planned_mails(plan, run.read_rows(plan.mails, PlannedMail), workers)

    def apply(self, run: Run, plan: StuckPlan, progress: Progress) -> None:
        """Ends when a store does not answer. The next run finishes what was begun."""
        run.require_clock()
        StuckMailWork(run, plan, progress).perform_all()

    def verify(self, run: Run, plan: StuckPlan, result: Result) -> Iterable[Frame]:
        quarantine = Quarantine(run.stores, run.queue, run.clock)
        run.report(quarantined=sum(1 for _ in quarantine.waiting()))
        shadow = plan.mode is StuckMode.SHADOW
        entries = () if shadow else result.fields.get("decisions", ())
        reported = [EnqueueId(UUID(entry["enqueueId"])) for entry in entries]
        decided = DecidedMails.read(run, quarantine, plan, reported)
        if decided.ids:
            yield decided.frame()

    def describe(self, steps: Summaries) -> str:
        figures = steps.plan["message"]
        if steps.result.skipped.get(NOTED):
            return f"shadow mode, nothing was changed: {figures}"
        kinds = ((action, steps.result.kinds[kind]) for action, kind in KINDS.items())
        words = [f"{count} {action.value}" for action, count in kinds if count]
        if discarded := steps.result.fields.get("discardedRecords"):
            words.append(f"{discarded} records of dead workers discarded")
        return f"{figures}: {', '.join(words)}{_remaining_note(steps)}" if words else ""

    def nothing(self, steps: Summaries) -> str:
        return f"{steps.plan['message']}: nothing to do{_remaining_note(steps)}"

    def problem(self, steps: Summaries) -> str | None:
        errors = _errors(steps)
        if not errors:
            return None
        share = f"{_error_count(steps)} of {steps.result.planned} stuck mails"
        return f"{share} could not be acted on, such as {errors[0]}"

    def report_fields(self, steps: Summaries) -> dict[str, Any]:
        """`failed`: mails decided to have failed; `errorCount`: mails that were not acted on.

        `noted` is there only if the run came to apply (see `work.shadow_report_mails`).
        """
        result, fields = steps.result, steps.result.fields
        has_acted = steps.applied is not None or result.touched
        decisions, noted = fields.get("decisions", []), result.skipped.get(NOTED, 0)
        skipped = {why: count for why, count in result.skipped.items() if why != NOTED}
        shown = decisions[: _MAX_NOTED if noted else _MAX_MAILS]
        return {
            "inFlight": steps.plan.get("inFlight"),
            "failed": result.kinds[GAVE_UP],
            "skipped": sum(skipped.values()),
            "skippedBy": skipped,
            "discardedRecords": fields.get("discardedRecords", 0),
            "errorCount": _error_count(steps),
            "errors": _errors(steps)[:_MAX_ERRORS],
            **({"noted": noted} if has_acted else {}),
            "bytes": sum(decision.get("bytes", 0) for decision in decisions),
            "mails": shown if has_acted else steps.plan.get("mails", []),
            "quarantined": (steps.verified or {}).get("quarantined"),
        }

    def conclude(self, run: Run, steps: Summaries) -> None:
        unusual, planned = run.settings.duty.stuck_alert_from, steps.result.planned
        run.report(
            alert=f"unusual: {planned} mails are stuck in one run, {unusual} are "
            "(MAILSLICE_DUTY_STUCK_ALERT_FROM): look at the handler and what it talks to"
            if planned >= unusual
            else None
        )

    def outcome(self, run: Run, steps: Summaries) -> tuple[str, str]:
        """The message also has the alert, and why copies without a row were left."""
        status, message = super().outcome(run, steps)
        more = (run.fields["alert"], steps.result.fields.get("unswept"))
        return status, "; ".join([message, *filter(None, more)])


DUTY = StuckMails()


def _mode(run: Run) -> StuckMode:
    mode = run.params(Params).mode or run.settings.duty.stuck_mode
    if mode is StuckMode.RECOVER and run.queue not in run.settings.queue.stage_marks:
        raise Refused(
            f"stuck_mails --mode recover: the workers of {run.queue} write no stage marks "
            "(MAILSLICE_QUEUE_STAGE_MARKS), so nobody can tell what was sent; allowed are shadow "
            "and close"
        )
    return mode


def _lock_timeout(run: Run, liveness: WorkerLiveness) -> timedelta:
    """The run's param, else by the queue's own processing times; in whole milliseconds."""
    timeout, duty = run.params(Params).lock_timeout, run.settings.duty
    if timeout is None:
        timeout = lock_timeout(
            liveness.times, factor=duty.stuck_factor, at_least=duty.stuck_at_least
        )
    return timeout // _MILLISECOND * _MILLISECOND


def _planned(run: Run, stuck: Stuck, mode: StuckMode, now: datetime) -> PlannedMail:
    mail, record = stuck.mail, stuck.record
    action = action_for(run.stores, run.queue, stuck, mode, by=run.request.run, now=now)
    since = record.since(mail) or now
    holder = Holder(record.worker, mail.stage, since, stuck.age, mail.attempt)
    return PlannedMail.of(mail.enqueue_id, mail.name, holder, action)


def _figures(run: Run, liveness: WorkerLiveness, timeout: timedelta) -> dict[str, Any]:
    duty, in_flight, p99 = run.settings.duty, liveness.in_flight, liveness.times.quantile(P99)
    ages = (one.age(mail) for one in liveness.alive for mail in one.in_flight if not mail.returned)
    return {
        "lockTimeout": format_duration(timeout),
        "lockTimeoutSeconds": timeout / _SECOND,
        "lockTimeoutGiven": run.params(Params).lock_timeout is not None,
        "p99Seconds": None if p99 is None else round(p99, 3),
        "measured": liveness.times.total,
        "factor": duty.stuck_factor,
        "atLeast": format_duration(duty.stuck_at_least),
        "inFlight": len(in_flight),
        "waitingForHandler": sum(not mail.begun for mail in in_flight),
        "workers": {
            "alive": len(liveness.alive),
            "dead": len(liveness.dead),
            "silent": len(liveness.silent),
            "idle": sum(not record.in_flight and record.is_alive for record in liveness.all),
        },
        "oldestSeconds": round(max(ages, default=timedelta(0)) / _SECOND, 3),
    }


def _message(figures: dict[str, Any], planned: int) -> str:
    p99 = figures["p99Seconds"]
    measured = "no mail was measured" if p99 is None else f"p99 is {p99:g} s"
    timeout = f"the lock timeout of {figures['lockTimeout']}"
    return f"{figures['inFlight']} in flight, {planned} beyond {timeout} ({measured})"


def _planned_mails(plan: StuckPlan, mails: Sequence[PlannedMail], workers: set[str]) -> Frame:
    rows = [
        {
            "enqueue_id": str(mail.enqueue_id),
            "age_seconds": mail.age_seconds,
            "held_before_plan_seconds": (plan.made_at - mail.since) / _SECOND,
            "holder": "known" if mail.worker in workers else "unknown",
            "action": mail.action,
        }
        for mail in mails
    ]
    allowed = [Action.CLOSED] if plan.mode is StuckMode.CLOSE else list(Action)
    timeout = plan.lock_timeout / _SECOND
    expect = [
        Expectation.unique("enqueue_id", "Every mail is planned once."),
        Expectation.between(
            "age_seconds", timeout, None, "Every mail was held for longer than the lock timeout."
        ),
        Expectation.between(
            "held_before_plan_seconds", 0, None, "Every mail was held before the plan was made."
        ),
        Expectation.one_of(
            "holder", ["known"], "Every holder has a record among those of the queue's workers."
        ),
        Expectation.one_of(
            "action",
            [action.value for action in allowed],
            "Every action is one of the plan's mode.",
        ),
    ]
    return Frame("mails", rows, expect)


def _errors(steps: Summaries) -> list[str]:
    failures = [f"{mail}: {why}" for mail, why in steps.result.failures.items()]
    return failures + list(steps.result.fields.get("alarms", ()))


def _error_count(steps: Summaries) -> int:
    return steps.result.failed + len(steps.result.fields.get("alarms", ()))


def _remaining_note(steps: Summaries) -> str:
    remaining = steps.result.remaining
    return f"; {remaining} are left to the next run" if remaining else ""
