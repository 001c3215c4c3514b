"""Copies planned rows: each proved live again, written to V4 with its write time, and read back.

The write time makes a copy harmless: what is written to V4 meanwhile is newer and stays, what
deletes the partition there deletes the copy, too, and copying twice is copying once. A mail that is
marked between the read and the write is a dead row in V4, as it is in V3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from uuid import UUID

from mailslice.duties.migrate_v3_to_v4.source import PlannedGroup, Source, copies_in_v4, first_slice
from mailslice.engine.frames import Session, run_on_keys
from mailslice.engine.partition_scan import READS_IN_FLIGHT
from mailslice.engine.worker_stores import stores_of
from mailslice.maintenance.row_file import read_groups
from mailslice.model import crash
from mailslice.model.batches import batches
from mailslice.model.mail import EnqueueId, Partition
from mailslice.stores import Stores

_ROWS_AT_A_TIME = 1000


@dataclass(slots=True)
class GroupCopied:
    """Of planned rows: `copied` are in V4 now.

    Since the plan `marked` ones were deleted, `missing` ones left V3, `behind` ones fell behind
    browseStart. `failed` were written and are not there: a later delete of the partition in V4
    covers them. They stay in V3, which is still read.
    """

    partition: Partition
    copied: int = 0
    marked: int = 0
    missing: int = 0
    behind: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Copying:
    """What to copy. `turn(n)` blocks until n more rows may be written."""

    source: Source
    window: timedelta
    turn: Callable[[int], None] | None = None

    def copy(self, spark: Session, groups: Sequence[PlannedGroup]) -> list[GroupCopied]:
        """Each group comes back once. Raises PlanRefused at one that is not as it was planned."""

        def copy(keys: Iterator[Sequence[PlannedGroup]]) -> Iterator[GroupCopied]:
            stores = stores_of(self.source.settings)
            for planned in chain.from_iterable(keys):
                yield self._group(stores, planned)

        return run_on_keys(spark, groups, copy)

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
        unmarked = [one for one in ids if one not in marked]
        read = stores.tables.v3.written_by_ids(queue, [(partition, unmarked)])
        rows = [(row, at) for row, at in read if at is not None]
        result.marked += len(marked)
        result.missing += len(unmarked) - len(rows)
        # After the marks: what lies behind this one proves nothing by having none.
        first = first_slice(stores, queue, self.window)
        if first is not None and partition.slice_start < first:
            result.behind += len(rows)
            return
        stores.tables.v4.copy_many(rows)
        crash.point("apply:inside-copies")
        copied = copies_in_v4(stores, queue, partition, {row.enqueue_id: at for row, at in rows})
        result.copied += len(copied)
        result.failed += len(rows) - len(copied)
