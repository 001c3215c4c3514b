"""The duty: find Postal's stuck messages; close them, complete them, or give their locks back."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, timedelta
from typing import Any

from mailslice.checks.expectations import Expectation, Frame
from mailslice.duties.stuck_mails_postal.identity import agree, existing_entries, require_same
from mailslice.duties.stuck_mails_postal.metrics import METRICS_FILE, samples
from mailslice.duties.stuck_mails_postal.params import Params
from mailslice.duties.stuck_mails_postal.planned import PlannedRow, PostalAction, PostalPlan
from mailslice.duties.stuck_mails_postal.quarantine import copy_file
from mailslice.duties.stuck_mails_postal.quarantined import in_quarantine
from mailslice.duties.stuck_mails_postal.rules import PostalStage, PostalState, limit_of
from mailslice.duties.stuck_mails_postal.survey import PostalSurvey, survey
from mailslice.duties.stuck_mails_postal.work import StuckMessages
from mailslice.maintenance.artifacts import iso
from mailslice.maintenance.duty import Duty
from mailslice.maintenance.metrics import exposition
from mailslice.maintenance.progress import Progress
from mailslice.maintenance.result import Result, Summaries
from mailslice.maintenance.run import Run
from mailslice.model.durations import format_duration
from mailslice.model.errors import BadInput, MailsliceError
from mailslice.model.settings import PostalMode
from mailslice.stores.own.postal_quarantine import EntryState, PostalEntry
from mailslice.stores.postal.rows import PostalQueue

_SECOND = timedelta(seconds=1)
_MAX_AHEAD = timedelta(minutes=1)
"""How far the clock of the person who gives `restarted` may be ahead of the database's."""
_MAX_ROWS = 200
"""Rows in a report."""
_WHOLE, _MISSING, _DIFFERS = "whole", "missing", "differs"
_ABSENT, _AS_IT_WAS, _ANEW = "gone", "as it was", "anew"


class StuckMailsPostal(Duty[PostalPlan]):
    """Works beside live workers of Postal: one short transaction a message."""

    plan_type = PostalPlan
    plan_max_age = timedelta(hours=1)
    items = "stuck messages"
    kinds = tuple(action.value for action in PostalAction)
    bulky = frozenset({"decisions", "rows"})
    unfinished = "the next run finishes it"

    def plan(self, run: Run) -> PostalPlan:
        """Reads Postal's queue by key, and messages and delivery records only for old locks."""
        require_same(run.stores)
        params, now = run.params(Params), run.clock()
        mode = params.mode or run.settings.postal.mode
        seen = survey(run.stores.postal, params.lock_timeout)
        surveyed_at = seen.now.replace(tzinfo=UTC)
        if params.restarted is not None and params.restarted > surveyed_at + _MAX_AHEAD:
            raise BadInput(
                f"restarted={iso(params.restarted)} is in the future; allowed: a moment before "
                f"{iso(surveyed_at)}, since when every worker of Postal runs"
            )
        rows = [PlannedRow.of(row) for row in seen.rows]
        plan = PostalPlan(
            run=run.request.run,
            made_at=now,
            mode=mode,
            lock_timeout=seen.lock_timeout,
            p99=seen.p99,
            surveyed_at=surveyed_at,
            limit=params.limit,
            restarted=params.restarted,
            accept_duplicates=params.accept_duplicates,
            rows=run.write_rows("rows", rows, PlannedRow),
        )
        run.report(
            mode=mode.value,
            found=len(rows),
            queued=seen.queued,
            byState=dict(Counter(row.state.value for row in rows)),
            byStage=dict(Counter(row.stage.value for row in rows if row.stage)),
            lockTimeoutSeconds=seen.lock_timeout / _SECOND,
            p99Seconds=None if seen.p99 is None else seen.p99 / _SECOND,
            quarantined=len(in_quarantine(existing_entries(run.stores))),
            oldestSeconds=max((row.age_seconds or 0.0 for row in rows), default=0.0),
            unreadable={str(server): why for server, why in seen.unreadable.items()},
            rows=[{**row.as_json(), **plan.by_mode(row)} for row in rows[:_MAX_ROWS]],
            message=_message(seen, rows),
        )
        return plan

    def check(self, run: Run, plan: PostalPlan) -> Iterable[Frame]:
        """Checks every row of the plan's file."""
        rows = run.read_rows(plan.rows, PlannedRow)
        if rows:
            yield _planned_rows(plan, rows)

    def apply(self, run: Run, plan: PostalPlan, progress: Progress) -> None:
        """Ends when a MariaDB does not answer. The next run finishes what was begun."""
        agree(run.stores)
        StuckMessages(run, plan, progress).perform_all()

    def verify(self, run: Run, plan: PostalPlan, result: Result) -> Iterable[Frame]:
        entries = existing_entries(run.stores)
        run.report(quarantined=len(in_quarantine(entries)))
        if result.applied:
            planned = {row.queued_message: row for row in run.read_rows(plan.rows, PlannedRow)}
            reported = result.fields.get("decisions", ())
            rows = [planned[int(entry["queuedMessage"])] for entry in reported]
            yield closed_messages(run, rows, entries)

    def describe(self, steps: Summaries) -> str:
        words = [f"{count} {kind}" for kind, count in steps.result.kinds.items() if count]
        if not words:
            return ""
        return f"{steps.plan['message']}: {', '.join([*words, *steps.result.rest()])}"

    def nothing(self, steps: Summaries) -> str:
        figures = str(steps.plan["message"])
        if steps.plan.get("mode") == PostalMode.SHADOW and steps.plan.get("found"):
            return f"shadow mode, nothing was changed: {figures}"
        return "; ".join([figures, *steps.result.rest()])

    def report_fields(self, steps: Summaries) -> dict[str, Any]:
        """In shadow mode no rows remain for a later run. States are those of the plan."""
        decisions = list(steps.result.fields.get("decisions", ()))
        fields: dict[str, Any] = {
            "rows": steps.plan.get("rows", []),
            "decisions": decisions[:_MAX_ROWS],
            "doneByState": dict(Counter(one["state"] for one in decisions)),
        }
        if steps.plan.get("mode") == PostalMode.SHADOW:
            fields |= {"remaining": 0, "left": 0}
        return fields

    def conclude(self, run: Run, steps: Summaries) -> None:
        unusual, planned = run.settings.duty.stuck_alert_from, int(steps.plan.get("planned", 0))
        run.report(
            alert=f"unusual: {planned} messages are stuck in one run, {unusual} are "
            "(MAILSLICE_DUTY_STUCK_ALERT_FROM): look at Postal's workers"
            if planned >= unusual
            else None
        )
        fields = {**steps.fields(self.bulky), **self.report_fields(steps)}
        with suppress(MailsliceError, OSError):
            run.folder.artifacts.write(METRICS_FILE, exposition(samples(fields)))

    def outcome(self, run: Run, steps: Summaries) -> tuple[str, str]:
        """The message also has the alert, and the servers that could not be read in full."""
        status, message = super().outcome(run, steps)
        servers = ", ".join(steps.plan.get("unreadable") or ())
        left_out = servers and f"servers that cannot be read in full: {servers}"
        return status, "; ".join([message, *filter(None, (run.fields["alert"], left_out))])


DUTY = StuckMailsPostal()


def _message(seen: PostalSurvey, rows: Sequence[PlannedRow]) -> str:
    whole = timedelta(seconds=round(seen.lock_timeout / _SECOND))
    measured = "no sending was measured" if seen.p99 is None else f"p99 is {seen.p99 / _SECOND:g} s"
    timeout = f"the lock time-out of {format_duration(whole)}"
    return f"{seen.queued} in Postal's queue, {len(rows)} beyond {timeout} ({measured})"


def _planned_rows(plan: PostalPlan, rows: Sequence[PlannedRow]) -> Frame:
    """Ages count from the lock, or from the creation of a row without a lock."""
    sizes = Counter(row.lock for row in rows)
    mode = PostalMode.CLOSE if plan.mode is PostalMode.SHADOW else plan.mode
    table = [
        {
            "queued_message": row.queued_message,
            "over_the_limit_seconds": (
                plan.surveyed_at
                - (row.locked_at or row.created_at or plan.surveyed_at)
                - limit_of(plan.lock_timeout, plan.p99, sizes[row.lock] if row.is_locked else 1)
            )
            / _SECOND,
            "unlocked_and_not_gone": int(
                not row.is_locked and row.state is not PostalState.MESSAGE_GONE
            ),
            "stage_of_nothing": int((row.stage is None) == (row.state is PostalState.STUCK)),
            "sent_and_put_back": int(
                plan.action(row, mode) is PostalAction.RETRIED
                and not plan.accept_duplicates
                and row.stage not in {PostalStage.BEFORE_SENDING, PostalStage.DEFERRED}
            ),
        }
        for row in rows
    ]
    expect = [
        Expectation.unique("queued_message", "Every row of Postal's queue is planned once."),
        Expectation.between(
            "over_the_limit_seconds", 0, None, "Every lock is older than its group may last."
        ),
        Expectation.equal(
            "unlocked_and_not_gone", 0, "Rows without a lock are planned when their mail is gone."
        ),
        Expectation.equal("stage_of_nothing", 0, "Stuck messages have a stage, others have none."),
        Expectation.equal(
            "sent_and_put_back", 0, "No message that may have been sent goes back by itself."
        ),
    ]
    return Frame("rows", table, expect)


def closed_messages(run: Run, rows: Sequence[PlannedRow], entries: Sequence[PostalEntry]) -> Frame:
    """One row for each of `rows`: its state in Postal's `queue`, its `copy`, its `entry`."""
    queue = PostalQueue(run.stores.postal.main)
    current = queue.by_id([planned.queued_message for planned in rows])
    of_run = {entry.queued_message: entry for entry in entries if entry.run == run.request.run}
    table = []
    for planned in rows:
        number = planned.queued_message
        entry, row = of_run.get(number), current.get(number)
        table.append(
            {
                "queued_message": number,
                "queue": _ABSENT if row is None else _AS_IT_WAS if planned.is_still(row) else _ANEW,
                "copy": _WHOLE if entry is None else _copy(run, entry),
                "entry": "none" if entry is None else entry.state.value,
            }
        )
    kept = [state.value for state in EntryState if state is not EntryState.NOTED]
    expect = [
        Expectation.unique("queued_message", "Every row was acted on once."),
        Expectation.one_of("queue", [_ABSENT, _ANEW], "No row is in the queue as it was."),
        Expectation.one_of("copy", [_WHOLE], "Every message in quarantine has its whole copy."),
        Expectation.one_of("entry", [*kept, "none"], "No entry waits for its copy."),
    ]
    return Frame("messages", table, expect)


def _copy(run: Run, entry: PostalEntry) -> str:
    """A copy's state. No fault if its entry changed: a person releases or discards the message."""
    content = run.folder.artifacts.read(copy_file(entry.copy_id))
    if content is not None and hashlib.sha256(content).hexdigest() == entry.sha256:
        return _WHOLE
    if run.stores.records.postal_quarantine.get(entry.server, entry.message) != entry:
        return _WHOLE
    return _MISSING if content is None else _DIFFERS
