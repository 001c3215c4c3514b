"""Copy planned rows, in Python workers: each proved live once more, at quorum, written to V4 with the write time it has in V3, and read back.

The write time makes a copy harmless: what is written to V4 meanwhile is newer and stays, what deletes the row's partition there deletes the copy, too,
and copying twice is copying once. A mail that is marked between the read and the write is a dead row in V4, as it is in V3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from uuid import UUID

from mailslice.duties.migrate_v3_to_v4.reading import Source
from mailslice.model import crash
from mailslice.model.mail import EnqueueId, Place
from mailslice.spark.frames import Session, run_on_keys
from mailslice.spark.in_worker import stores_of
from mailslice.spark.plan_files import PlanPart, PlanReader
from mailslice.spark.slices import READS_IN_FLIGHT, instant
from mailslice.stores import Stores

_ROWS_AT_A_TIME = 1000


@dataclass(frozen=True, slots=True)
class PlaceCopied:
    """Of the planned rows of a place: `copied` are in V4 now, `marked` are deleted since, `gone` left V3, `behind` lie behind browseStart now.

    `failed` were written and are not there: a later delete of the partition in V4 covers them. They stay in V3, which is still read.
    """

    slice_ms: int
    bucket: int
    copied: int
    marked: int
    gone: int
    behind: int
    failed: int


@dataclass(frozen=True, slots=True)
class Copying:
    """What to copy. `first` gives the first slice that counts, by browseStart as it is when asked. `turn(n)` blocks until n more rows may be written."""

    source: Source
    first: Callable[[Stores], datetime | None]
    turn: Callable[[int], None] | None = None


def copy_places(
    spark: Session, what: Copying, keys: Sequence[tuple[int, int, PlanPart]]
) -> list[PlaceCopied]:
    """Copy these places, each (slice start in ms, bucket, part of the plan); every key comes back once."""

    def copy(batches: Iterator[Sequence[tuple[int, int, PlanPart]]]) -> Iterator[PlaceCopied]:
        stores = stores_of(what.source.settings)
        with PlanReader(what.source.place, what.source.folder) as reader:
            for key in chain.from_iterable(batches):
                yield _place(stores, what, key, reader)

    return run_on_keys(spark, keys, copy)


def _place(
    stores: Stores, what: Copying, key: tuple[int, int, PlanPart], reader: PlanReader
) -> PlaceCopied:
    slice_ms, bucket, part = key
    place, queue = Place(instant(slice_ms), bucket), what.source.queue
    copied = marked = gone = behind = failed = 0
    for ids in _ids(reader, part):
        if what.turn is not None:
            what.turn(len(ids))
        dead = stores.tables.deleted.marked(queue, ids, READS_IN_FLIGHT)
        rows = [
            (row, at)
            for row, at in stores.tables.v3.some_written(
                queue, [(place, [each for each in ids if each not in dead])]
            )
            if at is not None
        ]
        marked, gone = marked + len(dead), gone + len(ids) - len(dead) - len(rows)
        first = what.first(
            stores
        )  # after the marks: what lies behind this one proves nothing by having none
        if first is not None and place.slice_start < first:
            behind += len(rows)
            continue
        stores.tables.v4.copy_many(rows)
        crash.point("apply:inside-copies")
        written = {row.enqueue_id: at for row, at in rows}
        pages = stores.tables.v4.some_ids(queue, [(place, list(written))], READS_IN_FLIGHT)
        there = sum(
            1
            for _, page in pages
            for row in page
            if row.written_us is not None and row.written_us >= written[row.enqueue_id]
        )
        copied, failed = copied + there, failed + len(rows) - there
    return PlaceCopied(slice_ms, bucket, copied, marked, gone, behind, failed)


def _ids(reader: PlanReader, part: PlanPart) -> Iterator[list[EnqueueId]]:
    for table in reader.groups(part):
        texts: list[str] = table.column("enqueue_id").to_pylist()
        for at in range(0, len(texts), _ROWS_AT_A_TIME):
            yield [EnqueueId(UUID(text)) for text in texts[at : at + _ROWS_AT_A_TIME]]
