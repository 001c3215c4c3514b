"""plan.json and the Parquet files beside it: which counters are to be corrected, which rows of the two tables differ, and the digest over all of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from mailslice.duties.counter_repair.fingerprints import Seen
from mailslice.duties.counter_repair.rows_file import PlanFile, read_rows, require_file
from mailslice.duty.artifacts import RunFolder, iso
from mailslice.duty.plans import digest_of, reading, require_same
from mailslice.model.durations import parse_duration
from mailslice.stores.cassandra.mailboxes import Counters

if TYPE_CHECKING:
    import pyarrow as pa


@cache
def drift_schema() -> pa.Schema:
    """Columns of the drifts: the mailbox, what is stored, what was counted, and how its messages looked then."""
    import pyarrow as pa

    numbers = (
        "stored_count",
        "stored_unseen",
        "given_modseq",
        "count",
        "unseen",
        "modseq",
        "newest",
        "first",
        "second",
    )
    return pa.schema(
        [
            pa.field("mailbox", pa.string(), False),
            pa.field("has_counters", pa.bool_(), False),
            *(pa.field(name, pa.int64(), False) for name in numbers),
        ]
    )


@cache
def difference_schema() -> pa.Schema:
    """Columns of the rows that differ: which, how, and what either table had; null where it had no such row, and for the message of one without an id."""
    import pyarrow as pa

    sides = [
        f"{side}_{name}"
        for side in ("truth", "projected")
        for name in ("modseq", "flags", "user_flags")
    ]
    return pa.schema(
        [
            pa.field("kind", pa.string(), False),
            pa.field("mailbox", pa.string(), False),
            pa.field("uid", pa.int64(), False),
            pa.field("message", pa.string()),
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
        seen = Seen(
            *(row[name] for name in ("count", "unseen", "modseq", "newest", "first", "second"))
        )
        return cls(
            UUID(row["mailbox"]),
            row["has_counters"],
            Counters(row["stored_count"], row["stored_unseen"]),
            seen,
            row["given_modseq"],
        )


@dataclass(frozen=True, slots=True)
class ScanFacts:
    """What the scan came to: token ranges of all tables, mailboxes, messages by either table."""

    ranges: int
    read: int
    twice: int
    holes: int
    mailboxes: int
    messages: int
    projected: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What one run may do, and the facts that the gate judges it by; all of it is in the digest.

    `made_at`: before anything was read; `read_at`: when the last counter had been read.
    `inconsistencies`: rows by kind.
    """

    run: str
    made_at: datetime
    read_at: datetime
    settle: timedelta
    trust_projection: bool
    repair_projection: bool
    drifts: PlanFile
    differences: tuple[PlanFile, ...]
    inconsistencies: Mapping[str, int]
    scan: ScanFacts

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
            "scan": asdict(self.scan),
        }

    @property
    def digest(self) -> str:
        """SHA-256 of `decided`, which holds those of the files."""
        return digest_of(self.decided())


def read_plan(summary: Mapping[str, Any], run: str) -> Plan:
    """The plan in a plan.json. Raises PlanRefused when it is another run's, or was changed since it was made."""
    with reading(run):
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
            ScanFacts(**value["scan"]),
        )
    require_same(plan.digest, summary, (plan.run, None), run)
    return plan


def require_files(plan: Plan, folder: RunFolder) -> None:
    """Raises PlanRefused when a file of the plan is not what was written."""
    for file in (plan.drifts, *plan.differences):
        require_file(file, folder)


def read_drifts(plan: Plan, folder: RunFolder) -> list[Drift]:
    """The mailboxes whose counters are to be corrected, the largest drift first."""
    found = [Drift.of_row(row) for row in read_rows(plan.drifts, folder)]
    return sorted(
        found,
        key=lambda drift: (-max(abs(drift.add.count), abs(drift.add.unseen)), str(drift.mailbox)),
    )
