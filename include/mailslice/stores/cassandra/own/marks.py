"""pending_marks: plans whose rows are deleted and whose deleted marks still wait for their proof; the ids are in the plan."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from cassandra.query import PreparedStatement

from mailslice.codec.row import epoch_ms, instant
from mailslice.model.mail import QueueName
from mailslice.stores.cassandra.session import CassandraSession

PENDING_MARKS_TABLE = """(
    queuename text,
    run text,
    plan text,
    digest text,
    marks bigint,
    closed_at timestamp,
    PRIMARY KEY (queuename, run)
)"""


@dataclass(frozen=True, slots=True)
class PendingMark:
    """The marks of one run. `plan` is where its ids are, `closed_at` when the last of its slices was closed: a proof must be younger."""

    run: str
    plan: str
    digest: str
    marks: int
    closed_at: datetime


class PendingMarks:
    """The runs of a queue whose marks wait."""

    def __init__(self, session: CassandraSession, keyspace: str) -> None:
        self._session = session
        self._name = f"{keyspace}.pending_marks"

    def save(self, queue: QueueName, pending: PendingMark) -> None:
        """Write the row, over an earlier one of the run."""
        self._session.execute(
            self._insert,
            [
                queue,
                pending.run,
                pending.plan,
                pending.digest,
                pending.marks,
                epoch_ms(pending.closed_at),
            ],
        )

    def list(self, queue: QueueName) -> list[PendingMark]:
        """All runs whose marks wait, oldest slices first."""
        rows = [
            PendingMark(row[0], row[1], row[2], row[3], instant(row[4]))
            for row in self._session.execute(self._read, [queue])
        ]
        return sorted(rows, key=lambda pending: (pending.closed_at, pending.run))

    def delete(self, queue: QueueName, run: str) -> None:
        """Forget the run: its marks are dropped."""
        self._session.execute(self._delete, [queue, run])

    @cached_property
    def _insert(self) -> PreparedStatement:
        return self._session.prepare(
            f"INSERT INTO {self._name} (queuename, run, plan, digest, marks, closed_at) VALUES (?, ?, ?, ?, ?, ?)"
        )

    @cached_property
    def _read(self) -> PreparedStatement:
        return self._session.prepare(
            f"SELECT run, plan, digest, marks, closed_at FROM {self._name} WHERE queuename = ?"
        )

    @cached_property
    def _delete(self) -> PreparedStatement:
        return self._session.prepare(f"DELETE FROM {self._name} WHERE queuename = ? AND run = ?")
