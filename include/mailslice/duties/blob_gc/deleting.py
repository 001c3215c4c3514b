"""Delete planned blobs, a group at a time: keep a copy, look at the object once more, delete it only when it is what was planned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from mailslice.duties.blob_gc.classify import modified_seconds
from mailslice.duties.blob_gc.kept import Kept, KeptBlobs
from mailslice.duties.blob_gc.plan_files import Blob, Group, read_groups
from mailslice.duty.throttle import Throttle
from mailslice.model import crash
from mailslice.model.mail import BlobId
from mailslice.model.settings import Settings
from mailslice.spark.frames import InProcess, Session, run_on_keys, shared, slots_of
from mailslice.spark.plan_files import Location

CHANGED, GONE, REFERENCED = "changed since the listing", "gone already", "referred to again"
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Deleting:
    """Whose blobs, where the plan's files are, and until when copies are kept; None: no copies."""

    settings: Settings
    run: str
    place: Location
    folder: str
    expires: datetime | None
    throttle: Throttle


@dataclass(slots=True)
class Outcome:
    """What became of planned blobs. `skipped` by reason; `problems` are a few of the failures, `key: why`."""

    deleted: int = 0
    size: int = 0
    failed: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """For the run's progress."""
        return {
            "deleted": self.deleted,
            "size": self.size,
            "failed": self.failed,
            "skipped": dict(self.skipped),
            "problems": self.problems,
        }

    def add(self, other: Outcome) -> None:
        """Sum up."""
        self.deleted += other.deleted
        self.size += other.size
        self.failed += other.failed
        self.skipped.update(other.skipped)
        self.problems = [*self.problems, *other.problems][:_SHOWN]


def delete_groups(
    spark: Session, what: Deleting, groups: Sequence[Group], spared: frozenset[str]
) -> dict[tuple[str, int], Outcome]:
    """Delete the blobs of these groups, but for the keys in `spared`: (file, number) -> what became of them."""
    beside = 1 if isinstance(spark, InProcess) else min(len(groups), slots_of(spark))
    with shared(spark, spared) as kept_back:

        def work(batches: Iterator[Sequence[Group]]) -> Iterator[tuple[tuple[str, int], Outcome]]:
            with KeptBlobs(what.settings, what.throttle.share(beside)) as kept:
                for batch in batches:
                    for group, blobs in read_groups(what.place, what.folder, batch):
                        outcome = _delete(what, kept, blobs, kept_back())
                        yield (group.file, group.number), outcome

        return dict(run_on_keys(spark, groups, work))


def _delete(
    what: Deleting, kept: KeptBlobs, blobs: Sequence[Blob], spared: frozenset[str]
) -> Outcome:
    wanted = {blob.key: blob for blob in blobs if blob.key not in spared}
    outcome = Outcome(skipped=Counter({REFERENCED: len(blobs) - len(wanted)}))
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
        key: blob
        for key, blob in wanted.items()
        if (there := now[key]) is not None
        and _is(blob, there.size, modified_seconds(there.modified))
    }
    absent = [key for key, there in now.items() if there is None]
    mine = _deleted_before(kept, [copies[key] for key in absent if key in copies])
    uncopied = {key: why for key, why in problems.items() if key in same}
    failed = {**uncopied, **kept.james.delete([key for key in same if key not in uncopied])}
    crash.point("apply:inside-deletes")
    done = [
        blob for key, blob in wanted.items() if (key in same and key not in failed) or key in mine
    ]
    outcome.deleted, outcome.size, outcome.failed = (
        len(done),
        sum(blob.size for blob in done),
        len(failed),
    )
    outcome.skipped[GONE] = len(absent) - len(mine)
    outcome.skipped[CHANGED] = len(wanted) - len(same) - len(absent)
    outcome.problems = [f"{key}: {why}" for key, why in list(failed.items())[:_SHOWN]]
    return outcome


def _is(blob: Blob, size: int, modified_s: int) -> bool:
    return (blob.size, blob.modified_s) == (size, modified_s)


def _deleted_before(kept: KeptBlobs, copies: Sequence[Kept]) -> set[BlobId]:
    """Of blobs that are gone, those whose copy this very run has made: an earlier try of it deleted them."""
    there = kept.own.heads([copy.place for copy in copies])
    return {copy.key for copy in copies if there[copy.place] is not None}
