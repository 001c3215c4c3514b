"""What one run may do, and the facts for its gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from mailslice.maintenance.json_model import JsonModel
from mailslice.maintenance.plan import Plan
from mailslice.maintenance.row_file import RowFile, RowGroup


class SourceScan(JsonModel):
    """The scan of one source: what it had to read, and what it read."""

    source: str
    rows: int = 0
    references: int = 0
    before: int | None
    """References that the last run read; None: it read none of this source."""
    cleaned: int = 0
    """References that mailslice's own cleanups have taken since."""
    parts: int = 0
    read: int = 0
    twice: int = 0
    """Parts that were read twice."""
    holes: int = 0
    """Gaps and overlaps of its parts."""
    vanished: bool = False
    """The last run read this source, and this run has no such source."""


class Listing(JsonModel):
    """Ranges of keys: how many were to be listed, and how many were. Of an inventory: its files."""

    inventory: str | None
    wanted: int
    read: int
    twice: int
    holes: int


class GcPlan(Plan):
    """It may delete the blobs of `deletes`, record `candidates`, put the copies `restores` back."""

    bucket: str
    grace: timedelta
    delete_after: timedelta
    keep: timedelta
    blobs: int
    """In the bucket."""
    deletes: tuple[RowGroup, ...]
    candidates: tuple[RowGroup, ...]
    restores: RowFile
    """Of `CopyToRestore`."""
    scans: tuple[SourceScan, ...]
    listing: Listing
    unread_columns: tuple[str, ...]
    """Columns with rows that are named like blob ids, and that no source reads."""

    @property
    def planned(self) -> int:
        """Blobs that are to go."""
        return sum(group.rows for group in self.deletes)

    @property
    def waiting(self) -> int:
        """Blobs that are to be recorded as candidates."""
        return sum(group.rows for group in self.candidates)

    @property
    def has_work(self) -> bool:
        """Every run records its candidates, even none: they replace those of the run before."""
        return True

    @property
    def sources(self) -> Mapping[str, int]:
        """References of each source that was read."""
        return {scan.source: scan.references for scan in self.scans if not scan.vanished}


@dataclass(frozen=True, slots=True)
class CopyToRestore:
    """A copy in the trash, by its object key in mailslice's own bucket."""

    key: str
