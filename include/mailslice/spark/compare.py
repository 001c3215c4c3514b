"""Hold a plan's rows against the view as it is now, place by place: before a delete to see what changed, after it to see what stayed.

Both sides come in the order of the clustering key (a plan's rows were written as they were read), so one walk compares them in bounded memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from mailslice.model.mail import EnqueueId, Place, QueueName
from mailslice.model.settings import Settings
from mailslice.spark.frames import Session, run_on_keys
from mailslice.spark.in_worker import stores_of
from mailslice.spark.plan_files import NO_PART, Digest, Location, PlanPart, PlanReader, digest_of_table
from mailslice.spark.slices import READS_IN_FLIGHT, instant, to_batches

if TYPE_CHECKING:
    import pyarrow as pa

_NOW = "table string, slice_ms long, bucket int, rows long, matched long, foreign long, unmarked long, unmarked_planned long, digest string, ids binary"


@dataclass(frozen=True, slots=True)
class PlaceKey:
    """A partition, and where its planned rows are; a `part` without groups: none are planned there."""

    table: str
    slice_ms: int
    bucket: int
    part: PlanPart = NO_PART


@dataclass(frozen=True, slots=True)
class PlaceNow:
    """A partition now: `matched` planned rows are there, `foreign` rows are there that are not planned; `unmarked` rows have no mark, of which
    `unmarked_planned` are planned. `digest` is of the planned rows as the plan's files have them. `ids` are the low halves of all ids, 8 bytes each.
    """

    table: str
    slice_ms: int
    bucket: int
    rows: int
    matched: int
    foreign: int
    unmarked: int
    unmarked_planned: int
    digest: str
    ids: bytes


@dataclass(frozen=True, slots=True)
class Comparison:
    """What to compare: a queue, the plan's folder. With `marks`, before a delete: order, marks and the plan's own digest count. Without, after it: what is
    left, with its ids, whose order does not count.
    """

    settings: Settings
    queue: QueueName
    place: Location
    folder: str
    marks: bool


def compare(spark: Session, what: Comparison, keys: Sequence[PlaceKey]) -> list[PlaceNow]:
    """Every key once."""

    def read(batches: Iterator[Sequence[PlaceKey]]) -> Iterator[pa.RecordBatch]:
        return _read(what, batches)

    return [PlaceNow(**{**row, "ids": bytes(row["ids"] or b"")}) for row in run_on_keys(spark, keys, read, _NOW)]


def low_half(enqueue_id: str) -> int:
    """The last 64 bits of an id, of which 62 are random: enough to tell ids apart, and a collision only keeps a mark that could go."""
    return int(enqueue_id[19:23] + enqueue_id[24:], 16)


def _read(what: Comparison, batches: Iterator[Sequence[PlaceKey]]) -> Iterator[pa.RecordBatch]:
    stores = stores_of(what.settings)
    tables = {rows.table.value: rows for rows in (stores.tables.v3, stores.tables.v4)}
    with PlanReader(what.place.filesystem, what.place.path(what.folder)) as reader:
        for batch in batches:
            for name, rows in tables.items():
                mine = sorted((key for key in batch if key.table == name), key=lambda key: (key.part.file, key.part.first))
                if not mine:
                    continue  # the table may not exist
                places = [Place(instant(key.slice_ms), key.bucket) for key in mine]
                pages = groupby(rows.bare_ids_of(what.queue, places, READS_IN_FLIGHT, ordered=True), key=lambda pair: pair[0])
                for key, (_, group) in zip(mine, pages, strict=True):
                    yield from to_batches([_compare(what, key, (page for _, page in group), reader, stores)])


def _compare(what: Comparison, key: PlaceKey, pages: Iterator[list[EnqueueId]], reader: PlanReader, stores: Any) -> PlaceNow:
    planned = _Planned(reader, key.part)
    found = _before(what, pages, planned, stores.tables.deleted) if what.marks else _after(pages, planned)
    return PlaceNow(key.table, key.slice_ms, key.bucket, **found)


def _before(what: Comparison, pages: Iterator[list[EnqueueId]], planned: _Planned, deleted: Any) -> dict[str, Any]:
    """Whether the place is still what was planned: ids and marks, in one walk."""
    rows = matched = unmarked = unmarked_planned = 0
    for page in pages:
        marked = deleted.marked(what.queue, page, READS_IN_FLIGHT) if page else set()
        rows += len(page)
        for enqueue_id in page:
            there = planned.has(str(enqueue_id))
            matched += there
            if enqueue_id not in marked:
                unmarked += 1
                unmarked_planned += there
    counts = {"rows": rows, "matched": matched, "foreign": rows - matched, "unmarked": unmarked, "unmarked_planned": unmarked_planned}
    return {**counts, "digest": str(planned.finish()), "ids": b""}


def _after(pages: Iterator[list[EnqueueId]], planned: _Planned) -> dict[str, Any]:
    """What is left in the place. Few rows after a delete, so a set of them will do, and the plan is read only where there are any."""
    there: set[str] = set()
    ids = bytearray()
    rows = 0
    for page in pages:
        rows += len(page)
        for enqueue_id in page:
            ids += enqueue_id.bytes[8:]
            if planned.any:
                there.add(str(enqueue_id))
    matched = planned.count_in(there) if there else 0
    return {"rows": rows, "matched": matched, "foreign": rows - matched, "unmarked": 0, "unmarked_planned": 0, "digest": "", "ids": bytes(ids)}


class _Planned:
    """The planned ids of one place, walked once beside the ids that are there."""

    def __init__(self, reader: PlanReader, part: PlanPart) -> None:
        self.any = part.groups > 0
        self._digest = Digest()
        self._reader = reader
        self._part = part
        self._ids = self._walk()

    def has(self, enqueue_id: str) -> bool:
        """Whether the next id that is there is planned; those before it in the plan are gone. Once False, False for all that follow: the place changed."""
        # Nearly always the very next one: a loop costs half of any().
        for planned in self._ids:  # noqa: SIM110
            if planned == enqueue_id:
                return True
        return False

    def finish(self) -> Digest:
        """Walk to the end; the digest of all planned rows."""
        for _ in self._ids:
            pass
        return self._digest

    def count_in(self, there: set[str]) -> int:
        """How many planned ids are among `there`."""
        tables = self._reader.groups(self._part)
        return sum(each in there for table in tables for each in table.column("enqueue_id").to_pylist())

    def _walk(self) -> Iterator[str]:
        for table in self._reader.groups(self._part):
            self._digest += digest_of_table(table)
            yield from table.column("enqueue_id").to_pylist()
