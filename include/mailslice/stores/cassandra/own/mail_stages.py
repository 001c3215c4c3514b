"""mail_stages: how far a mail has come, for each recipient (`model.stages`). Only queues with stage marks have rows here.

Every write is conditional on the record it follows (owner, attempt and step): of two who hold the same mail one is refused. All writes are LWT, so
that no clock decides; a record that nobody touches any more goes by TTL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from functools import cached_property
from itertools import islice

from cassandra.cluster import ResponseFuture
from cassandra.query import PreparedStatement

from mailslice.codec.row import epoch_ms, instant
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.model.stages import MailStage, Stage
from mailslice.stores.cassandra.session import CassandraSession, Params, Row

MAIL_STAGES_TABLE = """(
    queuename text,
    enqueueid uuid,
    owner text,
    attempt int,
    step int,
    stage text,
    remaining frozen<list<text>>,
    recipients frozen<map<text, text>>,
    updated timestamp,
    PRIMARY KEY ((queuename, enqueueid))
)"""

_IDS_A_REQUEST = 100
_VALUES = ("owner", "attempt", "step", "stage", "remaining", "recipients", "updated")
OPEN_TTL = timedelta(days=365)
"""Of a record that still has recipients left or in doubt: longer than any message waits, in a delay level or among the dead letters."""
CLOSED_TTL = timedelta(days=30)
"""Of one that has none: the deleted mark says the same by then."""


class MailStages:
    """The table. Futures are the driver's: `record` and `applied` read what they give."""

    def __init__(self, session: CassandraSession, keyspace: str) -> None:
        self._session = session
        self._name = f"{keyspace}.mail_stages"

    def prepare(self) -> None:
        """Prepares what an event loop will ask, where waiting is allowed."""
        self._read, self._write  # noqa: B018 - cached properties

    def read_future(self, queue: QueueName, enqueue_id: EnqueueId) -> ResponseFuture:
        """A future of no rows, or of one for `record`."""
        return self._session.submit(self._read, [queue, enqueue_id])

    def read(self, queue: QueueName, enqueue_id: EnqueueId) -> MailStage | None:
        """The mail's record, or None when nobody began. SERIAL: a write that was not answered shows."""
        rows = self._session.execute(self._read_serial, [queue, enqueue_id])
        return self.record(rows[0], enqueue_id) if rows else None

    def some(
        self, queue: QueueName, ids: Iterable[EnqueueId], in_flight: int = 8
    ) -> dict[EnqueueId, MailStage]:
        """The records of those of `ids` that have one, 100 a request."""
        remaining = iter(ids)
        params = (
            [queue, chunk] for chunk in iter(lambda: list(islice(remaining, _IDS_A_REQUEST)), [])
        )
        rows = (row for _, page in self._session.map(self._some, params, in_flight) for row in page)
        return {EnqueueId(one): self.record(tuple(values), EnqueueId(one)) for one, *values in rows}

    @staticmethod
    def record(values: Row, enqueue_id: EnqueueId) -> MailStage:
        """A row of `read_future`."""
        owner, attempt, step, _, remaining, recipients, updated = values
        states: Mapping[str, str] = recipients or {}
        return MailStage(
            enqueue_id,
            owner,
            attempt,
            step,
            tuple(remaining or ()),
            {recipient: Stage(stage) for recipient, stage in states.items()},
            None if updated is None else instant(updated),
        )

    def advance_future(
        self, queue: QueueName, before: MailStage | None, after: MailStage
    ) -> ResponseFuture:
        """Write `after` if the record is still `before` (None, or step 0: if there is none); a future for `applied`."""
        return self._session.submit(self._write, _bound(queue, before, after))

    def advance(self, queue: QueueName, before: MailStage | None, after: MailStage) -> bool:
        """As `advance_future`; whether it was written. After an error it is unknown: read."""
        return self.applied(self._session.execute(self._write, _bound(queue, before, after)))

    @staticmethod
    def applied(rows: list[Row]) -> bool:
        """What the answer of a write says."""
        return bool(rows[0][0])

    @cached_property
    def _select(self) -> str:
        return (
            f"SELECT {', '.join(_VALUES)} FROM {self._name} WHERE queuename = ? AND enqueueid = ?"
        )

    @cached_property
    def _read(self) -> PreparedStatement:
        return self._session.prepare(self._select)

    @cached_property
    def _read_serial(self) -> PreparedStatement:
        return self._session.prepare(self._select, serial=True)

    @cached_property
    def _some(self) -> PreparedStatement:
        return self._session.prepare(
            f"SELECT enqueueid, {', '.join(_VALUES)} FROM {self._name} WHERE queuename = ? AND enqueueid IN ?",
            paged=False,
        )

    @cached_property
    def _write(self) -> PreparedStatement:
        # UPDATE and not INSERT: a row marker would outlive the columns, by a longer TTL. A row that is not there has null in every column.
        values = ", ".join(f"{name} = ?" for name in _VALUES)
        return self._session.prepare(
            f"UPDATE {self._name} USING TTL ? SET {values} WHERE queuename = ? AND enqueueid = ? IF owner = ? AND attempt = ? AND step = ?",
            idempotent=False,
        )


def _bound(queue: QueueName, before: MailStage | None, after: MailStage) -> Params:
    ttl = int((CLOSED_TTL if after.closed else OPEN_TTL).total_seconds())
    states = {recipient: stage.value for recipient, stage in after.recipients.items()}
    updated = None if after.updated is None else epoch_ms(after.updated)
    written = (
        after.owner,
        after.attempt,
        after.step,
        after.stage.value,
        list(after.remaining),
        states,
        updated,
    )
    read = (
        (None, None, None)
        if before is None or before.step == 0
        else (before.owner, before.attempt, before.step)
    )
    return [ttl, *written, queue, after.enqueue_id, *read]
