"""The plan: counters to correct, rows that differ, facts that the gate judges."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Self
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AwareDatetime

from mailslice.duties.counter_repair.fingerprints import MessageDigest
from mailslice.engine.row_files import RowFile
from mailslice.maintenance.json_model import JsonModel
from mailslice.maintenance.plan import Plan
from mailslice.maintenance.run import Run
from mailslice.stores.cassandra.mailboxes import Counters

ONLY_TRUTH, ONLY_PROJECTED = "onlyInImapUidTable", "onlyInMessageIdTable"
FLAGS_DIFFER, MODSEQ_DIFFERS = "flagsDiffer", "modSeqDiffers"
WITHOUT_ID = "withoutMessageId"
"""A row of messageIdTable with flags alone, which James wrote after the row was deleted.

James does not count it as a message and deletes it when it reads it.
"""
MAILBOX_MISSING, COUNTER_ORPHANED = "mailboxGone", "counterOfGoneMailbox"
REPAIRABLE = (ONLY_TRUTH, ONLY_PROJECTED, FLAGS_DIFFER, MODSEQ_DIFFERS)
KINDS = (*REPAIRABLE, WITHOUT_ID, MAILBOX_MISSING, COUNTER_ORPHANED)
"""Names of differences in reports. A row counts once, under the first name that fits.

The order is: mailbox gone, without message id, in one table only, flags, modSeq.
"""


@dataclass(frozen=True, slots=True)
class Drift:
    """A mailbox whose stored counters are wrong, with the digest of its messages (first read).

    `given_modseq` is the highest modSeq that James had given out there before the read began; 0 if
    James has no table of modSeqs.
    """

    mailbox: UUID
    stored_count: int
    stored_unseen: int
    given_modseq: int
    count: int
    unseen: int
    modseq: int
    newest: int
    first: int
    second: int

    @classmethod
    def of(
        cls, mailbox: UUID, stored: Counters, digest: MessageDigest, given_modseq: int = 0
    ) -> Self:
        return cls(mailbox, stored.count, stored.unseen, given_modseq, **asdict(digest))

    @property
    def stored(self) -> Counters:
        return Counters(self.stored_count, self.stored_unseen)

    @property
    def digest(self) -> MessageDigest:
        return MessageDigest(
            self.count, self.unseen, self.modseq, self.newest, self.first, self.second
        )

    @property
    def computed(self) -> Counters:
        return Counters(self.count, self.unseen)

    @property
    def add(self) -> Counters:
        """The numbers that must be added to the counters."""
        return Counters(self.count - self.stored_count, self.unseen - self.stored_unseen)

    @property
    def order(self) -> tuple[int, str]:
        return -max(abs(self.add.count), abs(self.add.unseen)), str(self.mailbox)


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that differs: its key, how it differs, and its values in both tables.

    Values are None if a table has no such row. `message` is None for a row without an id.
    """

    kind: str
    mailbox: str
    uid: int
    message: str | None
    truth_modseq: int | None
    truth_flags: int | None
    truth_user_flags: int | None
    projected_modseq: int | None
    projected_flags: int | None
    projected_user_flags: int | None


class ScanFacts(JsonModel):
    """Facts of the scan: token ranges of all tables, mailboxes, messages of each table."""

    ranges: int
    read: int
    twice: int
    holes: int
    mailboxes: int
    messages: int
    projected: int


class CounterPlan(Plan):
    """What one run may do, and the facts by which the gate judges it.

    `made_at` is before the first read, `read_at` after the last. `inconsistencies` are numbers of
    rows by kind.
    """

    read_at: AwareDatetime
    settle: timedelta
    trust_projection: bool
    repair_projection: bool
    drifts: RowFile
    """Rows of `Drift`."""
    differences: tuple[RowFile, ...]
    """Rows of `Difference`, one file a Spark task."""
    inconsistencies: Mapping[str, int]
    scan: ScanFacts

    @property
    def planned(self) -> int:
        return self.drifts.rows

    @property
    def repairable(self) -> int:
        if not self.repair_projection:
            return 0
        return sum(self.inconsistencies.get(kind, 0) for kind in REPAIRABLE)

    @property
    def has_work(self) -> bool:
        """A repair of the projection always runs apply, which reports its counts."""
        return self.repair_projection or self.planned > 0

    def read_drifts(self, run: Run) -> list[Drift]:
        """The mailboxes to correct, the largest drift first. Raises PlanRefused."""
        return sorted(run.read_rows(self.drifts, Drift), key=lambda drift: drift.order)

    def read_differences(
        self, run: Run, kinds: Collection[str] = KINDS, mailboxes: Collection[UUID] | None = None
    ) -> Iterator[Difference]:
        """Stream the rows of these kinds and mailboxes (None: all). Raises PlanRefused."""
        text = pa.string()
        for table in (table for file in self.differences for table in run.read_tables(file)):
            rows = table.filter(pc.is_in(table["kind"], pa.array(kinds, text)))
            if mailboxes is not None:
                ids = pa.array(map(str, mailboxes), text)
                rows = rows.filter(pc.is_in(rows["mailbox"], ids))
            yield from (Difference(**row) for row in rows.to_pylist())

    def unprojected(self, run: Run, mailboxes: Collection[UUID]) -> dict[UUID, list[bytes]]:
        """By mailbox, the messages (ids of 16 bytes) that only the truth had when planned."""
        ids: dict[UUID, list[bytes]] = {}
        for row in self.read_differences(run, (ONLY_TRUTH,), mailboxes):
            ids.setdefault(UUID(row.mailbox), []).append(UUID(row.message).bytes)
        return ids
