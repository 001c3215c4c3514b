"""The duty: delete the rows of dead slices, raise both starts, drop deleted marks with a proof."""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from mailslice.checks.expectations import Frame
from mailslice.codec.row import instant
from mailslice.duties.queue_cleanup import candidates, decide, gates, view
from mailslice.duties.queue_cleanup.marks import MarksOutcome, drop_proved_marks
from mailslice.duties.queue_cleanup.orphan_rows import quarantine_rows
from mailslice.duties.queue_cleanup.params import Params
from mailslice.duties.queue_cleanup.plan import CleanupPlan, PlannedPartition, planned_partitions
from mailslice.duties.queue_cleanup.planner import MAX_ORPHAN_ROWS, make_plan, unrepaired_tables
from mailslice.duties.queue_cleanup.reads import Remaining, SecondRead, read_remaining, second_read
from mailslice.duties.queue_cleanup.view import Moved, Starts
from mailslice.engine.partition_scan import PartitionName
from mailslice.maintenance.artifacts import iso
from mailslice.maintenance.duty import Duty
from mailslice.maintenance.gates import usual_frames
from mailslice.maintenance.progress import Progress
from mailslice.maintenance.rate_limit import Throttle
from mailslice.maintenance.report import DONE, DRY_RUN
from mailslice.maintenance.result import TIME_LIMIT, Result, Summaries
from mailslice.maintenance.run import Run
from mailslice.model import crash
from mailslice.model.command_line import command_line
from mailslice.model.errors import MailsliceError
from mailslice.model.mail import EnqueueId
from mailslice.stores.cassandra.own import SliceStatistic
from mailslice.stores.cassandra.session import Pending

DELETED_SINCE_PLAN = "gone since plan"
MAX_NAMED = 99
"""The report names at most this many partitions that failed."""
_CLEAN = "nothing to do, the range is clean already: "
_IN_FLIGHT = 16
_TARGET, _DELETING = "browseStartTarget", "deletesBegun"
"""Progress of a killed try of this plan: it may have written this browseStart, begun to delete."""
_BEFORE, _WRITTEN = "browseStartBefore", "browseStartWrittenUs"
"""For verify: browseStart before apply raised it, and the write time of apply's value."""


class QueueCleanup(Duty[CleanupPlan]):
    """After a killed apply the next plan has the remaining rows, the next sweep the marks."""

    plan_type = CleanupPlan
    items = "rows"
    bulky = frozenset(
        {"skippedSlices", "tried", "unlisted", "closedSlices", "readAt"}
        | {_TARGET, _DELETING, _BEFORE, _WRITTEN}
    )

    def plan(self, run: Run) -> CleanupPlan:
        return make_plan(run)

    def retained(self, run: Run) -> Collection[str]:
        """The list of marks that this run's sweep wrote, if the run is planned again."""
        return candidates.retained(run)

    def check(self, run: Run, plan: CleanupPlan) -> Iterable[Frame]:
        partitions = planned_partitions(run, plan)
        yield gates.rows(run, plan, partitions)
        yield gates.stores(run, plan, partitions)
        yield gates.totals(run, plan)
        if not plan.ranged:
            unusual = run.params(Params).unusual
            yield from usual_frames(run, plan.planned, gates.MANY, unusual=unusual)

    def apply(self, run: Run, plan: CleanupPlan, progress: Progress) -> None:
        """Reads the slices again, then changes browseStart, rows, proved marks, contentStart."""
        run.require_clock(plan.grace)
        partitions = planned_partitions(run, plan)
        throttle = run.throttle("cassandra", run.params(Params).rate)
        second = second_read(run, plan, partitions)
        crash.point("apply:after-second-read")

        run.require_lock()
        browse = _raise_browse_start(run, second, progress)
        crash.point("apply:after-browse-start")

        quarantined, alarms = quarantine_rows(run, plan.strays, plan.shape.window)
        run.report(aside=quarantined, keptAnew=alarms)
        crash.point("apply:after-aside")

        chosen, deleted_rows = _choose(run, partitions, second, progress)
        run.report(unrepaired=unrepaired_tables(run, plan, chosen, browse.after))
        tried, failures = delete_partitions(run, chosen, throttle)
        crash.point("apply:after-deletes")

        remaining = read_remaining(run, second, partitions, chosen[:tried])
        remaining.save(run)
        rows = {part.name: part.rows - deleted_rows.get(part.name, 0) for part in chosen}
        _count(progress, rows, chosen[:tried], failures, remaining)
        crash.point("apply:after-read-back")

        reread = partitions if remaining.is_whole else chosen[:tried]
        marks = drop_proved_marks(run, plan, reread, remaining, throttle)
        unlisted = run.params(Params).sweep and not remaining.is_whole
        _save(run, progress, marks=marks.as_json(), tried=tried, unlisted=unlisted)
        crash.point("apply:after-marks")
        if run.params(Params).sweep and remaining.is_whole:
            run.require_lock()
            marks.listed = candidates.record(run, remaining.ids(), plan.grace).marks
            _save(run, progress, marks=marks.as_json())

        run.require_lock()
        content = _raise_content_start(run, plan, remaining)
        crash.point("apply:after-content-start")
        run.report(
            wrote={"browseStart": iso(browse.wrote), "contentStart": iso(content.wrote)},
            after=_after(run, plan, remaining, Starts(browse.after, content.after)),
        )

    def verify(self, run: Run, plan: CleanupPlan, result: Result) -> Iterable[Frame]:
        verification = gates.Verification.of(run, plan, result)
        remaining = verification.remaining
        run.report(
            after=_after(run, plan, remaining, verification.starts),
            readAt=iso(remaining.read_at),
            closedSlices=verification.closed_slices(),
        )
        return [verification.frame()]

    def describe(self, steps: Summaries) -> str:
        result, marks = steps.result, _marks(steps)
        quarantined, wrote = result.fields.get("aside", 0), result.fields.get("wrote", {})
        moved = [name for name, when in wrote.items() if when]
        if not (result.applied or result.skipped or moved or marks["dropped"] or quarantined):
            return ""
        named = len(steps.plan.get("strays", ()))
        left = f"{named - quarantined}{' or more' if named == MAX_ORPHAN_ROWS else ''} rows"
        queue, command = steps.folder.queue, "(--sweep --aside sets them aside)"
        parts = [
            (f"{result.applied} rows deleted", True),
            (f"{sum(result.skipped.values())} skipped", result.skipped),
            (f"{' and '.join(moved)} moved" if moved else "the starts stay", True),
            (f"{quarantined} rows set aside ({command_line('stuck list', queue)})", quarantined),
            (f"{marks['dropped']} deleted marks dropped ({marks['proof']})", marks["dropped"]),
            (f"{left} without a mark stay {command}", left != "0 rows"),
        ]
        return ", ".join(text for text, is_true in parts if is_true) + _waiting(marks)

    def nothing(self, steps: Summaries) -> str:
        message = super().nothing(steps)
        clean = "" if message.startswith("nothing to do") else _CLEAN
        return clean + message + _waiting(_marks(steps))

    def problem(self, steps: Summaries) -> str | None:
        fields = steps.result.fields
        unlisted = f"the sweep listed no marks: {TIME_LIMIT}" if fields.get("unlisted") else None
        return super().problem(steps) or next(iter(fields.get("keptAnew", ())), unlisted)

    def outcome(self, run: Run, steps: Summaries) -> tuple[str, str]:
        status, message = super().outcome(run, steps)
        tables = {**steps.plan, **steps.result.fields}.get("unrepaired", ())
        return status, message + repair_warning(tables if status in {DONE, DRY_RUN} else ())

    def report_fields(self, steps: Summaries) -> dict[str, Any]:
        """Adds defaults for fields of steps that did not run."""
        plan, fields = steps.plan, steps.result.fields
        known = {"aside": 0, "unproven": 0, "undated": 0, "strays": [], "unrepaired": []}
        defaults = {name: value for name, value in known.items() if name not in {**plan, **fields}}
        defaults |= {"before": plan.get("before"), "marks": _marks(steps)}
        if "after" not in {**fields, **(steps.verified or {})}:
            begun = steps.result.touched or _TARGET in fields
            defaults["after"] = None if begun else plan.get("before")
        return defaults

    def conclude(self, run: Run, steps: Summaries) -> None:
        """Stores statistics of closed slices for queue_size and browse, as of their read."""
        verified = steps.verified or {}
        for slice_ in verified.get("closedSlices", ()):
            start, read_at = map(datetime.fromisoformat, (slice_["start"], verified["readAt"]))
            survivors = tuple(EnqueueId(UUID(text)) for text in slice_["survivors"])
            statistic = SliceStatistic(start, slice_["live"], slice_["dead"], read_at, survivors)
            run.stores.own.slice_statistics.save(run.queue, statistic)


DUTY = QueueCleanup()


def repair_warning(unrepaired: Sequence[str]) -> str:
    """A warning if slices are emptied on a cluster that was not repaired; empty if it was."""
    if not unrepaired:
        return ""
    return (
        "; slices after browseStart are emptied, and tables were not repaired within gc_grace: a "
        f"node that was away can bring rows back as live mail ({'; '.join(unrepaired)}). See the "
        "runbook, Repair"
    )


def _save(run: Run, progress: Progress, **fields: Any) -> None:
    run.report(**fields)
    progress.save()


def _raise_browse_start(run: Run, second: SecondRead, progress: Progress) -> Moved:
    """Records the target first, so that verify also judges what a killed try wrote."""
    before = view.starts_of(run.stores, run.queue).browse
    target = second.browse_start(before)
    # If a killed try wrote the stored start, verify judges from the start before that.
    befores = {progress.earlier.get(_TARGET): progress.earlier.get(_BEFORE)}
    if target is not None:
        first = befores.get(iso(before), iso(before))
        _save(run, progress, **{_TARGET: iso(target), _BEFORE: first})
    moved = view.move_browse_start(run.stores, run.queue, target, run.clock)
    if moved.wrote is not None:
        run.report(**{_BEFORE: befores.get(iso(moved.before), iso(moved.before))})
    # If another value is stored, it is unknown whether the killed try wrote its target before.
    elif moved.before and iso(moved.before) == progress.earlier.get(_TARGET):
        moved = replace(moved, wrote=moved.before)
    run.report(**{_WRITTEN: moved.written_us})
    return moved


def _choose(
    run: Run, partitions: Sequence[PlannedPartition], second: SecondRead, progress: Progress
) -> tuple[list[PlannedPartition], Mapping[PartitionName, int]]:
    """Partitions that are still as planned, and how many of their rows others have deleted."""
    skipped = second.skipped(partitions)
    chosen = [partition for partition in partitions if partition.slice_start not in skipped]
    for why in sorted(set(skipped.values())):
        rows = (part.rows for part in partitions if skipped.get(part.slice_start) == why)
        progress.skip(why, sum(rows))
    # If an earlier try of this plan began to delete, missing rows may be its own work.
    deleted_rows = {} if progress.earlier.get(_DELETING) else second.deleted_rows(chosen)
    progress.skip(DELETED_SINCE_PLAN, sum(deleted_rows.values()))
    reasons = {str(iso(start)): why for start, why in sorted(skipped.items())}
    _save(run, progress, **{_DELETING: True}, skippedSlices=reasons)
    return chosen, deleted_rows


def delete_partitions(
    run: Run, partitions: Sequence[PlannedPartition], throttle: Throttle
) -> tuple[int, Mapping[PartitionName, str]]:
    """Gives the number of partitions tried before the time limit, and some store errors.

    Raises LockLost before it acts without the lock, and any error that is not a store's.
    """
    failures: dict[PartitionName, str] = {}
    in_flight: deque[tuple[PlannedPartition, Pending]] = deque()

    def wait_for_oldest() -> None:
        partition, delete = in_flight.popleft()
        run.require_lock()  # the driver's retries may have taken long
        try:
            delete.result()
        except MailsliceError as error:  # the read-back decides what is gone
            if len(failures) < MAX_NAMED:
                failures[partition.name] = str(error)

    tried = 0
    for partition in partitions:
        if run.out_of_time():
            break
        throttle.take()
        run.require_lock()
        table = view.rows_of(run.stores, partition.table)
        delete = table.delete_partition_future(run.queue, partition.partition, partition.newest_us)
        in_flight.append((partition, delete))
        tried += 1
        if len(in_flight) >= _IN_FLIGHT:
            wait_for_oldest()
        if tried == 1:
            crash.point("apply:inside-deletes")
    while in_flight:
        wait_for_oldest()
    return tried, failures


def _count(
    progress: Progress,
    rows: Mapping[PartitionName, int],
    tried: Sequence[PlannedPartition],
    failures: Mapping[PartitionName, str],
    remaining: Remaining,
) -> None:
    """Count the rows of each chosen partition by what the read-back found."""
    remaining_rows = {partition.name: remaining.planned_in(partition) for partition in tried}
    failed = {name: min(count, rows[name]) for name, count in remaining_rows.items() if count}
    tried_rows = sum(rows[partition.name] for partition in tried)
    progress.done(count=tried_rows - sum(failed.values()))
    progress.skip(TIME_LIMIT, sum(rows.values()) - tried_rows)
    for name in list(failed)[:MAX_NAMED]:
        table, slice_ms, bucket = name
        why = failures.get(name, "rows are there that were to go")
        text = f"{table} {iso(instant(slice_ms))} bucket {bucket}"
        progress.fail(text, why, failed.pop(name))
    if failed:
        progress.fail(f"{len(failed)} more partitions", "as these", sum(failed.values()))
    progress.save()


def _raise_content_start(run: Run, plan: CleanupPlan, remaining: Remaining) -> Moved:
    stored = view.starts_of(run.stores, run.queue).content
    if plan.ranged:
        return Moved(stored, None, stored)
    # Slices that were open when they were read may have got rows since.
    opened = decide.highest_browse_start(plan.open_for, now=remaining.read_at, grace=plan.grace)
    oldest = min(opened, remaining.oldest_row(at_or_after=stored))
    moved = view.move_content_start(run.stores, run.queue, oldest, plan.shape.window, run.clock)
    if moved.after is not None:
        run.stores.own.slice_statistics.delete_before(run.queue, moved.after)
    return moved


def _after(
    run: Run, plan: CleanupPlan, remaining: Remaining, starts: Starts
) -> dict[str, Any] | None:
    """The report's `after`; None if the time limit left some of the view unread."""
    if not remaining.is_whole:
        return None
    slices = [slice_ for slice_ in remaining.slices() if run.params(Params).covers(slice_.start)]
    counts = decide.counts(slices, starts.browse, plan.shape.window)
    return {
        "browseStart": iso(starts.browse),
        "contentStart": iso(starts.content),
        "live": counts.live,
        "dead": counts.dead,
    }


def _marks(steps: Summaries) -> Mapping[str, Any]:
    marks: Mapping[str, Any] = steps.result.fields.get("marks") or MarksOutcome().as_json()
    return marks


def _waiting(marks: Mapping[str, Any]) -> str:
    if not marks["waiting"]:
        return ""
    return f"; {marks['waiting']} deleted marks stay for now: {'; '.join(marks['why'])}"
