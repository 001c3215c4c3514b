"""The verdicts of an audit as Parquet files that workers write themselves: one row a mail, and a digest that no layout changes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any

from mailslice.spark.plan_files import Digest, Location

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_A_GROUP = 5_000


@dataclass(frozen=True, slots=True)
class Judged:
    """One mail: its verdict and why, where its row is (`slice_ms`, `enqueued_ms`: milliseconds since the epoch), and, where it matters, which
    earlier decision to publish it again the audit knew of (`decision`, empty: none).
    """

    enqueue_id: str
    name: str
    verdict: str
    why: str
    table: str
    slice_ms: int
    bucket: int
    enqueued_ms: int
    decision: str

    def line(self) -> dict[str, object]:
        """As `queue audit` shows it."""
        which = {"enqueueId": self.enqueue_id, "name": self.name}
        return {**which, "verdict": self.verdict, "why": self.why}


def digest_of_judged(rows: Iterable[Judged]) -> Digest:
    """The digest of a set of rows: every field counts, their order does not."""
    digest = Digest()
    for row in rows:
        text = "\x1f".join(str(getattr(row, name)) for name in _names())
        packed = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        value = int.from_bytes(packed, "little")
        digest += Digest(1, value, value)
    return digest


class JudgedWriter:
    """Writes the file of one task; nothing is created before the first row."""

    def __init__(self, place: Location, path: str) -> None:
        self._place = place
        self._path = path
        self._writer: Any = None
        self.digest = Digest()

    def add(self, rows: Sequence[Judged]) -> None:
        """Append rows."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not rows:
            return
        if self._writer is None:
            path, files = self._place.path(self._path), self._place.filesystem
            self._writer = pq.ParquetWriter(path, _schema(), filesystem=files, compression="zstd")
        columns = {name: [getattr(row, name) for row in rows] for name in _names()}
        table = pa.Table.from_pydict(columns, schema=_schema())
        self._writer.write_table(table, row_group_size=_ROWS_A_GROUP)
        self.digest += digest_of_judged(rows)

    def close(self) -> None:
        """Finish the file."""
        if self._writer is not None:
            self._writer.close()


def read_judged(place: Location, files: Iterable[str]) -> Iterator[list[Judged]]:
    """The rows of these files, some thousands at a time. Raises what pyarrow raises for a file that is no such Parquet."""
    import pyarrow.parquet as pq

    for file in files:
        with (
            place.filesystem.open_input_file(place.path(file)) as stream,
            pq.ParquetFile(stream) as parquet,
        ):
            for batch in parquet.iter_batches(_ROWS_A_GROUP, columns=list(_names())):
                columns = [batch.column(name).to_pylist() for name in _names()]
                yield [Judged(*values) for values in zip(*columns, strict=True)]


@cache
def _names() -> tuple[str, ...]:
    return tuple(field.name for field in fields(Judged))


@cache
def _schema() -> pa.Schema:
    import pyarrow as pa

    types = {"str": pa.string(), "int": pa.int64()}
    return pa.schema(
        [pa.field(field.name, types[str(field.type)], nullable=False) for field in fields(Judged)]
    )
