"""The Parquet files of a plan: blobs that are to go, a thousand a row group, and candidates. One digest a group, so that no group is acted on unread."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from mailslice.model.errors import PlanRefused
from mailslice.model.mail import BlobId
from mailslice.spark.plan_files import Digest, Location

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER = "plan"
"""In the run's folder."""
DELETE, CANDIDATE = "delete", "candidate"
GROUP_ROWS = {DELETE: 1000, CANDIDATE: 20_000}
"""A group of deletes is one request to S3."""
_MODULUS = 1 << 128


@dataclass(frozen=True, slots=True)
class Blob:
    """One planned blob as it was listed. `since_ms`: when it was first recorded as a candidate; None: by this run."""

    key: BlobId
    size: int
    modified_s: int
    since_ms: int | None


@dataclass(frozen=True, slots=True)
class Group:
    """A row group: the file in the plan's folder, its number, its rows and their digest."""

    file: str
    number: int
    rows: int
    digest: str


@cache
def schema() -> pa.Schema:
    """Columns of the files."""
    import pyarrow as pa

    return pa.schema(
        [
            ("key", pa.string()),
            ("size", pa.int64()),
            ("modified_s", pa.int64()),
            ("since_ms", pa.int64()),
        ]
    )


def digest_of(kind: str, blobs: Iterable[Blob]) -> Digest:
    """The digest of rows, in whatever order."""
    count = total = xor = 0
    for blob in blobs:
        text = f"{kind}|{blob.key}|{blob.size}|{blob.modified_s}|{blob.since_ms}"
        value = int.from_bytes(
            hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest(),
            "little",
        )
        count += 1
        total += value
        xor ^= value
    return Digest(count, total % _MODULUS, xor)


class BlobWriter:
    """Writes one file of one kind; nothing is created before the first group."""

    def __init__(self, place: Location, folder: str, kind: str) -> None:
        self._place = place
        self._kind = kind
        self._file = f"{kind}-{uuid4()}.parquet"
        self._path = place.path(f"{folder}/{self._file}")
        self._rows: list[Blob] = []
        self._writer: Any = None
        self.groups: list[Group] = []

    def add(self, blob: Blob) -> None:
        """Append a row."""
        self._rows.append(blob)
        if len(self._rows) >= GROUP_ROWS[self._kind]:
            self._flush()

    def close(self) -> list[Group]:
        """Finish the file; its groups."""
        if self._rows:
            self._flush()
        if self._writer is not None:
            self._writer.close()
        return self.groups

    def _flush(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._path, schema(), filesystem=self._place.filesystem, compression="zstd"
            )
        rows, self._rows = self._rows, []
        columns = [[getattr(blob, name) for blob in rows] for name in schema().names]
        self._writer.write_table(
            pa.Table.from_arrays(
                [pa.array(c, f.type) for c, f in zip(columns, schema(), strict=True)],
                schema=schema(),
            )
        )
        self.groups.append(
            Group(self._file, len(self.groups), len(rows), str(digest_of(self._kind, rows)))
        )


def read_groups(
    place: Location, folder: str, groups: Sequence[Group]
) -> Iterator[tuple[Group, list[Blob]]]:
    """The groups with their rows, each held against its digest. Raises PlanRefused when a file is gone or holds other rows."""
    import pyarrow.parquet as pq

    opened: tuple[str, Any] | None = None
    for group in groups:
        try:
            if opened is None or opened[0] != group.file:
                opened = (
                    group.file,
                    pq.ParquetFile(
                        place.filesystem.open_input_file(place.path(f"{folder}/{group.file}"))
                    ),
                )
            table = opened[1].read_row_group(group.number)
            rows = [Blob(**row) for row in table.select(schema().names).to_pylist()]
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            raise PlanRefused(
                f"the file {group.file} of the plan was changed or removed ({' '.join(str(error).split())[:200]}): plan again"
            ) from error
        if str(digest_of(group.file.partition("-")[0], rows)) != group.digest:
            raise PlanRefused(
                f"the file {group.file} of the plan was changed: the rows of its group {group.number} have another digest; plan again"
            )
        yield group, rows
