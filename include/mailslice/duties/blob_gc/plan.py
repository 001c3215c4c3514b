"""The plan of a run with the facts for its gate, and the candidates of earlier runs.

The plan files of the last applied run list the candidates: blobs that it found unreferenced, and
since when. A record below the artifacts location names these files. If the record is lost or was
changed, no candidate is known and every blob starts to wait again. The same holds for a record of
an earlier version of mailslice, whose digests are of another kind.
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
"""The sources that are tables of the queue view. Each row holds two references."""


class SourceScan(JsonModel):
    """The scan of one source: `parts` to read, and what was read."""

    source: str
    rows: int = 0
    references: int = 0
    before: int | None
    """References that the last run read; None if it did not read this source."""
    cleaned: int = 0
    """References that mailslice's cleanups deleted since, including rows written since."""
    parts: int = 0
    read: int = 0
    twice: int = 0
    """Parts that were read twice."""
    holes: int = 0
    """Gaps and overlaps of its parts."""
    vanished: bool = False
    """Whether the last run read this source and this run has no such source."""


class Listing(JsonModel):
    """Key ranges, or files of an inventory: how many were to be read, and how many were."""

    inventory: str | None
    wanted: int
    read: int
    twice: int
    holes: int


class GcPlan(Plan):
    """Apply may delete the blobs of `deletes`, record `candidates` and restore `restores`."""

    bucket: str
    grace: timedelta
    delete_after: timedelta
    keep: timedelta
    blobs: int
    """The number of blobs in the bucket."""
    deletes: tuple[RowGroup, ...]
    candidates: tuple[RowGroup, ...]
    restores: RowFile
    """Rows of `CopyToRestore`."""
    scans: tuple[SourceScan, ...]
    listing: Listing
    unread_columns: tuple[str, ...]
    """Columns that are named like blob ids, have rows, and are read by no source."""
    live_mails: int = 0
    """The live mails of all queues, counted before the references were read."""

    @property
    def planned(self) -> int:
        return sum(group.rows for group in self.deletes)

    @property
    def waiting(self) -> int:
        return sum(group.rows for group in self.candidates)

    @property
    def has_work(self) -> bool:
        """Always true: a run records its candidates, even none, in place of the last run's."""
        return True

    @property
    def sources(self) -> Mapping[str, int]:
        return {scan.source: scan.references for scan in self.scans if not scan.vanished}

    @property
    def view_references(self) -> int:
        return sum(self.sources.get(name, 0) for name in VIEW)


@dataclass(frozen=True, slots=True)
class CopyToRestore:
    """A copy in the trash, by its object key in mailslice's own bucket."""

    key: str


_RUNS = queue_folder("blob_gc", NO_QUEUE)
_RECORD_PATH = f"{_RUNS}/candidates.json"


class CandidateRecord(JsonModel):
    """The candidates of the last applied run: blobs of its plan's files except keys in `spared`."""

    run: str
    recorded: AwareDatetime
    groups: tuple[RowGroup, ...]
    spared: frozenset[str]
    sources: Mapping[str, int]
    """The number of references of each source at that time."""
    forgotten: str = Field("", exclude=True)
    """Why the record is not trusted; empty if it is."""

    @property
    def folder(self) -> str:
        """The folder of the recording run, relative to the artifacts location."""
        return f"{_RUNS}/{self.run}"


def record_candidates(artifacts: Artifacts, candidates: CandidateRecord) -> None:
    """Replace the record, atomically."""
    value = candidates.as_json()
    artifacts.write(_RECORD_PATH, json.dumps({**value, "digest": digest_of(value)}).encode())


def recorded_candidates(artifacts: Artifacts) -> CandidateRecord | None:
    """The record; None if no run wrote one or it cannot be read.

    A record that is not trusted has no candidates, only `sources` for the check of lost references.
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
