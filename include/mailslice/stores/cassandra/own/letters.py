"""dead_letter_notes: how often a mail was redriven. Why it died is in its letter (ADR 53)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from mailslice.model.mail import EnqueueId, QueueName
from mailslice.stores.cassandra.own.table import OwnTable
from mailslice.stores.cassandra.table import Statement, insert, select
from mailslice.stores.own.codec import RowCodec

_TTL_SECONDS = 365 * 86400


@dataclass(frozen=True, slots=True)
class DeadLetterNote:
    """What is known of one mail."""

    redrives: int = 0
    redriven_at: datetime | None = None


_ROWS = RowCodec(DeadLetterNote)


class DeadLetterNotes(OwnTable):
    """One row a mail, forgotten a year after its last write."""

    TABLE = "dead_letter_notes"
    SCHEMA = """
        queuename text, enqueueid uuid, redrives int, redriven_at timestamp,
        PRIMARY KEY ((queuename, enqueueid))
    """

    _insert = Statement(
        insert(("queuename", "enqueueid", *_ROWS.columns), f"USING TTL {_TTL_SECONDS}")
    )
    _by_ids = Statement(
        select(("enqueueid", *_ROWS.columns), "queuename = ? AND enqueueid IN ?"), paged=False
    )

    def count_redrive(
        self, queue: QueueName, enqueue_id: EnqueueId, redrives: int, at: datetime
    ) -> None:
        """Remember the `redrives`th redrive, before it is published: no crash forgets a round."""
        note = DeadLetterNote(redrives, at)
        self._session.execute(self._insert, [queue, enqueue_id, *_ROWS.values(note)])

    def by_ids(self, queue: QueueName, ids: Iterable[EnqueueId]) -> dict[EnqueueId, DeadLetterNote]:
        """The notes of those of `ids` that have one."""
        rows = self._rows_by_ids(self._by_ids, queue, ids)
        return {enqueue_id: _ROWS.record(values) for enqueue_id, *values in rows}
