"""mail_stages: the stage of a mail for each recipient (`model.stages`).

Only queues with stage marks have rows here. Every write is an LWT on the record that it replaces
(owner, attempt and step): of two holders of a mail one is refused, and no clock decides.
"""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from cassandra.cluster import ResponseFuture

from mailslice.codec.row import epoch_ms, instant
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.model.stages import MailStage, Stage
from mailslice.stores.cassandra.own.table import OwnTable
from mailslice.stores.cassandra.session import Params
from mailslice.stores.cassandra.table import Statement, applied, assignments, select

_VALUES = ("owner", "attempt", "step", "stage", "remaining", "recipients", "updated")
_OF_MAILS = ("enqueueid", *_VALUES)
OPEN_TTL = timedelta(days=365)
"""TTL of a record with remaining or doubtful recipients: longer than any message waits."""
CLOSED_TTL = timedelta(days=30)
"""TTL of a record without such recipients: the mail has its deleted mark by then."""


class MailStages(OwnTable):
    """The table. Futures are the driver's: `record` and `applied` decode their rows."""

    TABLE = "mail_stages"
    ON_EVENT_LOOP = ("_read", "_write")
    SCHEMA = """
        queuename text, enqueueid uuid, owner text, attempt int, step int, stage text,
        remaining frozen<list<text>>, recipients frozen<map<text, text>>, updated timestamp,
        PRIMARY KEY ((queuename, enqueueid))
    """

    _read = Statement(select(_VALUES, "queuename = ? AND enqueueid = ?"))
    _read_serial = Statement(select(_VALUES, "queuename = ? AND enqueueid = ?"), serial=True)
    _by_ids = Statement(select(_OF_MAILS, "queuename = ? AND enqueueid IN ?"), paged=False)
    # UPDATE and not INSERT: a row marker with a longer TTL would outlive the columns. A missing row
    # has null in every column.
    _write = Statement(
        f"UPDATE {{table}} USING TTL ? SET {assignments(_VALUES)} WHERE queuename = ? "
        "AND enqueueid = ? IF owner = ? AND attempt = ? AND step = ?",
        idempotent=False,
    )
    applied = staticmethod(applied)

    def read_future(self, queue: QueueName, enqueue_id: EnqueueId) -> ResponseFuture:
        """A future of no rows, or of one for `record`."""
        return self._session.submit(self._read, [queue, enqueue_id])

    def get(self, queue: QueueName, enqueue_id: EnqueueId) -> MailStage | None:
        """The mail's record, or None. Reads SERIAL, which shows a write without an answer, too."""
        row = self._row(self._read_serial, [queue, enqueue_id])
        return None if row is None else self.record(row, enqueue_id)

    def by_ids(self, queue: QueueName, ids: Iterable[EnqueueId]) -> dict[EnqueueId, MailStage]:
        rows = self._rows_by_ids(self._by_ids, queue, ids)
        return {enqueue_id: self.record(values, enqueue_id) for enqueue_id, *values in rows}

    @staticmethod
    def record(values: Sequence[Any], enqueue_id: EnqueueId) -> MailStage:
        """Decodes a row of `read_future`."""
        owner, attempt, step, _, remaining, recipients, updated = values
        stages = {recipient: Stage(stage) for recipient, stage in (recipients or {}).items()}
        when, pending = None if updated is None else instant(updated), tuple(remaining or ())
        return MailStage(enqueue_id, owner, attempt, step, pending, stages, when)

    def advance_future(
        self, queue: QueueName, before: MailStage | None, after: MailStage
    ) -> ResponseFuture:
        """Writes `after` if the record is still `before` (step 0 or None: no record)."""
        return self._session.submit(self._write, _bound(queue, before, after))

    def advance(self, queue: QueueName, before: MailStage | None, after: MailStage) -> bool:
        """As `advance_future`; returns whether it wrote. After an error that is unknown: read."""
        return self._apply(self._write, _bound(queue, before, after))


def _bound(queue: QueueName, before: MailStage | None, after: MailStage) -> Params:
    ttl = int((CLOSED_TTL if after.closed else OPEN_TTL).total_seconds())
    states = {recipient: stage.value for recipient, stage in after.recipients.items()}
    updated = None if after.updated is None else epoch_ms(after.updated)
    values = [after.owner, after.attempt, after.step, after.stage.value]
    values += [list(after.remaining), states, updated]
    condition: list[object] = [None] * 3
    if before is not None and before.step:
        condition = [before.owner, before.attempt, before.step]
    return [ttl, *values, queue, after.enqueue_id, *condition]
