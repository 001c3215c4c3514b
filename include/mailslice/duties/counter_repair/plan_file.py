"""plan.json and the Parquet files beside it: which counters are to be corrected, which rows of the two tables differ, and the digest over all of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID, uuid4

from mailslice.duties.counter_repair.fingerprints import Seen
from mailslice.duty.artifacts import RunFolder, iso
from mailslice.model.durations import parse_duration
from mailslice.model.errors import PlanRefused
from mailslice.stores.cassandra.mailboxes import Counters

if TYPE_CHECKING:
    import pyarrow as pa

    from mailslice.spark.plan_files import Location

PARTS = "plan"
"""The folder of the Parquet files, in the run's folder."""
_ROWS_A_GROUP = 50_000


@cache
def drift_schema() -> pa.Schema:
    """Columns of the drifts: the mailbox, what is stored, what was counted, and how its messages looked then."""
    import pyarrow as pa

    numbers = ("stored_count", "stored_unseen", "given_modseq", "count", "unseen", "modseq", "newest", "first", "second")
    return pa.schema(
        [pa.field("mailbox", pa.string(), False), pa.field("has_counters", pa.bool_(), False), *(pa.field(name, pa.int64(), False) for name in numbers)]
    )


@cache
def difference_schema() -> pa.Schema:
    """Columns of the rows that differ: which, how, and what either table had; null where it had no such row."""
    import pyarrow as pa

    sides = [f"{side}_{name}" for side in ("truth", "projected") for name in ("modseq", "flags", "user_flags")]
    return pa.schema(
        [
            pa.field("kind", pa.string(), False),
            pa.field("mailbox", pa.string(), False),
            pa.field("uid", pa.int64(), False),
            pa.field("message", pa.string(), False),
            *(pa.field(name, pa.int64()) for name in sides),
        ]
    )


@dataclass(frozen=True, slots=True)
class Drift:
    """A mailbox whose stored counters are not what was counted. `seen` is how its messages looked at the first read.

    `given_modseq` is the highest modSeq that James had given out there before that read began; 0 where James keeps none.
    """

    mailbox: UUID
    has_counters: bool
    stored: Counters
    seen: Seen
    given_modseq: int = 0

    @property
    def add(self) -> Counters:
        """The difference: what must be added to the counters."""
        return Counters(self.seen.count - self.stored.count, self.seen.unseen - self.stored.unseen)

    def row(self) -> dict[str, object]:
        """As the plan's file has it."""
        return {
            "mailbox": str(self.mailbox),
            "has_counters": self.has_counters,
            "stored_count": self.stored.count,
            "stored_unseen": self.stored.unseen,
            "given_modseq": self.given_modseq,
            **asdict(self.seen),
        }

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """What `row` gave."""
        seen = Seen(*(row[name] for name in ("count", "unseen", "modseq", "newest", "first", "second")))
        return cls(UUID(row["mailbox"]), row["has_counters"], Counters(row["stored_count"], row["stored_unseen"]), seen, row["given_modseq"])


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A Parquet file of the plan: its name in the folder, its rows and the SHA-256 of its bytes."""

    name: str
    rows: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What one run may do. `made_at`: before anything was read; `read_at`: when the last counter had been read. `inconsistencies`: rows by kind."""

    run: str
    made_at: datetime
    read_at: datetime
    settle: timedelta
    trust_projection: bool
    repair_projection: bool
    drifts: PlanFile
    differences: tuple[PlanFile, ...]
    inconsistencies: Mapping[str, int]

    def decided(self) -> dict[str, object]:
        """All that apply acts by, as JSON values in a stable order."""
        return {
            "run": self.run,
            "madeAt": iso(self.made_at),
            "readAt": iso(self.read_at),
            "settle": f"{self.settle.total_seconds()}s",
            "trustProjection": self.trust_projection,
            "repairProjection": self.repair_projection,
            "drifts": asdict(self.drifts),
            "differences": [asdict(each) for each in self.differences],
            "inconsistencies": dict(self.inconsistencies),
        }

    @property
    def digest(self) -> str:
        """SHA-256 of `decided`, which holds those of the files."""
        return hashlib.sha256(json.dumps(self.decided(), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_plan(summary: Mapping[str, Any], run: str) -> Plan:
    """The plan in a plan.json. Raises PlanRefused when it is another run's, or was changed since it was made."""
    try:
        value = summary["decided"]
        plan = Plan(
            value["run"],
            datetime.fromisoformat(value["madeAt"]),
            datetime.fromisoformat(value["readAt"]),
            parse_duration(value["settle"]),
            value["trustProjection"],
            value["repairProjection"],
            PlanFile(**value["drifts"]),
            tuple(PlanFile(**each) for each in value["differences"]),
            dict(value["inconsistencies"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise PlanRefused(f"plan.json of run {run} cannot be read ({type(error).__name__}: {error}): plan again") from error
    if plan.digest != summary.get("planDigest"):
        raise PlanRefused(f"plan.json of run {run} was changed: its digest is {plan.digest}, it says {summary.get('planDigest')}; plan again")
    if plan.run != run:
        raise PlanRefused(f"the plan is of run {plan.run}, not of run {run}")
    return plan


def require_files(plan: Plan, folder: RunFolder) -> None:
    """Raises PlanRefused when a file of the plan is not what was written."""
    for file in (plan.drifts, *plan.differences):
        digest = hashlib.sha256()
        try:
            with folder.artifacts.filesystem.open_input_stream(folder.artifacts.path(folder.file(f"{PARTS}/{file.name}"))) as stream:
                while data := stream.read(1 << 20):
                    digest.update(data)
        except FileNotFoundError:
            raise PlanRefused(f"{folder.uri}/{PARTS}/{file.name} of the plan is gone: plan again") from None
        if digest.hexdigest() != file.sha256:
            raise PlanRefused(f"{folder.uri}/{PARTS}/{file.name} was changed since the plan was made: plan again")


def read_rows(file: PlanFile, folder: RunFolder) -> Iterator[dict[str, Any]]:
    """The rows of a file, a row group at a time."""
    import pyarrow.parquet as pq

    with folder.artifacts.filesystem.open_input_file(folder.artifacts.path(folder.file(f"{PARTS}/{file.name}"))) as opened:
        parquet = pq.ParquetFile(opened)
        for group in range(parquet.num_row_groups):
            yield from parquet.read_row_group(group).to_pylist()


def read_drifts(plan: Plan, folder: RunFolder) -> list[Drift]:
    """The mailboxes whose counters are to be corrected, the largest drift first."""
    found = [Drift.of_row(row) for row in read_rows(plan.drifts, folder)]
    return sorted(found, key=lambda drift: (-max(abs(drift.add.count), abs(drift.add.unseen)), str(drift.mailbox)))


class RowsWriter:
    """Writes one Parquet file of the plan; nothing is created before the first row, unless `always`."""

    def __init__(self, place: Location, folder: str, name: str, schema: pa.Schema, *, always: bool = False) -> None:
        self._open: Callable[[], Any] = lambda: place.filesystem.open_output_stream(place.path(f"{folder}/{file}"))
        file = self._file = f"{name}-{uuid4()}.parquet"
        self._schema = schema
        self._sink: _Hashing | None = None
        self._writer: Any = None
        self._rows = 0
        if always:
            self._start()

    def add(self, rows: pa.Table) -> None:
        """Append rows of the schema."""
        if self._writer is None:
            self._start()
        self._writer.write_table(rows.cast(self._schema), row_group_size=_ROWS_A_GROUP)
        self._rows += rows.num_rows

    def close(self) -> PlanFile | None:
        """Finish the file; what it is, or None when none was made."""
        if self._writer is None or self._sink is None:
            return None
        self._writer.close()
        self._sink.finish()
        return PlanFile(self._file, self._rows, self._sink.digest.hexdigest())

    def _start(self) -> None:
        import pyarrow.parquet as pq

        self._sink = _Hashing(self._open())
        self._writer = pq.ParquetWriter(self._sink, self._schema, compression="zstd")


class _Hashing:
    """A file to write to that keeps the digest of what was written."""

    closed = False

    def __init__(self, stream: Any) -> None:
        self.digest = hashlib.sha256()
        self._stream = stream

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self._stream.write(data)
        return len(data)

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        """What pyarrow calls; the stream is closed by `finish`."""

    def finish(self) -> None:
        self._stream.close()


def table_of(rows: Sequence[Mapping[str, object]], schema: pa.Schema) -> pa.Table:
    """Rows as an Arrow table."""
    import pyarrow as pa

    return pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
