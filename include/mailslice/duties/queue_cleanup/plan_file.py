"""plan.json and plan/: what a plan says, typed, and the digest over all of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from mailslice.duties.queue_cleanup.candidates import Candidates
from mailslice.duties.queue_cleanup.decide import Shape
from mailslice.duties.queue_cleanup.strays import Stray
from mailslice.duty.artifacts import iso
from mailslice.duty.plans import digest_of, reading, require_same
from mailslice.model.durations import parse_duration
from mailslice.model.errors import PlanRefused
from mailslice.model.mail import EnqueueId, Place
from mailslice.model.names import QueueTable
from mailslice.model.slices import whole_seconds
from mailslice.spark.plan_files import Digest, PlanPart
from mailslice.spark.slices import PlaceFound, instant, millis

PARTS = "plan"
"""The folder of the Parquet files, in the run's folder."""
WHY = "deleted mark"


@dataclass(frozen=True, slots=True)
class PlannedPlace:
    """One partition that is to go: how many planned rows, the greatest write time among them (the delete's timestamp), where they are in the plan's files."""

    table: QueueTable
    place: Place
    rows: int
    newest_us: int
    part: PlanPart

    @classmethod
    def of(cls, found: PlaceFound) -> PlannedPlace:
        """From what a scan found; `found.planned` is not 0."""
        return cls(
            QueueTable(found.table),
            Place(found.slice_start, found.bucket),
            found.planned,
            found.newest_us,
            found.part,
        )

    def as_json(self) -> list[object]:
        """Short: there is one a partition."""
        return [
            self.table.value,
            millis(self.place.slice_start),
            self.place.bucket,
            self.rows,
            self.newest_us,
            self.part.file,
            self.part.first,
            self.part.groups,
        ]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> PlannedPlace:
        """What `as_json` gave."""
        table, start, bucket, rows, newest, file, first, groups = value
        return cls(
            QueueTable(table),
            Place(instant(start), bucket),
            rows,
            newest,
            PlanPart(file, first, groups),
        )


@dataclass(frozen=True, slots=True)
class Reads:
    """How many places the plan step was to read, how many it read, and how many of those twice."""

    wanted: int
    read: int
    twice: int

    def as_json(self) -> list[int]:
        """For the plan."""
        return [self.wanted, self.read, self.twice]


@dataclass(frozen=True, slots=True)
class SomeRows:
    """Some rows of one partition, by their ids."""

    table: QueueTable
    place: Place
    ids: tuple[EnqueueId, ...]

    def as_json(self) -> list[object]:
        """For the plan."""
        where = [self.table.value, millis(self.place.slice_start), self.place.bucket]
        return [*where, [str(each) for each in self.ids]]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> SomeRows:
        """What `as_json` gave."""
        table, start, bucket, ids = value
        place = Place(instant(start), bucket)
        return cls(QueueTable(table), place, tuple(EnqueueId(UUID(each)) for each in ids))


@dataclass(frozen=True, slots=True)
class Plan:
    """What one run may do, as decided by its plan step. Times are aware UTC; None where the store has no start or it stays."""

    run: str
    queue: str
    made_at: datetime
    marks_read: datetime
    """When the last mark had been read: every planned mark is older, and a proof that lets marks go is younger."""
    grace: timedelta
    shape: Shape
    tables: tuple[QueueTable, ...]
    ranged: bool
    browse_start: datetime | None
    content_start: datetime | None
    new_browse_start: datetime | None
    oldest_live: datetime | None
    rows: Digest
    places: tuple[PlannedPlace, ...]
    swept: tuple[datetime, ...] = ()
    """Slices before contentStart that were read."""
    candidates: Candidates | None = None
    """Marks that an earlier sweep listed, and that this run drops when it has a proof."""
    reads: Reads = Reads(0, 0, 0)
    live: tuple[SomeRows, ...] = ()
    """Every place that held live rows, with some of their ids."""
    strays: tuple[Stray, ...] = ()
    """Rows without a mark that are to be set aside."""

    @property
    def planned(self) -> int:
        """Rows that are to go."""
        return self.rows.count

    def decided(self) -> dict[str, object]:
        """All that apply acts by, as JSON values in a stable order."""
        return {
            "run": self.run,
            "queue": self.queue,
            "madeAt": iso(self.made_at),
            "marksRead": iso(self.marks_read),
            "grace": f"{self.grace.total_seconds()}s",
            "window": whole_seconds(self.shape.window),
            "largestWindow": whole_seconds(self.shape.largest_window),
            "openFor": whole_seconds(self.shape.open_for),
            "buckets": self.shape.buckets,
            "tables": [table.value for table in self.tables],
            "ranged": self.ranged,
            "browseStart": iso(self.browse_start),
            "contentStart": iso(self.content_start),
            "newBrowseStart": iso(self.new_browse_start),
            "oldestLive": iso(self.oldest_live),
            "rows": str(self.rows),
            "places": [place.as_json() for place in self.places],
            "swept": [millis(start) for start in self.swept],
            "candidates": self.candidates.as_json() if self.candidates else None,
            "reads": self.reads.as_json(),
            "live": [each.as_json() for each in self.live],
            **({"strays": [each.as_json() for each in self.strays]} if self.strays else {}),
        }

    @property
    def digest(self) -> str:
        """SHA-256 of `decided`, which holds the digest of the rows."""
        return digest_of(self.decided())


def read_plan(summary: Mapping[str, Any], run: str, queue: str) -> Plan:
    """The plan in a plan.json. Raises PlanRefused when it is another run's, or was changed since it was made."""
    with reading(run, queue):
        value = summary["decided"]
        window, largest, open_for = (
            timedelta(seconds=value[name]) for name in ("window", "largestWindow", "openFor")
        )
        shape = Shape(window, largest, value["buckets"], open_for)
        plan = Plan(
            value["run"],
            value["queue"],
            datetime.fromisoformat(value["madeAt"]),
            datetime.fromisoformat(value["marksRead"]),
            parse_duration(value["grace"]),
            shape,
            tuple(QueueTable(table) for table in value["tables"]),
            value["ranged"],
            _time(value["browseStart"]),
            _time(value["contentStart"]),
            _time(value["newBrowseStart"]),
            _time(value["oldestLive"]),
            Digest.parse(value["rows"]),
            tuple(PlannedPlace.from_json(place) for place in value["places"]),
            tuple(instant(start) for start in value["swept"]),
            Candidates.from_json(value["candidates"]) if value["candidates"] else None,
            Reads(*value["reads"]),
            tuple(SomeRows.from_json(each) for each in value["live"]),
            tuple(Stray.from_json(each) for each in value.get("strays", ())),
        )
    require_same(plan.digest, summary, (plan.run, plan.queue), run, queue)
    if sum(place.rows for place in plan.places) != plan.rows.count:
        raise PlanRefused(
            f"plan.json of run {run}: its places hold {sum(place.rows for place in plan.places)} rows, its digest {plan.rows.count}"
        )
    return plan


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text is not None else None
