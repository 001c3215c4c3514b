"""Hold V3 against V4, place by place, in Python workers: every live row of V3 by a hash over all its columns."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from mailslice.codec.row import to_row
from mailslice.duties.migrate_v3_to_v4.reading import Source
from mailslice.model.mail import Place, ViewRow
from mailslice.spark.frames import Session, run_on_keys
from mailslice.spark.in_worker import stores_of
from mailslice.spark.plan_files import Digest
from mailslice.spark.slices import READS_IN_FLIGHT, instant
from mailslice.stores import Stores


@dataclass(frozen=True, slots=True)
class PlaceCompared:
    """Of the `live` rows of V3 in a place `same` are in V4 as they are, `newer` were written since the plan; `missing` and `differing` were not.

    `v3` and `v4` are digests over the rows that both tables have, as each has them, without the newer ones.
    """

    slice_ms: int
    bucket: int
    live: int
    same: int
    missing: int
    newer: int
    differing: int
    v3: Digest
    v4: Digest


def compare_places(
    spark: Session, what: Source, keys: Sequence[tuple[int, int]], planned_us: int
) -> list[PlaceCompared]:
    """Compare these places, each (slice start in ms, bucket); every key comes back once. `planned_us`: when the plan was made."""

    def compare(batches: Iterator[Sequence[tuple[int, int]]]) -> Iterator[PlaceCompared]:
        stores = stores_of(what.settings)
        for key in chain.from_iterable(batches):
            yield _place(stores, what, key, planned_us)

    return run_on_keys(spark, keys, compare)


def _place(stores: Stores, what: Source, key: tuple[int, int], planned_us: int) -> PlaceCompared:
    slice_ms, bucket = key
    place, queue, tables = Place(instant(slice_ms), bucket), what.queue, stores.tables
    live = same = missing = newer = differing = 0
    v3, v4 = Digest(), Digest()
    for _, page in tables.v3.written_rows_of(queue, [place], READS_IN_FLIGHT):
        ids = [row.enqueue_id for row, _ in page]
        copies = {
            row.enqueue_id: (row, at)
            for row, at in tables.v4.some_written(queue, [(place, ids)], READS_IN_FLIGHT)
        }
        marked = tables.deleted.marked(queue, ids, READS_IN_FLIGHT) if ids else set()
        for row, at in page:
            if at is None or row.enqueue_id in marked:
                continue
            live += 1
            copy, copied_at = copies.get(row.enqueue_id, (None, None))
            if copy is not None and row_hash(copy) == row_hash(row):
                same += 1
                v3, v4 = v3 + digest_of([row]), v4 + digest_of([copy])
            elif at > planned_us or (copied_at is not None and copied_at != at):
                newer += 1
            elif copy is None:
                missing += 1
            else:
                differing += 1
                v3, v4 = v3 + digest_of([row]), v4 + digest_of([copy])
    return PlaceCompared(slice_ms, bucket, live, same, missing, newer, differing, v3, v4)


def digest_of(rows: Iterable[ViewRow]) -> Digest:
    """Of a set of rows, in any order."""
    total = Digest()
    for value in map(row_hash, rows):
        total += Digest(1, value, value)
    return total


def row_hash(row: ViewRow) -> int:
    """Of all columns, as both tables mean them: V3 reads an empty collection as null."""
    text = json.dumps(to_row(row), default=_plain, sort_keys=True, separators=(",", ":"))
    return int.from_bytes(
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest(), "little"
    )


def _plain(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
