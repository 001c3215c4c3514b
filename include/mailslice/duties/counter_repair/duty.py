"""The duty: count the messages of every mailbox, correct wrong counters of quiet mailboxes."""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from heapq import nsmallest
from itertools import islice
from typing import Any
from uuid import UUID

from mailslice.checks.expectations import Frame
from mailslice.duties.counter_repair import gates
from mailslice.duties.counter_repair.corrections import CounterWork
from mailslice.duties.counter_repair.gates import Reread, as_report_entry, read_after
from mailslice.duties.counter_repair.params import Params
from mailslice.duties.counter_repair.planned import CounterPlan, Drift
from mailslice.duties.counter_repair.projection import repair_projection
from mailslice.duties.counter_repair.survey import CounterSurvey, Sleep, survey
from mailslice.maintenance.duty import Duty
from mailslice.maintenance.gates import usual_frames
from mailslice.maintenance.plan import load_plan
from mailslice.maintenance.plot import legend_above, say_empty, svg_axes
from mailslice.maintenance.progress import Progress
from mailslice.maintenance.result import Result, Summaries
from mailslice.maintenance.run import Run
from mailslice.maintenance.run_request import RunRequest
from mailslice.model import crash
from mailslice.stores.cassandra.mailboxes import Counters

_SAMPLED = 20
_AFTER = "after.json"
"""What verify read. The report has it even if verify's gate fails."""
_WITHOUT_PLAN: dict[str, Any] = {
    "processedMailboxes": 0,
    "wrong": 0,
    "inconsistencies": {},
    "inconsistencySample": [],
}
DRIFTS_PICTURE = "drifts.svg"
_EDGES = (-1001, -101, -11, -2, -1, 0, 1, 10, 100, 1000)
LABELS = (
    *("< -1000", "-1000..", "-100..", "-10..", "-1"),
    *("0", "1", "..10", "..100", "..1000", "> 1000"),
)
_WAS_COLOR, _NOW_COLOR = "#d9822b", "#2f9e6e"


class CounterRepair(Duty[CounterPlan]):
    """Adds the difference to a wrong counter, once. On request rewrites rows of the projection."""

    plan_type = CounterPlan
    items = "mailboxes"
    bulky = frozenset({"outcomes", "drifts"})
    unfinished = "claims say what it began; the next run looks at every mailbox anew"

    def __init__(
        self,
        sleep: Sleep = time.sleep,
        survey: Callable[[Run, Sleep], CounterSurvey] = survey,
        work: Callable[[Run, CounterPlan, Progress], CounterWork] = CounterWork,
    ) -> None:
        self._sleep, self._survey, self._work = sleep, survey, work

    def plan(self, run: Run) -> CounterPlan:
        """Raises Refused if James' tables do not exist."""
        params, tables = run.params(Params), run.stores.mailboxes
        tables.require(truth=not params.trust_projection)
        # `made_at` is compared with message times and used as a write time. The wait for `settle`
        # starts at `read_at`.
        require_clock(run, params.settle)
        made_at = run.clock()
        scanned = self._survey(run, self._sleep)
        plan = CounterPlan(
            run=run.request.run,
            made_at=made_at,
            read_at=run.clock(),
            settle=params.settle,
            trust_projection=params.trust_projection,
            repair_projection=params.repair_projection,
            drifts=scanned.drifts,
            differences=scanned.differences,
            inconsistencies=scanned.inconsistencies,
            scan=scanned.facts,
        )
        crash.point("plan:after-scan")
        users = {user.lower() for user in params.users}
        absent = len(users.difference(tables.of_users(users).values() if users else ()))
        absent += sum(not tables.exists(UUID(mailbox)) for mailbox in params.mailboxes)
        run.report(
            **_reported(run, plan),
            wrong=scanned.totals.wrong,
            message=scanned.message(absent=absent, has_modseqs=tables.has_modseqs),
        )
        return plan

    def check(self, run: Run, plan: CounterPlan) -> Iterable[Frame]:
        """An incomplete scan proves nothing. Too many drifts are a sign that the truth was lost."""
        yield gates.totals(run, plan)
        yield gates.drifts(run, plan)
        unusual = run.params(Params).unusual
        yield from usual_frames(run, plan.planned, gates.MANY, unusual=unusual)
        if plan.repair_projection:
            yield gates.differences(run, plan)

    def locks(self, request: RunRequest) -> tuple[str, ...]:
        """The lock name of earlier releases, so that their runs and this one exclude each other."""
        return (f"{request.duty}/{request.queue}",)

    def before_lock(self, run: Run, plan: CounterPlan) -> None:
        """Wait until `settle` after the end of the first read, before the second read begins."""
        require_clock(run, plan.settle)
        remaining = (plan.read_at + plan.settle - run.clock()).total_seconds()
        if remaining > 0 and (plan.planned or plan.repairable):
            self._sleep(remaining)

    def apply(self, run: Run, plan: CounterPlan, progress: Progress) -> None:
        """A mailbox that this run has claimed gets no second update, even if the first failed."""
        run.report(projection=None)
        self._work(run, plan, progress).correct_all(plan.read_drifts(run))
        crash.point("apply:after-counters")
        if plan.repair_projection:
            run.report(projection=repair_projection(run, plan))

    def verify(self, run: Run, plan: CounterPlan, result: Result) -> Iterable[Frame]:
        after = read_after(run, plan, result.fields.get("outcomes", {}))
        fields = _after(after)
        run.folder.write_json(_AFTER, {"after": fields})
        run.report(
            after=fields,
            movedSince=sum(mailbox.moved for mailbox in after if mailbox.applied),
            drifts={str(now.drift.mailbox): now.remaining_drift.count for now in after},
        )
        if after:
            yield gates.corrected(after)

    def describe(self, steps: Summaries) -> str:
        result, wrong = steps.result, steps.plan["wrong"]
        if not wrong and not _projection(steps).get("planned"):
            return ""
        words = [f"{result.applied} of {wrong} wrong mailboxes corrected"]
        if result.skipped:
            reasons = "; ".join(f"{count} {why}" for why, count in result.skipped.items())
            words.append(f"{sum(result.skipped.values())} skipped: {reasons}")
        if result.remaining:
            words.append(f"{result.remaining} left to the next run")
        return ", ".join(words) + _rows_in_words(steps)

    def nothing(self, steps: Summaries) -> str:
        return f"nothing to do: {super().nothing(steps)}"

    def problem(self, steps: Summaries) -> str | None:
        result, unknown = steps.result, steps.result.fields.get("unknown", 0)
        if not result.failed and not _projection(steps).get("failed"):
            return None
        failures = iter(result.failures.items())
        why = ": ".join(next(failures, ("rows of messageIdTable", "not written")))
        return (
            f"{result.applied} mailboxes corrected; {result.failed} failed or unknown "
            f"({unknown} unknown), such as {why}{_rows_in_words(steps)}"
        )

    def report_fields(self, steps: Summaries) -> dict[str, Any]:
        """`messages`: rows of the truth, or of the projection if `trust_projection` is set."""
        plan, result = steps.plan, steps.result
        trusted = plan.get("decided", {}).get("trustProjection")
        after = steps.folder.read_json(_AFTER) or {}
        return {
            **({} if plan else _WITHOUT_PLAN),
            "failedMailboxes": result.failed,
            "unknown": result.fields.get("unknown", 0),
            "messages": plan.get("projectedMessages" if trusted else "messages", 0),
            "projection": _projection(steps) or None,
            "after": after.get("after"),
        }

    def conclude(self, run: Run, steps: Summaries) -> None:
        """Draws the drifts. Raises PlanRefused if the plan was changed."""
        plan = load_plan(run, self.plan_type)
        before = {str(drift.mailbox): -drift.add.count for drift in plan.read_drifts(run)}
        after = {} if steps.verified is None else {**before, **steps.verified["drifts"]}
        picture = drifts_svg(before.values(), after.values(), steps.plan["decided"]["madeAt"])
        run.folder.artifacts.write(run.folder.file(DRIFTS_PICTURE), picture)
        run.report(plot=run.folder.artifacts.uri(run.folder.file(DRIFTS_PICTURE)))


DUTY = CounterRepair()


def require_clock(run: Run, settle: timedelta) -> None:
    """Raises ClockSkew. Clocks that differ by `settle` would skip the wait between the reads."""
    run.require_clock()
    run.require_clock(max(settle, timedelta(seconds=1)), "settle")


def _reported(run: Run, plan: CounterPlan) -> dict[str, Any]:
    """The plan's report fields: counts, the largest drifts, some of the rows that differ."""
    largest = nsmallest(
        _SAMPLED, run.stream_rows(plan.drifts, Drift), key=lambda drift: drift.order
    )
    sample = islice(plan.read_differences(run), _SAMPLED)
    return {
        "processedMailboxes": plan.scan.mailboxes,
        "inconsistencies": dict(plan.inconsistencies),
        "projectionPlanned": plan.repairable,
        "messages": plan.scan.messages,
        "projectedMessages": plan.scan.projected,
        "before": {
            "wrong": plan.planned,
            "largest": [as_report_entry(d.mailbox, d.stored, d.computed) for d in largest],
        },
        "inconsistencySample": [
            {"kind": row.kind, "mailbox": row.mailbox, "uid": row.uid, "message": row.message}
            for row in sample
        ],
        "reads": {
            "wanted": plan.scan.ranges,
            "read": plan.scan.read,
            "twice": plan.scan.twice,
            "holes": plan.scan.holes,
        },
    }


def _after(after: list[Reread]) -> dict[str, Any]:
    """The number of mailboxes that are wrong now, and the plan's largest drifts as they are now."""
    return {
        "wrong": sum(now.remaining_drift != Counters(0, 0) for now in after),
        "largest": [
            as_report_entry(now.drift.mailbox, now.stored, now.computed) for now in after[:_SAMPLED]
        ],
    }


def _projection(steps: Summaries) -> Mapping[str, Any]:
    """The counts of `repair_projection`; empty if apply was not asked to or did not reach it."""
    return steps.result.fields.get("projection") or {}


def _rows_in_words(steps: Summaries) -> str:
    if not (done := _projection(steps)):
        return ""
    return (
        f"; messageIdTable: {done['written']} rows written, {done['deleted']} deleted, "
        f"{done['skipped']} skipped, {done['failed']} failed, {done['left']} left"
    )


def histogram(drifts: Iterable[int]) -> list[int]:
    """The number of drifts in each column of LABELS. A drift is the stored less the real count."""
    counts = [0] * len(LABELS)
    for drift in drifts:
        counts[bisect_left(_EDGES, drift)] += 1
    return counts


def drifts_svg(before: Iterable[int], after: Iterable[int], measured: str) -> bytes:
    was, is_now = histogram(before), histogram(after)
    at = range(len(LABELS))
    with svg_axes(12, 2.7) as (axes, picture):
        for shift, counts, color, name in (
            (-0.2, was, _WAS_COLOR, "before"),
            (0.2, is_now, _NOW_COLOR, "after"),
        ):
            label = f"{name} {sum(counts):,}"
            axes.bar([x + shift for x in at], counts, color=color, width=0.4, label=label)
        if not any(was):
            say_empty(axes, "no drift")
            axes.set_yticks([])
        axes.set_xticks(list(at), LABELS)
        axes.set_ylabel("mailboxes")
        axes.set_xlabel("messages that a mailbox shows too many (too few: negative)")
        axes.set_title(f"Drift of mailbox counters, {measured}", loc="left", fontsize=9)
        legend_above(axes, 2)
    return picture.getvalue()
