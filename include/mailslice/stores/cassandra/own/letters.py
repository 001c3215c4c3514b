"""dead_letter_notes: how often a mail was redriven from the dead letters. Why it died is in its letter (ADR 53)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from cassandra.query import PreparedStatement

from mailslice.codec.row import epoch_ms, instant
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.stores.cassandra.session import CassandraSession, Params

DEAD_LETTER_NOTES_TABLE = """(
    queuename text,
    enqueueid uuid,
    redrives int,
    redriven_at timestamp,
    PRIMARY KEY ((queuename, enqueueid))
)"""
_IDS_A_REQUEST = 100
_TTL_SECONDS = 365 * 86400


@dataclass(frozen=True, slots=True)
class DeadLetterNote:
    """What is known of one mail."""

    redrives: int = 0
    redriven_at: datetime | None = None


class DeadLetterNotes:
    """One row a mail, forgotten a year after its last write."""

    TABLE = "dead_letter_notes"

    def __init__(self, session: CassandraSession, keyspace: str) -> None:
        self._session = session
        self._name = f"{keyspace}.{self.TABLE}"

    def count_redrive(
        self, queue: QueueName, enqueue_id: EnqueueId, redrives: int, at: datetime
    ) -> None:
        """Remember that the mail is redriven for the `redrives`th time: before it is published, so that no crash forgets a round."""
        self._session.execute(self._count, [queue, enqueue_id, redrives, epoch_ms(at)])

    def read(
        self, queue: QueueName, ids: Iterable[EnqueueId], in_flight: int = 8
    ) -> dict[EnqueueId, DeadLetterNote]:
        """The notes of those ids that have one."""
        wanted = list(dict.fromkeys(ids))
        chunks: Iterable[Params] = (
            [queue, wanted[at : at + _IDS_A_REQUEST]]
            for at in range(0, len(wanted), _IDS_A_REQUEST)
        )
        found = (
            row for _, rows in self._session.map(self._some, chunks, in_flight) for row in rows
        )
        return {EnqueueId(row[0]): DeadLetterNote(row[1] or 0, _time(row[2])) for row in found}

    @cached_property
    def _count(self) -> PreparedStatement:
        columns = "queuename, enqueueid, redrives, redriven_at"
        return self._session.prepare(
            f"INSERT INTO {self._name} ({columns}) VALUES (?, ?, ?, ?) USING TTL {_TTL_SECONDS}"
        )

    @cached_property
    def _some(self) -> PreparedStatement:
        columns = "enqueueid, redrives, redriven_at"
        return self._session.prepare(
            f"SELECT {columns} FROM {self._name} WHERE queuename = ? AND enqueueid IN ?",
            paged=False,
        )


def _time(value: datetime | int | None) -> datetime | None:
    return None if value is None else instant(value)
