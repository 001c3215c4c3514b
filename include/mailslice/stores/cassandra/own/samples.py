"""queue_samples: when a queue was last seen empty, which is what lets deleted marks go on a shared queue (design, section 6)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from cassandra.query import PreparedStatement

from mailslice.codec.row import epoch_ms, instant
from mailslice.model.mail import QueueName
from mailslice.stores.cassandra.session import CassandraSession

QUEUE_SAMPLES_TABLE = "(queuename text PRIMARY KEY, first_pass timestamp, second_pass timestamp)"


@dataclass(frozen=True, slots=True)
class QueueSample:
    """The queue was empty in both passes, 15 s apart. `first_pass` is what a proof may count from."""

    first_pass: datetime
    second_pass: datetime


class QueueSamples:
    """One row a queue: the newest sample wins, whoever writes last."""

    def __init__(self, session: CassandraSession, keyspace: str) -> None:
        self._session = session
        self._name = f"{keyspace}.queue_samples"

    def save(self, queue: QueueName, sample: QueueSample) -> None:
        """Remember the sample; an older one never replaces a newer."""
        first, second = epoch_ms(sample.first_pass), epoch_ms(sample.second_pass)
        self._session.execute(self._insert, [queue, first, second, second * 1000])

    def read(self, queue: QueueName) -> QueueSample | None:
        """The newest sample, or None when the queue was never seen empty."""
        rows = self._session.execute(self._read, [queue])
        return QueueSample(instant(rows[0][0]), instant(rows[0][1])) if rows else None

    def delete(self, queue: QueueName) -> None:
        """Forget the queue."""
        self._session.execute(self._delete, [queue])

    @cached_property
    def _insert(self) -> PreparedStatement:
        return self._session.prepare(
            f"INSERT INTO {self._name} (queuename, first_pass, second_pass) VALUES (?, ?, ?) USING TIMESTAMP ?"
        )

    @cached_property
    def _read(self) -> PreparedStatement:
        return self._session.prepare(
            f"SELECT first_pass, second_pass FROM {self._name} WHERE queuename = ?"
        )

    @cached_property
    def _delete(self) -> PreparedStatement:
        return self._session.prepare(f"DELETE FROM {self._name} WHERE queuename = ?")
