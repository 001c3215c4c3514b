"""Measure a queue, slice by slice; changes nothing.

Python workers of Spark count slices: one key and one summary for each. The fields of the slices add
up to those of the queue. Rows of live mails are read for ages and recipient domains. Content is
never loaded.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

from mailslice.admin.queues import require
from mailslice.duties.queue_size.advice import QueueFacts, advice
from mailslice.duties.queue_size.age_histogram import AgeHistogram
from mailslice.duties.queue_size.params import Params
from mailslice.engine.frames import Session, run_on_keys
from mailslice.engine.id_arrays import of_packed, pack
from mailslice.engine.partition_scan import READS_IN_FLIGHT, Marks
from mailslice.engine.worker_stores import stores_of
from mailslice.maintenance.artifacts import iso
from mailslice.maintenance.drained import take_sample
from mailslice.maintenance.run import Run
from mailslice.model.batches import batches
from mailslice.model.errors import MailsliceError
from mailslice.model.mail import Partition, QueueName, ViewRow
from mailslice.model.names import QueueTable, RabbitNames
from mailslice.model.settings import Settings
from mailslice.model.slices import is_live, slice_start, whole_seconds
from mailslice.stores import Stores
from mailslice.stores.cassandra.ids import WIDTH, id_list, unpack
from mailslice.stores.rabbitmq.traffic import Traffic, delayed, parked, traffic
from mailslice.view.configuration import Shape, view_shape
from mailslice.view.live_rows import LiveRows
from mailslice.view.partitions import partitions_to_read, slices_of

log = logging.getLogger(__name__)

_MAX_BEHIND = 10_000
"""With more slices behind browseStart, a scan of the partition keys finds those that exist."""
_ROWS_AT_A_TIME = 1000


@dataclass(slots=True)
class SliceMeasured:
    """One slice over its buckets and tables; an id in both tables counts once.

    `unmarked` rows have no mark: they are live unless the slice is `behind` browseStart. `fullest`
    is the number of rows of its fullest bucket in one table. `oldest` is the enqueued time of the
    oldest live mail.
    """

    start: datetime
    behind: bool = False
    dead: int = 0
    unmarked: int = 0
    fullest: int = 0
    oldest: datetime | None = None
    ages: AgeHistogram = field(default_factory=AgeHistogram)

    @property
    def live(self) -> int:
        return 0 if self.behind else self.unmarked

    @property
    def unproven(self) -> int:
        return self.unmarked if self.behind else 0

    @property
    def rows(self) -> int:
        return self.dead + self.unmarked

    def add(self, row: ViewRow, now: datetime) -> None:
        self.unmarked += 1
        self.oldest = min(self.oldest or row.enqueued_time, row.enqueued_time)
        self.ages.add(row.item.mail.recipients, row.enqueued_time, now)

    def as_json(self, last_closed: datetime) -> dict[str, Any]:
        """A report's entry; `survivors`: live mails if the slice starts by `last_closed`."""
        return {
            "start": iso(self.start),
            "live": self.live,
            "dead": self.dead,
            "survivors": self.live if self.start <= last_closed else 0,
            "unproven": self.unproven,
        }


@dataclass(frozen=True, slots=True)
class Measure:
    """What to count: all mails as of `now`."""

    settings: Settings
    queue: QueueName
    window: timedelta
    buckets: int
    now: datetime

    def in_spark(self, session: Session, slices: Sequence[datetime]) -> list[SliceMeasured]:
        """Measure each of the slices once; results in no order. Raises what a worker raised."""

        def measure(keys: Iterator[Sequence[datetime]]) -> Iterator[SliceMeasured]:
            stores = stores_of(self.settings)
            for start in chain.from_iterable(keys):
                yield self.slice(stores, start)

        return run_on_keys(session, slices, measure, lambda one: one.rows)

    def apply_browse_start(self, stores: Stores, slices: list[SliceMeasured]) -> datetime | None:
        """Read browseStart, after the slices: those behind it have no live mail.

        James moves it on first, then drops marks, then rows. None: no mail was ever enqueued.
        """
        stored = stores.tables.browse_starts.get(self.queue)
        for measured in slices:
            if stored is not None and not is_live(measured.start, stored.value, self.window):
                measured.behind, measured.oldest, measured.ages = True, None, AgeHistogram()
        return stored.value if stored else None

    def slice(self, stores: Stores, start: datetime) -> SliceMeasured:
        """Count one slice. An unmarked row counts only if a second read still finds it."""
        tables, measured = stores.tables.existing, SliceMeasured(start)
        partitions = [Partition(start, bucket) for bucket in range(self.buckets)]
        rows_of: Counter[tuple[QueueTable, Partition]] = Counter()
        counted: set[bytes] = set()
        marks = Marks(stores.tables.deleted, self.queue)
        for table in tables:
            for partition, page in table.packed_ids_of(self.queue, partitions, READS_IN_FLIGHT):
                rows_of[table.table, partition] += len(page) // WIDTH
                fresh = page
                if len(tables) > 1:
                    new = [encoded for encoded in id_list(page) if encoded not in counted]
                    counted.update(new)
                    fresh = b"".join(new)
                ids = of_packed(fresh)
                live = unpack(pack(ids[~marks.of(ids)]))
                measured.dead += len(ids) - len(live)
                for batch in batches(live, _ROWS_AT_A_TIME):
                    for row in table.by_ids(self.queue, [(partition, batch)], READS_IN_FLIGHT):
                        measured.add(row, self.now)
        measured.fullest = max(rows_of.values(), default=0)
        return measured


def take(run: Run) -> dict[str, Any]:
    """The measurement as JSON. `passes`: when the broker was seen empty. Raises UnknownQueue."""
    params, stores, names = run.params(Params), run.stores, RabbitNames(run.queue)
    require(stores, run.queue)
    now, view = run.clock(), view_shape(stores)
    content = stores.tables.content_start(run.queue)
    slices, buckets = slices_to_measure(run, view, now)
    measure = Measure(run.settings, run.queue, view.window, buckets, now)
    measured = measure.in_spark(run.session(), slices) if slices else []
    measured.sort(key=lambda slice_: slice_.start)
    browse = measure.apply_browse_start(stores, measured)
    last_closed = now - view.largest_window - run.settings.duty.grace
    rows = [slice_.as_json(last_closed) for slice_ in measured if slice_.rows]
    queues = _traffic(run)
    work, dead = queues.get(names.work_queue), queues.get(names.dead_letter_queue)
    depth, letters = work.depth if work else None, dead.depth if dead else None
    nodes = max(1, len(stores.cassandra.cluster.metadata.all_hosts()))
    fullest = max(measured, key=lambda slice_: slice_.fullest, default=None)
    facts = QueueFacts(
        now=now,
        window=view.window,
        buckets=view.buckets,
        nodes=nodes,
        fullest=fullest.fullest if fullest else 0,
        fullest_slice=fullest.start if fullest and fullest.fullest else None,
        live=sum(slice_.live for slice_ in measured),
        dead=sum(slice_.dead for slice_ in measured),
        unproven=sum(slice_.unproven for slice_ in measured),
        browse_start=browse,
        aligned=browse is None or slice_start(browse, view.window) == browse,
        dead_letters=letters.total if letters else None,
    )
    ages = AgeHistogram()
    for slice_ in measured:
        ages.merge(slice_.ages)
    oldest = min((slice_.oldest for slice_ in measured if slice_.oldest), default=None)
    empty = take_sample(stores, run.queue, run.clock) if params.sample else None
    if empty is not None:
        run.require_clock()  # a cleanup may use this time to drop deleted marks
    last = empty or stores.own.queue_samples.get(run.queue)
    return {
        "measuredAt": iso(now),
        "size": facts.live,
        "live": facts.live,
        "dead": facts.dead,
        "unproven": facts.unproven,
        "oldest": iso(oldest),
        "oldestAgeSeconds": round((now - oldest).total_seconds(), 3) if oldest else None,
        "browseStart": iso(browse),
        "contentStart": iso(content.value) if content else None,
        "survivors": sum(row["survivors"] for row in rows),
        "slices": rows,
        "fullest": {"slice": iso(facts.fullest_slice), "mails": facts.fullest},
        "shape": ages.top(params.domains),
        "deadLetters": facts.dead_letters,
        "ready": depth.ready if depth else None,
        "unacknowledged": depth.unacknowledged if depth else None,
        "consumers": depth.consumers if depth else None,
        "parked": parked(queues, names) if queues else None,
        "delayed": delayed(queues, names) if queues else None,
        "moving": work.moving if work else None,
        "lastSeenEmpty": iso(last.first_pass) if last else None,
        "passes": [iso(empty.first_pass), iso(empty.second_pass)] if empty else None,
        "window": whole_seconds(view.window),
        "buckets": buckets,
        "nodes": nodes,
        "advice": advice(facts),
        "reads": {
            "wanted": len(slices),
            "read": len(measured),
            "twice": len(measured) - len({slice_.start for slice_ in measured}),
        },
    }


def slices_to_measure(run: Run, view: Shape, now: datetime) -> tuple[list[datetime], int]:
    """The slices of a browse, and from contentStart to browseStart; the largest bucket count."""
    tables = run.stores.tables
    partitions = LiveRows(tables, run.queue, view).partitions(now)
    browse, content = tables.browse_starts.get(run.queue), tables.content_start(run.queue)
    if browse is not None and content is not None and content.value < browse.value:
        first = slice_start(content.value, view.largest_window)
        partitions += partitions_to_read(
            tables, run.queue, view, first, browse.value, scan_from=_MAX_BEHIND
        )
    return slices_of(partitions, view.buckets)


def _traffic(run: Run) -> dict[str, Traffic]:
    """RabbitMQ's figures; empty when it does not answer, because a size does not need them."""
    try:
        return traffic(run.stores.management)
    except MailsliceError as error:
        log.warning("RabbitMQ gives no figures of %s: %s", run.queue, error)
        return {}
