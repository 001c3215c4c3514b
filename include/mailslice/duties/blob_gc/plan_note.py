"""plan.json: what a plan says, typed, and the digest over all of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from mailslice.duties.blob_gc.plan_files import CANDIDATE, DELETE, Group
from mailslice.duty.artifacts import iso
from mailslice.duty.plans import digest_of, reading, require_same


@dataclass(frozen=True, slots=True)
class Plan:
    """What one run may do, and the facts that the gate judges it by; all of it is in the digest.

    It may delete the blobs of `deletes`, record those of `candidates`, put the kept copies
    `restores` back. `blobs` are in the bucket.
    """

    run: str
    bucket: str
    made_at: datetime
    grace: timedelta
    delete_after: timedelta
    keep: timedelta
    blobs: int
    deletes: tuple[Group, ...]
    candidates: tuple[Group, ...]
    restores: tuple[str, ...]
    sources: Mapping[str, int]
    """References of each source."""
    scans: tuple[Mapping[str, Any], ...]
    """Of each source: what was to be read, what was, and how many references there were before."""
    listing: Mapping[str, Any]
    """Ranges of keys: how many were to be listed, and how many were."""
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

    def decided(self) -> dict[str, object]:
        """All that apply acts by, as JSON values in a stable order."""
        return {
            "run": self.run,
            "bucket": self.bucket,
            "madeAt": iso(self.made_at),
            "graceSeconds": self.grace.total_seconds(),
            "deleteAfterSeconds": self.delete_after.total_seconds(),
            "keepSeconds": self.keep.total_seconds(),
            "blobs": self.blobs,
            DELETE: [
                [group.file, group.number, group.rows, group.digest] for group in self.deletes
            ],
            CANDIDATE: [
                [group.file, group.number, group.rows, group.digest] for group in self.candidates
            ],
            "restores": list(self.restores),
            "sources": dict(sorted(self.sources.items())),
            "scans": [dict(each) for each in self.scans],
            "listing": dict(self.listing),
            "unreadColumns": list(self.unread_columns),
        }

    @property
    def digest(self) -> str:
        """SHA-256 of `decided`, which holds the digests of all rows."""
        return digest_of(self.decided())


def read_plan(summary: Mapping[str, Any], run: str) -> Plan:
    """The plan in a plan.json. Raises PlanRefused when it is another run's, or was changed since it was made."""
    with reading(run):
        value = summary["decided"]
        plan = Plan(
            value["run"],
            value["bucket"],
            datetime.fromisoformat(value["madeAt"]),
            timedelta(seconds=value["graceSeconds"]),
            timedelta(seconds=value["deleteAfterSeconds"]),
            timedelta(seconds=value["keepSeconds"]),
            value["blobs"],
            tuple(Group(*each) for each in value[DELETE]),
            tuple(Group(*each) for each in value[CANDIDATE]),
            tuple(value["restores"]),
            dict(value["sources"]),
            tuple(dict(each) for each in value["scans"]),
            dict(value["listing"]),
            tuple(value["unreadColumns"]),
        )
        digest = plan.digest
    require_same(digest, summary, (plan.run, None), run)
    return plan
