"""The duty: find the old live mails, gather the evidence, judge each, publish the counts."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from mailslice.admin.queues import require
from mailslice.checks.expectations import Expectation, Frame
from mailslice.codec.row import instant
from mailslice.duties.queue_audit.evidence import gather
from mailslice.duties.queue_audit.params import Params
from mailslice.duties.queue_audit.scans import AuditSpec, OldMails, classify_all, find_old_mails
from mailslice.maintenance.audits import CENSUS_PATIENCE, AuditPlan, AuditReads
from mailslice.maintenance.duty import ReportDuty
from mailslice.maintenance.gates import Reads, planned_rows
from mailslice.maintenance.metrics import exposition, queue_file, verdict_samples
from mailslice.maintenance.result import Result, Summaries
from mailslice.maintenance.run import Run
from mailslice.model import crash
from mailslice.model.durations import format_duration
from mailslice.model.verdicts import Verdict
from mailslice.stores.cassandra.own.quarantine import State
from mailslice.view.configuration import Shape, view_shape
from mailslice.view.live_rows import LiveRows
from mailslice.view.partitions import slices_of

_WINDOWS = 2
"""Age in slice windows from which a mail is audited, without the param `older_than`."""
_LOST = frozenset({Verdict.LOST, Verdict.LOST_OR_GHOST})
_TAKEN_OUT = frozenset({State.KEPT, State.TAKEN, State.RELEASING})
"""States of mails that a move took out of the queue, and did not bring to another yet."""


class QueueAudit(ReportDuty[AuditPlan]):
    """Changes no mail. A census, if asked for, logs first what it changes in the queue."""

    plan_type = AuditPlan
    items = "mails"
    lock_patience = CENSUS_PATIENCE
    unfinished = "the verdicts were not published"

    def plan(self, run: Run) -> AuditPlan:
        """Raises UnknownQueue, LockHeld, Refused for a census that would do harm.

        The lock excludes a republish: it could publish a mail after the census looked for it.
        """
        require(run.stores, run.queue)
        with run.locked() as locked:
            return _audit(locked)

    def check(self, run: Run, plan: AuditPlan) -> Iterable[Frame]:
        """Checks that the verdicts are consistent, by the rows of their files."""
        reads = plan.reads
        every = "Every old live mail of the first read was judged, or not live at the second."
        yield Frame.facts(
            "totals",
            **Reads(reads.requested, reads.read, reads.twice).facts(),
            judged=(reads.judged, reads.candidates, reads.candidates, every),
        )
        yield mails(run, plan)

    def publish(self, run: Run, plan: AuditPlan) -> None:
        """Publishes metrics of the whole queue: none if the run was limited to some slices."""
        run.report(applied=plan.planned)
        if not run.params(Params).ranged:
            location, file = run.folder.artifacts, file_of(run.queue)
            plan.prove(location)
            location.write(file, exposition(verdict_samples(run.queue, plan.verdicts)))
            run.report(metrics=location.uri(file))

    def verify(self, run: Run, plan: AuditPlan, result: Result) -> Iterable[Frame]:
        """Reads back the verdict files, which a republish uses."""
        del result
        yield published(run, plan)

    def report_fields(self, steps: Summaries) -> dict[str, Any]:
        return {name: steps.plan.get(name) for name in ("verdicts", "census")}


DUTY = QueueAudit()


def _audit(run: Run) -> AuditPlan:
    params, view, now = run.params(Params), view_shape(run.stores), run.clock()
    age = params.older_than if params.older_than is not None else _WINDOWS * view.window
    slices, buckets = _slices(run, view, now, now - age)
    location, folder = run.folder.artifacts, run.folder.name
    where = (run.settings, run.queue, location, folder)
    spec = AuditSpec(*where, view.window, buckets, latest=now - age, began=now)
    old_mails = find_old_mails(run.session(), spec, slices) if slices else []
    candidates = [old for old in old_mails if old.count]
    crash.point("plan:after-first-read")

    # Where no mail is old enough, a census could prove nothing, and none is taken.
    census = params.census and not params.dry_run
    youngest = max((instant(old.youngest_ms) for old in candidates), default=None)
    evidence, taken = gather(run, census=census, youngest=youngest)
    crash.point("plan:after-evidence")

    tasks = classify_all(run.session(), spec, candidates, evidence) if candidates else []
    run.require_lock()  # else a republish may have published what is called lost
    files = sorted((task.file for task in tasks if task.file.rows), key=lambda file: file.file)
    deleted = sum(task.deleted for task in tasks)
    verdicts = {one.value: sum(task.verdicts.get(one, 0) for task in tasks) for one in Verdict}
    moves = run.stores.own.moving_mails.list(run.queue)
    taken_out = sum(mail.state in _TAKEN_OUT for mail in moves)
    also = f"; {taken_out} mails are in moves: repeat one that was cut off" if taken_out else ""
    requested = len(slices) * buckets * len(run.stores.tables.existing)
    plan = AuditPlan(
        run=run.request.run,
        queue=run.queue,
        made_at=now,
        older_than=age,
        shared=evidence.shared,
        census=census,
        unproved=evidence.unproved is not None,
        verdicts=verdicts,
        verdict_files=tuple(files),
        reads=_reads(requested, old_mails, deleted + sum(file.rows for file in files)),
    )
    run.report(
        verdicts=verdicts,
        olderThan=format_duration(age),
        census=_census(params, taken),
        broker=evidence.counts.as_json(),
        mails=plan.planned,
        goneMeanwhile=deleted,
        takenOut=taken_out,
        message=_message(plan, params) + also,
    )
    return plan


def _slices(run: Run, view: Shape, now: datetime, latest: datetime) -> tuple[list[datetime], int]:
    """The run's slices that may hold mails enqueued until `latest`, and how many buckets."""
    partitions = LiveRows(run.stores.tables, run.queue, view).partitions(now)
    slices, buckets = slices_of(partitions, view.buckets)
    # A writer reads its clock once for the slice and once for the enqueued time, and may be ahead.
    until, covers = latest + view.largest_window, run.params(Params).covers
    return [start for start in slices if start <= until and covers(start)], buckets


def _reads(requested: int, old_mails: Sequence[OldMails], classified: int) -> AuditReads:
    keys = {(old.name, old.delayed) for old in old_mails}
    return AuditReads(
        requested=requested,
        read=len({name for name, _ in keys}),
        twice=len(old_mails) - len(keys),
        candidates=sum(old.count for old in old_mails),
        judged=classified,
    )


def _census(params: Params, taken: dict[str, Any] | None) -> dict[str, object]:
    if taken is not None:
        return {"taken": True, **taken}
    if not params.census:
        return {"taken": False, "why": "it was not asked for"}
    if params.dry_run:
        return {"taken": False, "why": "a dry run takes none"}
    return {"taken": False, "needless": True, "why": "no mail is old enough"}


def _message(plan: AuditPlan, params: Params) -> str:
    age = format_duration(plan.older_than)
    if not plan.planned:
        return f"no live mail is older than {age}"
    counts = ", ".join(f"{count} {verdict}" for verdict, count in plan.verdicts.items() if count)
    hint = "; a census (--census) may tell the unknown ones apart"
    needs_hint = plan.verdicts[Verdict.UNKNOWN] and not params.census
    return f"{plan.planned} live mails are older than {age}: {counts}{hint if needs_hint else ''}"


def mails(run: Run, plan: AuditPlan) -> Frame:
    """One row a mail, as the audit's files have it."""
    text, number = pa.string(), pa.int64()
    key = {"table": text, "slice_ms": number, "bucket": number, "enqueue_id": text}
    expect = [
        Expectation.rows(plan.planned, "The files have as many mails as were judged."),
        Expectation.unique(list(key), "Every mail has exactly one verdict."),
        Expectation.one_of("verdict", _provable(plan), _sentence(plan)),
    ]
    files = sorted(plan.files())
    rows = planned_rows(run, files, pa.schema({**key, "verdict": text}))
    return Frame("mails", rows, expect, may_be_empty=not plan.planned)


def _provable(plan: AuditPlan) -> list[str]:
    lost = Verdict.LOST_OR_GHOST if plan.shared else Verdict.LOST
    proves = plan.census and not plan.unproved
    return [one.value for one in Verdict if one not in _LOST or (proves and one is lost)]


def _sentence(plan: AuditPlan) -> str:
    if not plan.census:
        return "Without a census no mail is called lost."
    if plan.unproved:
        return "No mail is called lost while a consumer holds messages that nobody explains."
    if plan.shared:
        return "On a queue that James shares no mail is called lost without 'or ghost'."
    return "On a queue that is mailslice's alone nothing is 'lost or ghost'."


def published(run: Run, plan: AuditPlan) -> Frame:
    """The files against the counts. Another audit may have replaced the metrics: not checked."""
    in_files = Counter(mail.verdict for mail in plan.mails(run.folder.artifacts))
    rows = [
        {"verdict": verdict, "judged": count, "in_files": in_files[verdict]}
        for verdict, count in plan.verdicts.items()
    ]
    counted = "The files hold as many mails of each verdict as were judged so."
    return Frame("verdicts", rows, [Expectation.same("in_files", "judged", counted)])


def file_of(queue: str) -> str:
    return queue_file("mailslice-audit", queue)
