"""The duty: copy the live rows of V3 that V4 does not have, or has with an older write time."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from operator import attrgetter
from typing import Any

import pyarrow as pa

from mailslice.admin.queues import require
from mailslice.checks.expectations import Expectation, Frame
from mailslice.codec.row import epoch_us
from mailslice.duties.migrate_v3_to_v4 import copier, source
from mailslice.duties.migrate_v3_to_v4.copier import Copier, PartitionCompared
from mailslice.duties.migrate_v3_to_v4.source import PlannedGroup, Source, V3Partition
from mailslice.engine.frames import slots_of
from mailslice.engine.row_files import RowFile
from mailslice.maintenance.artifacts import iso
from mailslice.maintenance.duty import Duty
from mailslice.maintenance.gates import Reads, planned_rows
from mailslice.maintenance.plan import QueuePlan
from mailslice.maintenance.progress import Progress
from mailslice.maintenance.result import Result, Summaries
from mailslice.maintenance.run import Run
from mailslice.maintenance.run_request import RunRequest
from mailslice.model import crash
from mailslice.model.batches import batches_by_weight
from mailslice.model.mail import Partition
from mailslice.model.names import QueueTable
from mailslice.view.configuration import view_shape

DEAD, COPIED, UNDATED = "deleted mark", "in V4 already", "no write time"
_SKIPPED = {
    "marked": "deleted since the plan",
    "missing": "left V3 since the plan",
    "behind": "behind browseStart since the plan",
}
_BYTES_A_ROW = 500
_GROUPS_AT_ONCE, _ROWS_AT_ONCE = 2000, 100_000
"""Few enough for apply to begin a batch shortly before the time limit."""
_SLICES = 500
"""The most slices of a report."""


class MigrationPlan(QueuePlan):
    """Which rows one run may copy."""

    rows: int
    groups: RowFile
    """Rows of PlannedGroup."""
    row_files: tuple[str, ...]
    """The files of the groups, one a Spark task."""
    reads: Reads

    @property
    def planned(self) -> int:
        return self.rows

    def files(self) -> frozenset[str]:
        return super().files() | set(self.row_files)


class Migration(Duty[MigrationPlan]):
    """Writes only rows of V4: no row of V3, start or mark. A repeated run copies newer rows."""

    plan_type = MigrationPlan
    items = "rows"
    bulky = frozenset({"slices"})
    unfinished = "run it again, what was copied is not copied twice"

    def locks(self, request: RunRequest) -> tuple[str, ...]:
        """The duty's own lock, and the lock of cleanups of the queue.

        A cleanup could delete row and mark of a mail between our second read and our write. Then
        the copy would be a live mail again.
        """
        return (*super().locks(request), f"queue_cleanup/{request.queue}")

    def plan(self, run: Run) -> MigrationPlan:
        """Raises UnknownQueue, and Refused if V4 does not exist and the settings say v3."""
        run.require_clock()  # verify does not judge rows that are newer than the plan
        stores, queue, now = run.stores, run.queue, run.clock()
        require(stores, queue)
        keys: list[tuple[Partition, str | None]] = []
        if v3 := source.has_table(stores, QueueTable.V3):
            tables = _source(run, v4=source.require_v4(stores))
            keys = source.v3_partitions(stores, queue, view_shape(stores, checked=True))
        partitions = source.read_partitions(run.session(), tables, keys) if keys else []
        partitions.sort(key=lambda read: astuple(read.partition))
        crash.point("plan:after-read")
        groups = [group for read in partitions for group in read.groups]
        plan = MigrationPlan(
            run=run.request.run,
            queue=queue,
            made_at=now,
            rows=sum(group.rows for group in groups),
            groups=run.write_rows("groups", groups, PlannedGroup),
            row_files=tuple(sorted({group.file for group in groups})),
            reads=Reads.of(len(keys), [read.partition for read in partitions]),
        )
        _report_plan(run, plan, partitions, v3=v3)
        return plan

    def check(self, run: Run, plan: MigrationPlan) -> Iterable[Frame]:
        """Judges whether all of V3 was read, and every planned row in the plan's files."""
        yield Frame.facts("totals", **plan.reads.facts())
        yield rows(run, plan)

    def apply(self, run: Run, plan: MigrationPlan, progress: Progress) -> None:
        """Copies in batches, oldest first. Checks again that each row is live."""
        run.require_clock()
        if not source.require_v4(run.stores):
            run.stores.tables.create()  # as the first start of a worker does
        window = view_shape(run.stores, checked=True).window
        throttle, session = run.throttle("cassandra"), run.session()
        turn = None if throttle.free else throttle.share(slots_of(session)).take
        copies = Copier(_source(run), window, turn)
        groups = run.read_rows(plan.groups, PlannedGroup)
        for batch in batches_by_weight(groups, _GROUPS_AT_ONCE, attrgetter("rows"), _ROWS_AT_ONCE):
            if run.out_of_time():
                return
            run.require_lock()
            for copied in copies.copy(session, batch):
                progress.done(count=copied.copied)
                for name, reason in _SKIPPED.items():
                    progress.skip(reason, getattr(copied, name))
                if copied.failed:
                    item = f"{iso(copied.partition.slice_start)}, bucket {copied.partition.bucket}"
                    progress.fail(item, "a later delete in V4 covers it", copied.failed)
            progress.save()
            crash.point("apply:after-batch")

    def verify(self, run: Run, plan: MigrationPlan, result: Result) -> Iterable[Frame]:
        """Compares every live row of V3 that a browse reads with V4, planned or not."""
        compared = _compare(run, plan)
        counts = sum((partition.rows for partition in compared), Counter[str]())
        run.report(
            verified=counts[copier.SAME],
            newer=counts[copier.NEWER],
            missing=counts[copier.MISSING],
            slices=copier.by_slice(compared),
        )
        every = (
            "Every live row of V3 is in V4, but those that are reported as failed or left, or were "
            "written since."
        )
        excused = result.failed + result.remaining
        same = "Every copy holds what its row in V3 holds."
        yield Frame.facts(
            "totals",
            missing=(counts[copier.MISSING], 0, excused, every),
            differing=(counts[copier.DIFFERING], 0, 0, same),
        )

    def describe(self, steps: Summaries) -> str:
        result, verified = steps.result, steps.verified or {}
        if not result.planned:
            return ""
        words = [f"{result.applied} rows copied, {verified['verified']} verified in both tables"]
        if newer := verified["newer"]:
            words.append(f"{newer} were written since the plan: run it again for them")
        return "; ".join(words + result.rest())

    def problem(self, steps: Summaries) -> str | None:
        failed, source = steps.result.failed, "enqueuedMailsV3 alone, which is still read"
        words = f"rows are covered by a later delete in enqueuedMailsV4 and stay in {source}"
        return f"{failed} {words}" if failed else None

    def report_fields(self, steps: Summaries) -> dict[str, Any]:
        """`skipped`: rows of V3 that were not copied; `verified`: rows that both tables have."""
        result, verified = steps.result, steps.verified or {}
        skipped = {**steps.plan.get("skippedBy", {}), **result.skipped}
        return {
            "copied": result.applied,
            "skipped": sum(skipped.values()),
            "skippedBy": skipped,
            "rows": steps.plan.get("rows", 0),
            "bytes": steps.plan.get("bytes", 0),
            **{name: verified.get(name, 0) for name in ("verified", "newer", "missing")},
            "slices": verified.get("slices", [])[-_SLICES:],
        }


DUTY = Migration()


def rows(run: Run, plan: MigrationPlan) -> Frame:
    """One row for each planned row of V3."""
    number = pa.int64()
    key = {"slice_ms": number, "bucket": number, "enqueue_id": pa.string()}
    expect = [
        Expectation.rows(plan.planned, "The plan's files have as many rows as were planned."),
        Expectation.unique(list(key), "No row is copied twice."),
        Expectation.between(
            "written_us", 1, None, "Every planned row has a write time, which its copy keeps."
        ),
    ]
    planned = planned_rows(run, plan.row_files, pa.schema({**key, "written_us": number}))
    return Frame("rows", planned, expect, may_be_empty=not plan.planned)


def _source(run: Run, *, v4: bool = True) -> Source:
    return Source(run.settings, run.queue, run.folder.artifacts, run.folder.name, v4)


def _compare(run: Run, plan: MigrationPlan) -> list[PartitionCompared]:
    stores = run.stores
    if not (source.has_table(stores, QueueTable.V3) and source.has_table(stores, QueueTable.V4)):
        return []
    partitions = source.v3_partitions(stores, run.queue, view_shape(stores, checked=True))
    browsed = [partition for partition, skip_reason in partitions if not skip_reason]
    if not browsed:
        return []
    return copier.compare_partitions(run.session(), _source(run), browsed, epoch_us(plan.made_at))


def _report_plan(
    run: Run, plan: MigrationPlan, partitions: Sequence[V3Partition], *, v3: bool
) -> None:
    total, skipped = sum(read.rows for read in partitions), Counter[str]()
    for read in partitions:
        skipped.update({DEAD: read.dead, COPIED: read.copied, UNDATED: read.undated})
        if read.skip_reason:
            skipped[read.skip_reason] += read.live
    run.report(
        rows=total,
        skippedBy=dict(+skipped),
        bytes=plan.planned * _BYTES_A_ROW,
        message=_message(plan, total, skipped, v3=v3),
    )


def _message(plan: MigrationPlan, total: int, skipped: Counter[str], *, v3: bool) -> str:
    if not v3:
        return "nothing to do: there is no table enqueuedMailsV3"
    if not plan.reads.read:
        return "nothing to do: enqueuedMailsV3 holds no row of this queue"
    words = "nothing to do: every live row of enqueuedMailsV3 is in enqueuedMailsV4"
    if plan.planned:
        words = f"{plan.planned} live rows to copy, of {total} rows in enqueuedMailsV3"
    # A James that reads only V4 may have moved browseStart past mails of V3. It is never lowered.
    if behind := skipped[source.BEHIND]:
        words += f"; {behind} rows without a mark lie behind browseStart and are left out"
    return words
