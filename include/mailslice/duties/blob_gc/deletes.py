"""Deletes planned blobs by group: copy, HEAD, and DELETE where the object is as planned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING

from mailslice.duties.blob_gc.blob_files import PlannedBlob, blobs_of
from mailslice.duties.blob_gc.classify import modified_seconds
from mailslice.duties.blob_gc.trash import Kept, KeptBlobs
from mailslice.engine.frames import InProcess, Session, run_on_keys, shared, slots_of
from mailslice.engine.row_files import Location
from mailslice.maintenance.rate_limit import Throttle
from mailslice.maintenance.row_file import RowGroup, read_groups
from mailslice.model import crash
from mailslice.model.mail import BlobId
from mailslice.model.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

CHANGED = "changed since the listing"
ALREADY_DELETED = "gone already"
REFERENCED = "referred to again"
_NAMED = 20
_AT_ONCE = 2
"""Groups that one task handles concurrently: HEADs of one overlap with DELETEs of another."""


@dataclass(frozen=True, slots=True)
class DeleteSpec:
    """What to delete: the run, the location of its files, when copies expire (None: no copies)."""

    settings: Settings
    run: str
    location: Location
    folder: str
    expires: datetime | None
    throttle: Throttle


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """The outcome of one group. JSON values: the run's progress file stores it."""

    deleted: int
    bytes: int
    skipped: dict[str, int]
    """By reason."""
    failed: int
    failures: dict[str, str] = field(default_factory=dict)
    """Some of the failed keys, and why."""


def group_name(group: RowGroup) -> str:
    """The group's name in the run's progress file."""
    return f"{group.file}/{group.number}"


def delete_groups(
    spark: Session, spec: DeleteSpec, groups: Sequence[RowGroup], rereferenced: frozenset[str]
) -> dict[str, GroupOutcome]:
    """Delete the blobs of these groups, except the keys in `rereferenced`: outcomes by group."""
    beside = 1 if isinstance(spark, InProcess) else min(len(groups), slots_of(spark))
    with shared(spark, rereferenced) as rereferenced_keys:

        def work(batches: Iterator[Sequence[RowGroup]]) -> Iterator[tuple[str, GroupOutcome]]:
            limit = spec.throttle.share(beside)
            with KeptBlobs(spec.settings, limit) as trash, ThreadPoolExecutor(_AT_ONCE) as pool:

                def outcome(planned: tuple[RowGroup, pa.Table]) -> tuple[str, GroupOutcome]:
                    group, rows = planned
                    return group_name(group), _delete(
                        spec, trash, blobs_of(rows), rereferenced_keys()
                    )

                for batch in batches:
                    yield from pool.map(outcome, read_groups(spec.location, spec.folder, batch))

        return dict(run_on_keys(spark, groups, work))


def _delete(
    spec: DeleteSpec, trash: KeptBlobs, blobs: Sequence[PlannedBlob], rereferenced: frozenset[str]
) -> GroupOutcome:
    requested = {blob.key: blob for blob in blobs if blob.key not in rereferenced}
    copies = (
        {key: Kept(spec.expires, spec.run, key) for key in requested}
        if spec.expires is not None
        else {}
    )
    problems = trash.copy_blobs(copies.values())
    crash.point("apply:after-copies")
    # HEAD after the copies: an object that is still as listed was so when it was copied.
    now = trash.james.heads(list(requested))
    same = {
        key
        for key, blob in requested.items()
        if (stored := now[key]) is not None
        and (stored.size, modified_seconds(stored.modified)) == (blob.size, blob.modified_s)
    }
    absent = [key for key, stored in now.items() if stored is None]
    deleted_before = _deleted_before(trash, [copies[key] for key in absent if key in copies])
    uncopied = {key: why for key, why in problems.items() if key in same}
    to_delete = [key for key in requested if key in same and key not in uncopied]
    failed = {**uncopied, **trash.james.delete(to_delete)}
    crash.point("apply:inside-deletes")
    done = (same - failed.keys()) | deleted_before
    skipped = {
        REFERENCED: len(blobs) - len(requested),
        ALREADY_DELETED: len(absent) - len(deleted_before),
        CHANGED: len(requested) - len(same) - len(absent),
    }
    failures: dict[str, str] = dict(islice(failed.items(), _NAMED))
    size = sum(requested[key].size for key in done)
    return GroupOutcome(len(done), size, skipped, len(failed), failures)


def _deleted_before(trash: KeptBlobs, copies: Sequence[Kept]) -> set[BlobId]:
    """Missing blobs that have a copy of this run: an earlier try deleted them."""
    stored = trash.own.heads([copy.place for copy in copies])
    return {copy.key for copy in copies if stored[copy.place] is not None}
