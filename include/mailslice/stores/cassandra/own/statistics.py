"""slice_statistics: what a cleanup found in each closed slice, and the live rows that stayed behind (survivors)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from cassandra.query import PreparedStatement

from mailslice.codec.row import epoch_ms, instant
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.stores.cassandra.session import CassandraSession

SLICE_STATISTICS_TABLE = """(
    queuename text,
    slice_start timestamp,
    live bigint,
    dead bigint,
    survivors frozen<list<uuid>>,
    cleaned_at timestamp,
    PRIMARY KEY (queuename, slice_start)
)"""


@dataclass(frozen=True, slots=True)
class SliceStatistic:
    """A closed slice as it was at `cleaned_at`."""

    slice_start: datetime
    live: int
    dead: int
    cleaned_at: datetime
    survivors: tuple[EnqueueId, ...] = ()


class SliceStatistics:
    """The closed slices of a queue, by time."""

    TABLE = "slice_statistics"

    def __init__(self, session: CassandraSession, keyspace: str) -> None:
        self._session = session
        self._name = f"{keyspace}.{self.TABLE}"

    def save(self, queue: QueueName, statistic: SliceStatistic) -> None:
        """Write the row, over an earlier one of the slice."""
        start, cleaned = epoch_ms(statistic.slice_start), epoch_ms(statistic.cleaned_at)
        self._session.execute(
            self._insert,
            [queue, start, statistic.live, statistic.dead, list(statistic.survivors), cleaned],
        )

    def list(self, queue: QueueName) -> Iterator[SliceStatistic]:
        """All rows of the queue, oldest slice first, a page at a time."""
        for row in self._session.stream(self._read, [queue]):
            yield SliceStatistic(
                instant(row[0]), row[1], row[2], instant(row[4]), tuple(row[3] or ())
            )

    def delete_before(self, queue: QueueName, slice_start: datetime) -> None:
        """Forget the slices before this one: contentStart has passed them."""
        self._session.execute(self._delete, [queue, epoch_ms(slice_start)])

    @cached_property
    def _insert(self) -> PreparedStatement:
        columns = "queuename, slice_start, live, dead, survivors, cleaned_at"
        return self._session.prepare(
            f"INSERT INTO {self._name} ({columns}) VALUES (?, ?, ?, ?, ?, ?)"
        )

    @cached_property
    def _read(self) -> PreparedStatement:
        return self._session.prepare(
            f"SELECT slice_start, live, dead, survivors, cleaned_at FROM {self._name} WHERE queuename = ?"
        )

    @cached_property
    def _delete(self) -> PreparedStatement:
        return self._session.prepare(
            f"DELETE FROM {self._name} WHERE queuename = ? AND slice_start < ?"
        )
