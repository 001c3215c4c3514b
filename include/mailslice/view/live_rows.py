"""Streams the live rows of the view, slice by slice, from V3 and V4 (a copied row once)."""

import heapq
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain, groupby
from typing import Any, Self
from uuid import UUID

from mailslice.codec.row import epoch_ms, instant
from mailslice.model.batches import batches
from mailslice.model.mail import EnqueueId, Partition, QueueName, ViewRow
from mailslice.model.slices import is_live
from mailslice.stores.cassandra.deleted_mails import ALL
from mailslice.stores.cassandra.enqueued_mails import EnqueuedMails
from mailslice.stores.cassandra.ids import (
    IDS_A_REQUEST,
    WIDTH,
    TimedIds,
    id_batches,
    id_list,
    pack,
    unpack,
)
from mailslice.stores.cassandra.own import SliceStatistic
from mailslice.stores.cassandra.tables import QueueTables
from mailslice.view.configuration import Shape
from mailslice.view.partitions import partitions_to_read

PARTITIONS_IN_FLIGHT = 16
_PAGE_IN_FLIGHT = 4
_ROWS_AT_A_TIME = 1000
_MILLISECOND = timedelta(milliseconds=1)
_SETTLED_AFTER = timedelta(hours=1)
_MIN_DEAD_ROWS = 1000
"""A slice with fewer dead rows is read: that costs little, and finds rows inserted late."""

Candidate = tuple[EnqueueId, EnqueuedMails, Partition, datetime]
"""Enqueue id, table and partition of its row, and its enqueued time."""
Position = tuple[datetime, datetime, EnqueueId]
"""Slice start, enqueued time and enqueue id: mails are listed in this order."""


@dataclass(frozen=True, slots=True)
class _IdChunk:
    """Rows of a partition. Row n has entry `first` + n of `times`; no `times`: slice start."""

    table: EnqueuedMails
    partition: Partition
    times: TimedIds | None = None
    first: int = 0

    def enqueued_ms(self, at: int) -> int:
        when = self.times.time_of(self.first + at) if self.times is not None else None
        return epoch_ms(self.partition.slice_start) if when is None else when

    def candidate(self, packed: bytes, at: int) -> Candidate:
        packed_id = packed[at * WIDTH : (at + 1) * WIDTH]
        return _candidate((self.enqueued_ms(at), packed_id, self.table, self.partition))


_TimedId = tuple[int, bytes, EnqueuedMails, Partition]
"""Enqueued time in milliseconds since the epoch, packed id, table and partition."""
_Page = tuple[_IdChunk, bytes]
"""A chunk and its packed ids, at most IDS_A_REQUEST. Most rows are dead: their ids suffice."""


@dataclass(slots=True)
class PageReading:
    """Limits of one page of mails, and how far its reading came.

    `ids`: rows of one slice whose id and time are read, about. `marks`: rows whose mark is looked
    up, about. `position`: the next page begins after it; None: this is the last page. `is_cut`:
    only some rows of the last slice were read, the first by id.
    """

    ids: int = 50_000
    marks: int = 1_000
    position: Position | None = None
    is_cut: bool = False


@dataclass(slots=True)
class BrowseDeadline:
    """When a browse stops reading (`time.monotonic`), and where it stopped.

    `stopped_at`: of the mails enqueued since then, the browse lists only some; None: it lists all.
    """

    end: float
    stopped_at: datetime | None = None

    @classmethod
    def in_seconds(cls, seconds: float) -> Self:
        return cls(time.monotonic() + seconds)

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.end


@dataclass(frozen=True, slots=True)
class SliceCounts:
    """Live and dead rows of one slice."""

    slice_start: datetime
    live: int
    dead: int


@dataclass(frozen=True, slots=True)
class LiveSummary:
    """How many mails are live, and when the oldest of them was enqueued."""

    size: int
    oldest: datetime | None


@dataclass(frozen=True, slots=True)
class LiveRows:
    """Reads of one queue's view."""

    tables: QueueTables
    queue: QueueName
    shape: Shape
    survivors: Mapping[datetime, Sequence[EnqueueId]] = field(default_factory=dict)
    """Slice start -> the only rows to read of a closed slice, as its others are dead."""

    def partitions(self, now: datetime, buckets: Iterable[int] | None = None) -> list[Partition]:
        """The partitions from browseStart to one window after `now`, in order.

        Clocks of writers may be ahead. James never floors a browseStart to a multiple of the
        window; this does. That shows rows that James does not see, and hides none.
        """
        return self._partitions(self._start(), now, buckets)

    def _start(self) -> datetime | None:
        start = self.tables.browse_starts.get(self.queue)
        return None if start is None else start.value

    def _partitions(
        self, start: datetime | None, now: datetime, buckets: Iterable[int] | None = None
    ) -> list[Partition]:
        return partitions_to_read(
            self.tables,
            self.queue,
            self.shape,
            start,
            now + self.shape.window,
            buckets=frozenset(range(self.shape.buckets) if buckets is None else buckets),
        )

    def count(self, now: datetime) -> int:
        """The number of live rows, by ids alone. If both tables exist, memory holds V3's ids."""
        partitions = self.partitions(now)
        *earlier, last = self.tables.existing
        v3 = chain.from_iterable(self._unordered(table, partitions) for table in earlier)
        earlier_ids = {candidate[0] for candidate in self._live(v3)}
        newer = (candidate[0] for candidate in self._live(self._unordered(last, partitions)))
        return len(earlier_ids) + sum(1 for id_ in newer if id_ not in earlier_ids)

    def live_summary(self, now: datetime, limit: int) -> LiveSummary | None:
        """Size and oldest mail; None if more than `limit` rows must be read."""
        return self._summary(chain.from_iterable(self._streams(self.partitions(now))), limit)

    def small_summary(self, now: datetime, limit: int, max_partitions: int) -> LiveSummary | None:
        """As `live_summary`, for few rows: reads one partition after the other, in few requests.

        Also None if more than `max_partitions` must be read. A queue without browseStart never had
        a mail: nothing is live.
        """
        start = self._start()
        if start is None:
            return LiveSummary(0, None)
        # Counts all partitions, without asking which exist.
        if ((now - start) // self.shape.window + 2) * self.shape.buckets > max_partitions:
            return None
        partitions = self._partitions(start, now)
        read = (
            timed
            for table in self.tables.existing_now()
            for partition, times in table.first_ids(self.queue, partitions, limit + 1)
            for timed in _chunks(table, partition, times)
        )
        return self._summary(read, limit)

    def _summary(self, chunks: Iterable[_Page], limit: int) -> LiveSummary | None:
        rows, read = 0, []
        for chunk, packed in chunks:
            rows += len(packed) // WIDTH
            if rows > limit:
                return None
            read.append((chunk, packed))
        live = {candidate[0]: candidate[3] for candidate in self._live(read)}
        return LiveSummary(len(live), min(live.values(), default=None))

    def slices(self, now: datetime) -> Iterator[SliceCounts]:
        """Counts of each slice that has a row, oldest first. May miss slices cleaned meanwhile."""
        several = len(self.tables.existing) > 1
        checked = self._unmarked(self._ordered(self.partitions(now)))
        for start, chunks in groupby(checked, key=_slice_of):
            unmarked: dict[EnqueueId, Candidate] = {}
            dead, marked = 0, set[EnqueueId]()
            for chunk, packed, alive in chunks:
                candidates = (chunk.candidate(packed, at) for at in alive)
                unmarked |= {candidate[0]: candidate for candidate in candidates}
                if several:
                    marked.update(one for at, one in enumerate(unpack(packed)) if at not in alive)
                else:
                    dead += len(packed) // WIDTH - len(alive)
            dead += len(marked)
            live = {candidate[0] for candidate in self._present(unmarked.values())}
            if live or dead:
                yield SliceCounts(start, len(live), dead)

    def ids(
        self,
        now: datetime,
        buckets: Iterable[int] | None = None,
        latest: datetime | None = None,
        after: Position | None = None,
        deadline: BrowseDeadline | None = None,
    ) -> Iterator[Candidate]:
        """Unmarked rows after `after`, enqueued up to `latest`, by slice, then enqueued time."""
        partitions = self.partitions(now, buckets)
        if after is not None:
            partitions = [key for key in partitions if key.slice_start >= after[0]]
        checked = self._unmarked(self._ordered(partitions))
        deadline = deadline or BrowseDeadline(math.inf)
        for start, chunks in groupby(checked, key=_slice_of):
            live: dict[EnqueueId, Candidate] = {}
            for chunk, packed, alive in chunks:
                for candidate in (chunk.candidate(packed, at) for at in alive):
                    early = latest is None or candidate[3] <= latest
                    if early and (after is None or _position(candidate) > after):
                        live[candidate[0]] = candidate
                if deadline.is_over:  # also among dead rows
                    deadline.stopped_at = start
                    break
            in_order = sorted(live.values(), key=lambda candidate: (candidate[3], candidate[0]))
            for number, candidate in enumerate(in_order, 1):
                yield candidate
                # The caller's filter may pass none of the rows that it reads at a time.
                if number % _ROWS_AT_A_TIME == 0 and deadline.is_over:
                    deadline.stopped_at = deadline.stopped_at or candidate[3]
                    return
            if deadline.stopped_at is not None:
                return

    def page(
        self,
        partitions: Iterable[Partition],
        reading: PageReading,
        latest: datetime | None = None,
        after: Position | None = None,
    ) -> Iterator[Candidate]:
        """As `ids`, but reads no more than `reading` allows, and marks only as they are needed."""
        until = math.inf if latest is None else epoch_ms(latest)
        chosen = [key for key in partitions if latest is None or key.slice_start <= latest]
        if after is not None:
            chosen = [key for key in chosen if key.slice_start >= after[0]]
        for start, chunks in groupby(self._ordered(chosen, _PAGE_IN_FLIGHT), key=_slice_of):
            rows: dict[bytes, _TimedId] = {}
            for chunk, packed in chunks:
                for at, one in enumerate(id_list(packed)):
                    rows[one] = (chunk.enqueued_ms(at), one, chunk.table, chunk.partition)
                if len(rows) >= reading.ids:
                    reading.is_cut = True
                    break
            previous = (0, b"")
            if after is not None and after[0] == start:
                previous = (epoch_ms(after[1]), pack([after[2]]))
            later = (row for row in rows.values() if row[:2] > previous and row[0] <= until)
            yield from self._page_of_slice(heapq.nsmallest(reading.marks + 1, later), reading)
            if reading.marks <= 0:
                return
            if reading.is_cut:
                reading.position = (start + _MILLISECOND, start, EnqueueId(UUID(int=0)))
                return
        reading.position = None

    def _page_of_slice(self, rows: Iterable[_TimedId], reading: PageReading) -> Iterator[Candidate]:
        chunks = ((part, b"".join(row[1] for row in part)) for part in batches(rows, IDS_A_REQUEST))
        marks_of = self.tables.deleted.look_up
        for part, _, marked in marks_of(self.queue, chunks, _PAGE_IN_FLIGHT, ordered=True):
            reading.marks -= len(part)
            reading.position = _position(_candidate(part[-1]))
            if marked is not ALL:
                yield from (_candidate(row) for row in part if row[1] not in marked)
            if reading.marks <= 0:
                return

    def rows(
        self, candidates: Iterable[Candidate], at_a_time: int = _ROWS_AT_A_TIME
    ) -> Iterator[ViewRow]:
        """The rows of the candidates, in their order, without those that are gone meanwhile."""
        for batch in batches(candidates, at_a_time):
            by_table = self._by_table(batch).items()
            read = (table.by_ids(self.queue, ids.items()) for table, ids in by_table)
            rows = {row.enqueue_id: row for row in chain.from_iterable(read)}
            yield from (rows[one[0]] for one in self._in_view(batch) if one[0] in rows)

    def present(self, candidates: Iterable[Candidate]) -> Iterator[Candidate]:
        """The candidates whose rows still exist and are not before browseStart, in their order."""
        for batch in batches(candidates, _ROWS_AT_A_TIME):
            yield from self._present(batch)

    def find(self, now: datetime, enqueue_id: EnqueueId) -> ViewRow | None:
        if self.tables.deleted.is_marked(self.queue, enqueue_id):
            return None
        partitions = self.partitions(now)
        tables = self.tables.existing
        rows = (row for table in tables for row in table.find(self.queue, partitions, enqueue_id))
        return next(rows, None)

    def _live(self, read: Iterable[_Page]) -> Iterator[Candidate]:
        """The candidates without a mark whose rows exist after the look for the mark (ADR 10).

        A cleanup deletes rows, then their marks. A row that was read before a cleanup, and whose
        mark was looked for after it, is not live.
        """
        checked = self._unmarked(read)
        return self.present(
            chunk.candidate(ids, at) for chunk, ids, alive in checked for at in alive
        )

    def _present(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        batch = self._in_view(list(candidates))
        present = {
            row_id.enqueue_id
            for table, ids_by_partition in self._by_table(batch).items()
            for _, page in table.existing_ids(self.queue, ids_by_partition.items())
            for row_id in page
        }
        return [candidate for candidate in batch if candidate[0] in present]

    def _in_view(self, batch: list[Candidate]) -> list[Candidate]:
        """The candidates not before the present browseStart: James moves it, then drops marks."""
        start, window = self._start() if batch else None, self.shape.window
        return [one for one in batch if start is None or is_live(one[2].slice_start, start, window)]

    def _by_table(
        self, batch: Iterable[Candidate]
    ) -> dict[EnqueuedMails, dict[Partition, list[EnqueueId]]]:
        by_table: dict[EnqueuedMails, dict[Partition, list[EnqueueId]]] = {}
        for enqueue_id, table, partition, _ in batch:
            by_table.setdefault(table, {}).setdefault(partition, []).append(enqueue_id)
        return by_table

    def _unmarked(self, read: Iterable[_Page]) -> Iterator[tuple[_IdChunk, bytes, Sequence[int]]]:
        """Each chunk of `read`, in order, with the numbers of its rows without a mark."""
        marks_of = self.tables.deleted.look_up
        for chunk, packed, marked in marks_of(self.queue, read, PARTITIONS_IN_FLIGHT, ordered=True):
            alive: Sequence[int] = ()
            if marked is not ALL:
                alive = [at for at, one in enumerate(id_list(packed)) if one not in marked]
            yield chunk, packed, alive

    def _ordered(
        self, partitions: list[Partition], in_flight: int = PARTITIONS_IN_FLIGHT
    ) -> Iterator[_Page]:
        return heapq.merge(*self._streams(partitions, in_flight), key=_slice_of)

    def _streams(
        self, partitions: list[Partition], in_flight: int = PARTITIONS_IN_FLIGHT
    ) -> Iterator[Iterator[_Page]]:
        for table in self.tables.existing:
            yield self._pages(table, partitions, in_flight)
            yield self._read_survivors(table, partitions)

    def _unordered(self, table: EnqueuedMails, partitions: list[Partition]) -> Iterator[_Page]:
        unknown = self._to_read(partitions)
        for partition, page in table.packed_ids_of(self.queue, unknown, PARTITIONS_IN_FLIGHT):
            yield from ((_IdChunk(table, partition), packed) for packed in id_batches(page))
        yield from self._read_survivors(table, partitions)

    def _pages(
        self, table: EnqueuedMails, partitions: list[Partition], in_flight: int
    ) -> Iterator[_Page]:
        unknown = self._to_read(partitions)
        for partition, page in table.timed_ids_of(self.queue, unknown, in_flight, ordered=True):
            yield from _chunks(table, partition, page)

    def _to_read(self, partitions: Iterable[Partition]) -> Iterator[Partition]:
        return (key for key in partitions if key.slice_start not in self.survivors)

    def _read_survivors(self, table: EnqueuedMails, partitions: list[Partition]) -> Iterator[_Page]:
        """The survivors of remembered slices, if their rows exist."""
        remembered = (key for key in partitions if key.slice_start in self.survivors)
        known = ((key, self.survivors[key.slice_start]) for key in remembered)
        pages = table.existing_ids(self.queue, known, PARTITIONS_IN_FLIGHT, ordered=True)
        for partition, page in pages:
            times = TimedIds.of_rows([(row.enqueue_id, row.enqueued_time) for row in page])
            yield from _chunks(table, partition, times)


def _slice_of(read: tuple[Any, ...]) -> datetime:
    chunk: _IdChunk = read[0]
    return chunk.partition.slice_start


def _candidate(row: _TimedId) -> Candidate:
    when, packed_id, table, partition = row
    (enqueue_id,) = unpack(packed_id)
    return enqueue_id, table, partition, instant(when)


def _position(candidate: Candidate) -> Position:
    enqueue_id, _, partition, enqueued = candidate
    return partition.slice_start, enqueued, enqueue_id


def _chunks(table: EnqueuedMails, partition: Partition, page: TimedIds) -> Iterator[_Page]:
    for number, packed in enumerate(id_batches(page.packed)):
        yield _IdChunk(table, partition, page, number * IDS_A_REQUEST), packed


def settled_before(looked_at: datetime, largest_window: timedelta) -> datetime:
    """Slices that began before the returned time had been over for an hour at `looked_at`."""
    return looked_at - largest_window - _SETTLED_AFTER


def trusted_survivors(
    statistics: Iterable[SliceStatistic], largest_window: timedelta
) -> dict[datetime, tuple[EnqueueId, ...]]:
    """Slice start -> survivors, of the remembered slices whose dead rows need not be read again.

    A slice counts if many dead rows stay beside its survivors, every survivor is known, and it had
    been over for more than an hour when a cleanup read it. A later insert needs a clock that is
    wrong by as much; size and browse would miss that row until the next cleanup.
    """
    return {
        statistic.slice_start: statistic.survivors
        for statistic in statistics
        if statistic.dead >= _MIN_DEAD_ROWS
        and statistic.live == len(statistic.survivors)
        and statistic.slice_start <= settled_before(statistic.cleaned_at, largest_window)
    }
