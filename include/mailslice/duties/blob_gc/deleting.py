"""Deletes planned blobs, a group at a time: a copy, a HEAD, and a delete where it is as planned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING

from mailslice.duties.blob_gc.blob_files import PlannedBlob, blobs_of
from mailslice.duties.blob_gc.classify import modified_seconds
from mailslice.duties.blob_gc.kept import Kept, KeptBlobs
from mailslice.engine.frames import InProcess, Session, run_on_keys, shared, slots_of
from mailslice.engine.row_files import Location
from mailslice.maintenance.rate_limit import Throttle
from mailslice.maintenance.row_file import RowGroup, read_groups
from mailslice.model import crash
from mailslice.model.mail import BlobId
from mailslice.model.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

CHANGED, GONE, REFERENCED = "changed since the listing", "gone already", "referred to again"
_NAMED = 20
_AT_ONCE = 2
"""Groups of one task: S3 looks at the blobs of one while it deletes those of another."""


@dataclass(frozen=True, slots=True)
class Deleting:
    """Whose blobs, where the plan's files are, and until when copies are kept; None: no copies."""

    settings: Settings
    run: str
    location: Location
    folder: str
    expires: datetime | None
    throttle: Throttle


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the blobs of one group. JSON values: it is kept in the run's progress."""

    deleted: int
    bytes: int
    skipped: dict[str, int]
    """By reason."""
    failed: int
    failures: dict[str, str] = field(default_factory=dict)
    """Some of the failed keys, and why."""


def group_name(group: RowGroup) -> str:
    """As the run's progress names the group."""
    return f"{group.file}/{group.number}"


def delete_groups(
    spark: Session, what: Deleting, groups: Sequence[RowGroup], spared: frozenset[str]
) -> dict[str, Outcome]:
    """Delete the blobs of these groups, but for the keys in `spared`: outcomes by group name."""
    beside = 1 if isinstance(spark, InProcess) else min(len(groups), slots_of(spark))
    with shared(spark, spared) as kept_back:

        def work(batches: Iterator[Sequence[RowGroup]]) -> Iterator[tuple[str, Outcome]]:
            limit = what.throttle.share(beside)
            with KeptBlobs(what.settings, limit) as kept, ThreadPoolExecutor(_AT_ONCE) as pool:

                def outcome(planned: tuple[RowGroup, pa.Table]) -> tuple[str, Outcome]:
                    group, rows = planned
                    return group_name(group), _delete(what, kept, blobs_of(rows), kept_back())

                for batch in batches:
                    yield from pool.map(outcome, read_groups(what.location, what.folder, batch))

        return dict(run_on_keys(spark, groups, work))


def _delete(
    what: Deleting, kept: KeptBlobs, blobs: Sequence[PlannedBlob], spared: frozenset[str]
) -> Outcome:
    wanted = {blob.key: blob for blob in blobs if blob.key not in spared}
    copies = (
        {key: Kept(what.expires, what.run, key) for key in wanted}
        if what.expires is not None
        else {}
    )
    problems = kept.keep(copies.values())
    crash.point("apply:after-copies")
    # After the copies: an object that is now as it was listed was so when it was copied.
    now = kept.james.heads(list(wanted))
    same = {
        key
        for key, blob in wanted.items()
        if (there := now[key]) is not None
        and (there.size, modified_seconds(there.modified)) == (blob.size, blob.modified_s)
    }
    absent = [key for key, there in now.items() if there is None]
    mine = _deleted_before(kept, [copies[key] for key in absent if key in copies])
    uncopied = {key: why for key, why in problems.items() if key in same}
    to_delete = [key for key in wanted if key in same and key not in uncopied]
    failed = {**uncopied, **kept.james.delete(to_delete)}
    crash.point("apply:inside-deletes")
    done = (same - failed.keys()) | mine
    skipped = {
        REFERENCED: len(blobs) - len(wanted),
        GONE: len(absent) - len(mine),
        CHANGED: len(wanted) - len(same) - len(absent),
    }
    failures: dict[str, str] = dict(islice(failed.items(), _NAMED))
    size = sum(wanted[key].size for key in done)
    return Outcome(len(done), size, skipped, len(failed), failures)


def _deleted_before(kept: KeptBlobs, copies: Sequence[Kept]) -> set[BlobId]:
    """Of blobs that are gone, those with a copy of this very run: an earlier try deleted them."""
    there = kept.own.heads([copy.place for copy in copies])
    return {copy.key for copy in copies if there[copy.place] is not None}
