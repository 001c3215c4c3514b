"""What one run may do, the facts for its gate, and the candidates of earlier runs.

The plan files of the last applied run list the candidates: blobs that it found unreferenced, and
since when. A record below the artifacts location names these files. If the record is lost or was
changed, no candidate is known and every blob waits anew. The same holds for a record of an earlier
version of mailslice, whose digests are of another kind.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from pydantic import AwareDatetime, Field

from mailslice.engine.row_files import RowFile, RowGroup
from mailslice.maintenance.artifacts import Artifacts, queue_folder
from mailslice.maintenance.json_model import JsonModel
from mailslice.maintenance.plan import Plan, digest_of
from mailslice.maintenance.run_request import NO_QUEUE

VIEW = ("enqueuedMailsV3", "enqueuedMailsV4")
"""Sources: the tables of the queue view, which hold two references for each row."""


class SourceScan(JsonModel):
    """The scan of one source: what it had to read, and what it read."""

    source: str
    rows: int = 0
    references: int = 0
    before: int | None
    """References that the last run read; None: it read none of this source."""
    cleaned: int = 0
    """References that mailslice's own cleanups have taken since, also of rows written since."""
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
    live_mails: int = 0
    """Of all queues, as they were counted before the references were read."""

    @property
    def planned(self) -> int:
        return sum(group.rows for group in self.deletes)

    @property
    def waiting(self) -> int:
        return sum(group.rows for group in self.candidates)

    @property
    def has_work(self) -> bool:
        """Every run records its candidates, even none: they replace those of the run before."""
        return True

    @property
    def sources(self) -> Mapping[str, int]:
        return {scan.source: scan.references for scan in self.scans if not scan.vanished}

    @property
    def view_references(self) -> int:
        """References of the queue view."""
        return sum(self.sources.get(name, 0) for name in VIEW)


@dataclass(frozen=True, slots=True)
class CopyToRestore:
    """A copy in the trash, by its object key in mailslice's own bucket."""

    key: str


_RUNS = queue_folder("blob_gc", NO_QUEUE)
_RECORD_PATH = f"{_RUNS}/candidates.json"


class CandidateRecord(JsonModel):
    """What the last applied run recorded: blobs of its plan's files except the keys `spared`."""

    run: str
    recorded: AwareDatetime
    groups: tuple[RowGroup, ...]
    spared: frozenset[str]
    sources: Mapping[str, int]
    """How many references each source had then."""
    forgotten: str = Field("", exclude=True)
    """Why the record is not trusted; empty when it is."""

    @property
    def folder(self) -> str:
        """The folder of that run, relative to the artifacts location."""
        return f"{_RUNS}/{self.run}"


def record_candidates(artifacts: Artifacts, candidates: CandidateRecord) -> None:
    """Replace the record. Written completely or not at all."""
    value = candidates.as_json()
    artifacts.write(_RECORD_PATH, json.dumps({**value, "digest": digest_of(value)}).encode())


def recorded_candidates(artifacts: Artifacts) -> CandidateRecord | None:
    """The record; None when no run wrote one, or it cannot be read.

    A record that is not trusted keeps only `sources`, for the check of lost references.
    """
    try:
        value = json.loads(artifacts.read(_RECORD_PATH) or b"")
        if value.pop("digest", None) == digest_of(value):
            return CandidateRecord.model_validate(value)
        known = CandidateRecord.model_validate(value | {"groups": (), "spared": ()})
        why = (
            f"the note on the candidates of run {known.run} was changed, or an earlier version of "
            "mailslice wrote it: they are forgotten and wait anew"
        )
        return known.model_copy(update={"forgotten": why})
    except (ValueError, TypeError, AttributeError):
        return None
