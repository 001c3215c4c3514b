"""Classifies unreferenced blobs by key and age, and writes them to the files of a plan.

A file holds candidates, or blobs to delete: 1,000 to a row group, which is one request to S3.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pyarrow as pa

from mailslice.codec.blob_ids import is_active, is_blob_id, parse
from mailslice.engine.dataset import Summary, summarize
from mailslice.engine.row_files import Location, RowGroup, RowWriter
from mailslice.maintenance.artifacts import PLAN_FOLDER
from mailslice.maintenance.row_file import schema_of
from mailslice.model.mail import BlobId
from mailslice.stores.blobs.store import StoredBlob

UNKNOWN, DOUBTFUL, ACTIVE, YOUNG, ORPHAN = "unknown", "doubtful", "active", "young", "orphan"
KINDS = (UNKNOWN, DOUBTFUL, ACTIVE, YOUNG, ORPHAN)
"""`unknown`: the key is no blob id. `doubtful`: a reference spells the same id in another way.
`active`: of a generation in use. `young`: within the grace."""
DELETE, CANDIDATE = "delete", "candidate"
"""What a plan does with an orphan."""
_AGES = (
    ("under 1 day", 1),
    ("1 to 7 days", 7),
    ("7 to 30 days", 30),
    ("30 to 90 days", 90),
    ("90 days to 1 year", 365),
)
_OLDEST = "over 1 year"
_DAY = 86400
_MAX_GENERATIONS = 1000
_OTHERS = "others"
SAMPLE = 20


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a run. `family` and `generation` are those of new blobs."""

    now: datetime
    grace: timedelta
    delete_after: timedelta
    family: int
    generation: int

    def kind(self, key: str, modified_s: int, *, doubtful: bool) -> str:
        if not is_blob_id(key):
            return UNKNOWN
        if doubtful:
            return DOUBTFUL
        if is_active(parse(key), self.family, self.generation):
            return ACTIVE
        # S3's times are whole seconds. Rounding must make a blob younger, never older.
        age = self.now.timestamp() - modified_s
        return ORPHAN if age > self.grace.total_seconds() + 1 else YOUNG

    def due(self, since_ms: int | None) -> bool:
        """Whether a candidate recorded at `since_ms` (epoch) may be deleted now."""
        return (
            since_ms is not None
            and self.now.timestamp() * 1000 - since_ms >= self.delete_after.total_seconds() * 1000
        )

    def age(self, modified_s: int) -> str:
        """The age of a blob as a column name of the report."""
        days = (self.now.timestamp() - modified_s) / _DAY
        return next((name for name, limit in _AGES if days < limit), _OLDEST)


def generation_of(key: str) -> str:
    """`FAMILY_GENERATION`, or `none`, for reports."""
    parsed = parse(key)
    return f"{parsed.family}_{parsed.generation}" if parsed.family is not None else "none"


@dataclass(slots=True)
class Tally:
    """Counts and bytes: of unreferenced blobs by kind, of orphans by generation and by age."""

    blobs: Counter[str] = field(default_factory=Counter)
    size: Counter[str] = field(default_factory=Counter)
    generations: dict[str, list[int]] = field(default_factory=dict)
    ages: dict[str, list[int]] = field(default_factory=dict)
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, kind: str, key: str, size: int, modified_s: int, rules: Rules) -> None:
        self.blobs[kind] += 1
        self.size[kind] += size
        if kind == ORPHAN:
            _count(self.generations, generation_of(key), 1, size)
            _count(self.ages, rules.age(modified_s), 1, size)

    def show(self, kind: str, **entry: Any) -> None:
        entries = self.samples.setdefault(kind, [])
        if len(entries) < SAMPLE:
            entries.append(entry)

    def report(self) -> dict[str, Any]:
        return {
            "orphans": self.blobs[ORPHAN],
            "orphanBytes": self.size[ORPHAN],
            "bytes": self.size[DELETE],
            "unreferenced": {kind: self.blobs[kind] for kind in KINDS},
            "byGeneration": _shares(dict(sorted(self.generations.items()))),
            "byAge": _shares(self.ages),
            "samples": self.samples,
        }

    def as_json(self) -> dict[str, Any]:
        return {attribute.name: getattr(self, attribute.name) for attribute in fields(self)}

    def merge(self, part: dict[str, Any]) -> None:
        self.blobs.update(part["blobs"])
        self.size.update(part["size"])
        for totals, counts in ((self.generations, part["generations"]), (self.ages, part["ages"])):
            for name, (blobs, size) in counts.items():
                _count(totals, name, blobs, size)
        for kind, shown in part["samples"].items():
            for entry in shown:
                self.show(kind, **entry)


def _shares(counts: dict[str, list[int]]) -> dict[str, dict[str, int]]:
    return {name: {"blobs": blobs, "bytes": size} for name, (blobs, size) in counts.items()}


def _count(into: dict[str, list[int]], name: str, blobs: int, size: int) -> None:
    # Keys are arbitrary: a bucket full of invented generations must not fill a report.
    totals = into.setdefault(
        name if name in into or len(into) < _MAX_GENERATIONS else _OTHERS, [0, 0]
    )
    totals[0] += blobs
    totals[1] += size


def modified_seconds(modified: datetime) -> int:
    """Whole seconds since the epoch: the precision that listing, HEAD and inventory share."""
    return int(modified.timestamp() // 1)


GROUP_ROWS = {DELETE: 1000, CANDIDATE: 20_000}
"""A group of deletes is one request to S3."""


@dataclass(frozen=True, slots=True)
class PlannedBlob:
    """One blob as it was listed. `since_ms`: when an earlier run recorded it, None if none did."""

    key: BlobId
    size: int
    modified_s: int
    since_ms: int | None

    def is_still(self, stored: StoredBlob | None) -> bool:
        """Whether the object is as it was listed."""
        now = stored and (stored.size, modified_seconds(stored.modified))
        return now == (self.size, self.modified_s)


def blobs_of(rows: pa.Table) -> list[PlannedBlob]:
    columns = [rows.column(field.name).to_pylist() for field in fields(PlannedBlob)]
    return list(map(PlannedBlob, *columns))


class BlobWriter:
    """Writes one file of one kind (`GROUP_ROWS`), in full row groups."""

    def __init__(self, location: Location, folder: str, kind: str) -> None:
        file = f"{PLAN_FOLDER}/{kind}-{uuid4()}.parquet"
        self._writer = RowWriter(location, folder, file)
        self._group_rows = GROUP_ROWS[kind]
        self._rows: list[PlannedBlob] = []

    def add(self, blob: PlannedBlob) -> None:
        self._rows.append(blob)
        if len(self._rows) >= self._group_rows:
            self._flush()

    def close(self) -> list[RowGroup]:
        self._flush()
        self._writer.close()
        return self._writer.groups

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        names = [field.name for field in fields(PlannedBlob)]
        columns = {name: [getattr(blob, name) for blob in rows] for name in names}
        table = pa.Table.from_pydict(columns, schema=schema_of(PlannedBlob))
        self._writer.add(table, self._group_rows)


def write_orphans(
    blobs: Any, location: Location, folder: str, rules: Rules, *, rereferenced: frozenset[str]
) -> tuple[Tally, list[RowGroup]]:
    """Write the orphans among unreferenced blobs. Gives a tally of all kinds, and the row groups.

    `blobs` has the columns key, size, modified_s, doubtful and since_ms. A reference to the keys in
    `rereferenced` existed in between, so their time as a candidate starts again.
    """

    def work(batches: Iterator[pa.Table]) -> Iterator[Summary]:
        tally = Tally()
        writers = {kind: BlobWriter(location, folder, kind) for kind in GROUP_ROWS}
        for row in (row for batch in batches for row in batch.to_pylist()):
            since = None if row["key"] in rereferenced else row["since_ms"]
            blob = PlannedBlob(row["key"], row["size"], row["modified_s"], since)
            kind = rules.kind(blob.key, blob.modified_s, doubtful=bool(row["doubtful"]))
            tally.add(kind, blob.key, blob.size, blob.modified_s, rules)
            if kind == ORPHAN:
                due = DELETE if rules.due(blob.since_ms) else CANDIDATE
                writers[due].add(blob)
                tally.show("planned" if due == DELETE else "waiting", **_sample(blob, rules))
                tally.size[due] += blob.size
            elif kind in {UNKNOWN, DOUBTFUL}:
                tally.show(kind, **_sample(blob, rules))
        groups = [asdict(group) for writer in writers.values() for group in writer.close()]
        yield {"tally": tally.as_json(), "groups": groups}

    tally, groups = Tally(), list[RowGroup]()
    for summary in summarize(blobs, work):
        tally.merge(summary["tally"])
        groups += [RowGroup(**group) for group in summary["groups"]]
    return tally, sorted(groups, key=lambda group: (group.file, group.number))


def _sample(blob: PlannedBlob, rules: Rules) -> dict[str, Any]:
    return {
        "key": blob.key,
        "bytes": blob.size,
        "generation": generation_of(blob.key),
        "age": rules.age(blob.modified_s),
    }
