"""Copies planned rows: checks again that each is live, writes it to V4, reads it back.

A copy has the write time of its row. So a row that is written to V4 meanwhile is newer and stays, a
later delete of the partition deletes the copy, too, and copying is idempotent. If a mail is marked
between the read and the write, its copy is a dead row in V4, as its row is in V3.

Verify compares every live row of V3 with V4 by a hash over all columns.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain, groupby
from operator import attrgetter
from typing import Any
from uuid import UUID

from mailslice.codec.row import to_row
from mailslice.duties.migrate_v3_to_v4.source import PlannedGroup, Source, copies_in_v4, first_slice
from mailslice.engine.frames import Session, run_on_keys
from mailslice.engine.partition_scan import READS_IN_FLIGHT
from mailslice.engine.row_files import Digest, read_groups
from mailslice.engine.worker_stores import stores_of
from mailslice.maintenance.artifacts import iso
from mailslice.model import crash
from mailslice.model.batches import batches
from mailslice.model.mail import EnqueueId, Partition, ViewRow
from mailslice.stores import Stores
from mailslice.view.configuration import view_shape

_ROWS_AT_A_TIME = 1000


@dataclass(slots=True)
class GroupCopied:
    """Numbers of planned rows of a partition. `copied` ones are in V4 now.

    Since the plan `marked` ones were deleted, `missing` ones left V3, browseStart passed `behind`
    ones. `failed` ones were written but a later delete of the partition in V4 covers them. They
    stay in V3, which is still read.
    """

    partition: Partition
    copied: int = 0
    marked: int = 0
    missing: int = 0
    behind: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Copier:
    """Where to copy from. `turn(n)` blocks until n more rows may be written."""

    source: Source
    window: timedelta
    turn: Callable[[int], None] | None = None

    def copy(self, session: Session, groups: Sequence[PlannedGroup]) -> list[GroupCopied]:
        """Copy the groups. Gives one result each. Raises PlanRefused if a group's file changed."""

        def copy(keys: Iterator[Sequence[PlannedGroup]]) -> Iterator[GroupCopied]:
            stores = stores_of(self.source.settings)
            for planned in chain.from_iterable(keys):
                yield self._group(stores, planned)

        return run_on_keys(session, groups, copy)

    def _group(self, stores: Stores, planned: PlannedGroup) -> GroupCopied:
        result = GroupCopied(planned.partition)
        source = self.source
        for _, table in read_groups(source.location, source.folder, [planned]):
            ids = [EnqueueId(UUID(text)) for text in table.column("enqueue_id").to_pylist()]
            for batch in batches(ids, _ROWS_AT_A_TIME):
                self._rows(stores, result, batch)
        return result

    def _rows(self, stores: Stores, result: GroupCopied, ids: list[EnqueueId]) -> None:
        if self.turn is not None:
            self.turn(len(ids))
        partition, queue = result.partition, self.source.queue
        marked = stores.tables.deleted.marked(queue, ids, READS_IN_FLIGHT)
        unmarked = [mail for mail in ids if mail not in marked]
        read = stores.tables.v3.written_by_ids(queue, [(partition, unmarked)])
        rows = [(row, at) for row, at in read if at is not None]
        result.marked += len(marked)
        result.missing += len(unmarked) - len(rows)
        # Read after the marks: a row before this slice may have lost its mark.
        first = first_slice(stores, queue, self.window)
        if first is not None and partition.slice_start < first:
            result.behind += len(rows)
            return
        stores.tables.v4.copy_many(rows)
        crash.point("apply:inside-copies")
        times = {row.enqueue_id: at for row, at in rows}
        # A retry since the read narrowed the row in V3, and may have found none in V4 to narrow.
        read = stores.tables.v3.written_by_ids(queue, [(partition, list(times))])
        newer = ((row, at) for row, at in read if at is not None and at > times[row.enqueue_id])
        stores.tables.v4.copy_many(newer)
        copied = copies_in_v4(stores, queue, partition, times)
        result.copied += len(copied)
        result.failed += len(rows) - len(copied)


SAME, MISSING, NEWER, DIFFERING = OUTCOMES = ("same", "missing", "newer", "differing")
"""How V4 has a row of V3: equal; not at all; written since the plan, copied or not; different."""


@dataclass(slots=True)
class PartitionCompared:
    """The numbers of live rows of a V3 partition by outcome.

    `v3` and `v4` are each table's digest of the rows that both tables have, except newer rows.
    """

    partition: Partition
    rows: Counter[str] = field(default_factory=Counter)
    v3: Digest = field(default_factory=Digest)
    v4: Digest = field(default_factory=Digest)


def compare_partitions(
    session: Session, source: Source, partitions: Sequence[Partition], planned_us: int
) -> list[PartitionCompared]:
    """Compare the partitions. Gives one result each. `planned_us`: the time of the plan."""

    def compare(batches: Iterator[Sequence[Partition]]) -> Iterator[PartitionCompared]:
        stores = stores_of(source.settings)
        for partition in chain.from_iterable(batches):
            yield _compared(stores, source, partition, planned_us)

    return run_on_keys(session, partitions, compare)


def by_slice(compared: Iterable[PartitionCompared]) -> list[dict[str, Any]]:
    """Counts and digests of each slice with live rows, over all buckets, oldest first."""
    slices, start_of = [], attrgetter("partition.slice_start")
    for start, group in groupby(sorted(compared, key=start_of), key=start_of):
        partitions = list(group)
        rows = sum((one.rows for one in partitions), Counter[str]())
        v3, v4 = (
            str(sum((getattr(one, name) for one in partitions), Digest())) for name in ("v3", "v4")
        )
        if live := rows.total():
            counts = {outcome: rows[outcome] for outcome in OUTCOMES}
            slices.append({"slice": iso(start), "live": live, **counts, "v3": v3, "v4": v4})
    return slices


def _compared(
    stores: Stores, source: Source, partition: Partition, planned_us: int
) -> PartitionCompared:
    result, queue, tables = PartitionCompared(partition), source.queue, stores.tables
    for _, page in tables.v3.written_rows_of(queue, [partition], READS_IN_FLIGHT):
        ids = [row.enqueue_id for row, _ in page]
        written = tables.v4.written_by_ids(queue, [(partition, ids)], READS_IN_FLIGHT)
        copies = {row.enqueue_id: (row, at) for row, at in written}
        marked = tables.deleted.marked(queue, ids, READS_IN_FLIGHT) if ids else set()
        for row, at in page:
            if at is None or row.enqueue_id in marked:
                continue
            copy, copied_at = copies.get(row.enqueue_id, (None, None))
            if copy is not None and row_hash(copy) == row_hash(row):
                outcome = SAME
            elif at > planned_us or (copied_at is not None and copied_at != at):
                outcome = NEWER
            else:
                outcome = MISSING if copy is None else DIFFERING
            result.rows[outcome] += 1
            if copy is not None and outcome is not NEWER:
                result.v3 += digest_of(row)
                result.v4 += digest_of(copy)
    if result.rows[MISSING]:
        # Before browseStart James drops marks, and rows of V4 but not of V3.
        first = first_slice(stores, queue, view_shape(stores).window)
        if first is not None and partition.slice_start < first:
            return PartitionCompared(partition)
    return result


def digest_of(row: ViewRow) -> Digest:
    """The digest of one row. Digests of several rows are added, in any order."""
    value = row_hash(row)
    return Digest(1, value, value)


def row_hash(row: ViewRow) -> int:
    """A hash over all columns. An empty collection, which V3 reads as null, equals null."""
    text = json.dumps(to_row(row), default=_plain, sort_keys=True, separators=(",", ":"))
    return int.from_bytes(
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest(), "little"
    )


def _plain(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
