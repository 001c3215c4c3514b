"""The files of a plan: blobs to delete, 1,000 to a row group, and candidates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from mailslice.duties.blob_gc.classify import (
    CANDIDATE,
    DELETE,
    DOUBTFUL,
    ORPHAN,
    UNKNOWN,
    Rules,
    Tally,
    generation_of,
)
from mailslice.engine.dataset import Summary, give
from mailslice.engine.frames import Session
from mailslice.engine.row_files import Location
from mailslice.maintenance.plan import PLAN_FOLDER
from mailslice.maintenance.row_file import RowGroup, RowWriter, schema_of
from mailslice.model.mail import BlobId

if TYPE_CHECKING:
    import pyarrow as pa

GROUP_ROWS = {DELETE: 1000, CANDIDATE: 20_000}
"""A group of deletes is one request to S3."""


@dataclass(frozen=True, slots=True)
class PlannedBlob:
    """One blob as it was listed.

    `since_ms`: when it was first recorded as a candidate; None: by this run.
    """

    key: BlobId
    size: int
    modified_s: int
    since_ms: int | None


def blobs_of(rows: pa.Table) -> list[PlannedBlob]:
    """The blobs of a row group."""
    return [PlannedBlob(**row) for row in rows.to_pylist()]


class BlobWriter:
    """Writes one file of one kind, in full row groups."""

    def __init__(self, location: Location, folder: str, kind: str) -> None:
        file = f"{PLAN_FOLDER}/{kind}-{uuid4()}.parquet"
        self._writer = RowWriter(location, folder, file)
        self._group_rows = GROUP_ROWS[kind]
        self._rows: list[PlannedBlob] = []

    def add(self, blob: PlannedBlob) -> None:
        """Append a row."""
        self._rows.append(blob)
        if len(self._rows) >= self._group_rows:
            self._flush()

    def close(self) -> list[RowGroup]:
        """Finish the file; its groups."""
        self._flush()
        self._writer.close()
        return self._writer.groups

    def _flush(self) -> None:
        import pyarrow as pa

        rows, self._rows = self._rows, []
        names = [field.name for field in fields(PlannedBlob)]
        columns = {name: [getattr(blob, name) for blob in rows] for name in names}
        table = pa.Table.from_pydict(columns, schema=schema_of(PlannedBlob))
        self._writer.add(table, self._group_rows)


def write_orphans(
    spark: Session,
    blobs: Any,
    location: Location,
    folder: str,
    rules: Rules,
    *,
    rereferenced: frozenset[str],
) -> tuple[Tally, list[RowGroup]]:
    """Write the orphans among unreferenced blobs: a tally of all kinds, and the row groups.

    `blobs` has the columns key, size, modified_s, doubtful and since_ms. A candidate whose key is
    in `rereferenced` was referred to meanwhile: it waits anew.
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
                tally.planned(due, blob.size)
            elif kind in {UNKNOWN, DOUBTFUL}:
                tally.show(kind, **_sample(blob, rules))
        groups = [asdict(group) for writer in writers.values() for group in writer.close()]
        yield {"tally": tally.as_json(), "groups": groups}

    tally, groups = Tally(), list[RowGroup]()
    for summary in give(spark, blobs, work):
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
