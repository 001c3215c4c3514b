"""Drop deleted marks of a plan's ids, in Python workers: those whose rows are gone and that nothing blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from mailslice.model.errors import PlanRefused
from mailslice.model.mail import QueueName
from mailslice.model.settings import Settings
from mailslice.spark.frames import Session, run_on_keys, shared
from mailslice.spark.ids import low_halves, of_texts, pack
from mailslice.spark.in_worker import stores_of
from mailslice.spark.plan_files import Digest, Location, PlanPart, PlanReader, digest_of_table
from mailslice.spark.slices import READS_IN_FLIGHT, to_batches
from mailslice.stores.cassandra.ids import cut

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from mailslice.spark.ids import Ids

_DROPPED = "dropped long, rows_left long, blocked array<string>"


@dataclass(frozen=True, slots=True)
class Dropping:
    """Whose marks, and where their ids are. `turn(n)` blocks until n more may be dropped; each task has a copy of its own."""

    settings: Settings
    queue: QueueName
    place: Location
    folder: str
    turn: Callable[[int], None] | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """`dropped` marks; `rows_left` ids whose rows are there, which kept their marks; `blocked`: `id|slice in ms|bucket` of those that something blocks."""

    dropped: int
    rows_left: int
    blocked: tuple[str, ...]


def digest_of_parts(spark: Session, what: Dropping, parts: Sequence[PlanPart]) -> Digest:
    """The digest of all rows in these parts: whether the files are still what was planned. Raises PlanRefused for files that cannot be read."""

    def read(batches: Iterator[Sequence[PlanPart]]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        try:
            total = sum((digest_of_table(table) for table in _tables(what, batches)), Digest())
        except PlanRefused:
            raise
        except Exception as error:
            # Of a file that broke or was changed anything may be raised; nothing else is read here.
            why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            raise PlanRefused(
                f"the files of the plan below {what.folder} were changed or removed ({why}): plan again"
            ) from error
        yield pa.RecordBatch.from_pydict({"digest": [str(total)]})

    return sum(
        (Digest.parse(row["digest"]) for row in run_on_keys(spark, parts, read, "digest string")),
        Digest(),
    )


def drop_marks(
    spark: Session,
    what: Dropping,
    parts: Sequence[PlanPart],
    *,
    rows_left: npt.NDArray[np.uint64],
    blocked: frozenset[str],
) -> Dropped:
    """Drop the marks of the parts' ids, but for those in `rows_left` (sorted low halves of ids) and in `blocked`."""
    with shared(spark, rows_left) as left:

        def drop(batches: Iterator[Sequence[PlanPart]]) -> Iterator[pa.RecordBatch]:
            deleted = stores_of(what.settings).tables.deleted
            for table in _tables(what, batches):
                free, stopped, kept = _sort(table, left(), blocked)
                if what.turn is not None:
                    what.turn(len(free))
                deleted.drop_packed(what.queue, cut(pack(free)), READS_IN_FLIGHT)
                yield from to_batches([Dropped(len(free), kept, tuple(stopped))])

        found = run_on_keys(spark, parts, drop, _DROPPED)
    return Dropped(
        sum(row["dropped"] for row in found),
        sum(row["rows_left"] for row in found),
        tuple(each for row in found for each in row["blocked"] or ()),
    )


def _tables(what: Dropping, batches: Iterator[Sequence[PlanPart]]) -> Iterator[pa.Table]:
    """The row groups of the parts, those of one file after each other."""
    with PlanReader(what.place.filesystem, what.place.path(what.folder)) as reader:
        for batch in batches:
            for part in sorted(batch, key=lambda part: (part.file, part.first)):
                yield from reader.groups(part)


def _sort(
    table: pa.Table, left: npt.NDArray[np.uint64], blocked: frozenset[str]
) -> tuple[Ids, list[str], int]:
    """(ids whose marks go, ids that are blocked, how many still have rows)."""
    import numpy as np

    ids = of_texts(table.column("enqueue_id"))
    low = low_halves(ids)
    there = (
        left[np.minimum(np.searchsorted(left, low), len(left) - 1)] == low
        if len(left)
        else np.zeros(len(low), np.bool_)
    )
    stops = ~there & np.isin(
        low, np.array([UUID(each).int & (2**64 - 1) for each in blocked], np.uint64)
    )
    starts = table.column("slice_start").cast("int64")
    stopped = [
        f"{UUID(bytes=ids[row].tobytes())}|{starts[row].as_py()}|{table.column('bucket')[row].as_py()}"
        for row in np.flatnonzero(stops).tolist()
    ]
    return ids[~there & ~stops], stopped, int(there.sum())
