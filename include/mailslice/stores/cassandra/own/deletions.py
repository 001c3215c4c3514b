"""deletions: batches of mails that people deleted and may restore (`admin.deletions`), and
undeleted_mails: the mails that were restored, each once.

A row is claimed, with the enqueue id of the new entry, before anything of that entry is written.
Claims and their changes are conditional batches in one partition: of two writers one is refused.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from cassandra.policies import FallthroughRetryPolicy
from cassandra.query import BatchStatement

from mailslice.model.mail import EnqueueId, QueueName
from mailslice.stores.cassandra.own.table import OwnTable, ttl_seconds
from mailslice.stores.cassandra.table import Statement, applied, assignments, insert, select
from mailslice.stores.own.codec import RowCodec


@dataclass(frozen=True, slots=True)
class DeletedBatch:
    """Mails of one delete or clear (the run). `place` is the key prefix of the batch's objects.

    `marked`: all their deleted marks are written. If not, the run was cut off, and some of the
    mails may still be in the queue. `size` is in bytes; `lost` counts mails without content.
    """

    run: str
    number: int
    deleted: datetime
    until: datetime
    place: str
    mails: int
    size: int
    lost: int
    who: str
    reason: str
    marked: bool = False


_BATCHES = RowCodec(DeletedBatch, size="bytes")


class Deletions(OwnTable):
    """The batches of each queue, the newest run first. A row expires with its batch, by TTL."""

    TABLE = "deletions"
    SCHEMA = """
        queuename text, run text, number int, deleted timestamp, until timestamp, place text,
        mails int, bytes bigint, lost int, who text, reason text, marked boolean,
        PRIMARY KEY (queuename, run, number)
    """
    OPTIONS = "CLUSTERING ORDER BY (run DESC, number ASC)"

    _insert = Statement(insert(("queuename", *_BATCHES.columns), "USING TTL ?"))
    _list = Statement(select(_BATCHES.columns, "queuename = ?"))
    _of_run = Statement(select(_BATCHES.columns, "queuename = ? AND run = ?"))

    def save(self, queue: QueueName, batch: DeletedBatch, ttl: timedelta) -> None:
        """Writes the row, over an earlier one of this batch."""
        self._session.execute(self._insert, [queue, *_BATCHES.values(batch), ttl_seconds(ttl)])

    def list(self, queue: QueueName, run: str | None = None) -> Iterator[DeletedBatch]:
        statement, params = (self._list, [queue]) if run is None else (self._of_run, [queue, run])
        return map(_BATCHES.record, self._session.stream(statement, params))


class UndeleteStep(StrEnum):
    """The progress of a restore."""

    CLAIMED = "claimed"
    """Nothing or a part of the new entry is written."""
    ENTERED = "entered"
    """The row of the new entry is in the view. Its message may be published."""
    DONE = "done"


@dataclass(frozen=True, slots=True)
class UndeletedMail:
    """The restore of one deleted mail. `voided`: ids of cut-off tries, until their void ends."""

    enqueue_id: EnqueueId
    step: UndeleteStep
    new_id: EnqueueId
    voided: tuple[EnqueueId, ...] = ()


_ROWS = RowCodec(UndeletedMail, enqueue_id="enqueueid")
_KEY = ("queuename", "part")
_WHERE = "queuename = ? AND part = ? AND enqueueid"
PARTITIONS = 8
_TTL = ttl_seconds(timedelta(days=366))
"""MAILSLICE_ADMIN_UNDO_FOR allows 365 days: the row outlives every run with its mail."""


class UndeletedMails(OwnTable):
    """One row a mail, which may be in several runs. The row outlives them."""

    TABLE = "undeleted_mails"
    SCHEMA = """
        queuename text, part int, enqueueid uuid, step text, new_id uuid,
        voided frozen<list<uuid>>, PRIMARY KEY ((queuename, part), enqueueid)
    """

    _insert = Statement(insert((*_KEY, *_ROWS.columns), "IF NOT EXISTS USING TTL ?"))
    _change = Statement(
        f"UPDATE {{table}} USING TTL ? SET {assignments(_ROWS.columns[1:])} "
        f"WHERE {_WHERE} = ? IF new_id = ? AND step = ?"
    )
    _by_ids = Statement(select(_ROWS.columns, f"{_WHERE} IN ?"), serial=True)

    def by_ids(self, queue: QueueName, ids: Iterable[EnqueueId]) -> dict[EnqueueId, UndeletedMail]:
        """The rows of `ids`. Reads SERIAL, which shows a write without an answer, too."""
        params = ([queue, part, part_ids] for part, part_ids in _by_part(ids).items())
        pages = self._session.map(self._by_ids, params, in_flight=PARTITIONS)
        mails = (_ROWS.record(row) for _, rows in pages for row in rows)
        return {mail.enqueue_id: mail for mail in mails}

    def claim(
        self, queue: QueueName, new_of: Mapping[EnqueueId, EnqueueId]
    ) -> dict[EnqueueId, UndeletedMail]:
        """Claims each mail for its new id, unless it is claimed already. Returns all their rows."""
        rows: dict[EnqueueId, UndeletedMail] = {}
        claims = {old: UndeletedMail(old, UndeleteStep.CLAIMED, new) for old, new in new_of.items()}
        bound = {old: [*_ROWS.values(row), _TTL] for old, row in claims.items()}
        while parts := _by_part(old for old in new_of if old not in rows):
            values = {
                part: [[queue, part, *bound[old]] for old in ids] for part, ids in parts.items()
            }
            for part, done in self._apply_all(self._insert, values).items():
                ids = parts[part]
                rows |= {old: claims[old] for old in ids} if done else self.by_ids(queue, ids)
        return rows

    def change(
        self,
        queue: QueueName,
        changes: Sequence[tuple[UndeletedMail, UndeletedMail]],
    ) -> bool:
        """Replaces each (before, after). False: not all, as another writer was faster."""
        params: dict[int, list[list[object]]] = {}
        for before, after in changes:
            part = before.enqueue_id.int % PARTITIONS
            key, condition = [queue, part, before.enqueue_id], [before.new_id, before.step.value]
            values = [_TTL, *_ROWS.values(after)[1:], *key, *condition]
            params.setdefault(part, []).append(values)
        return all(self._apply_all(self._change, params).values())

    def _apply_all(
        self, statement: object, params: Mapping[int, Iterable[Sequence[object]]]
    ) -> dict[int, bool]:
        """Sends a batch a partition, concurrently. Returns whether each was applied."""
        pending = {}
        for part, rows in params.items():
            batch = BatchStatement(retry_policy=FallthroughRetryPolicy())
            for values in rows:
                batch.add(statement, values)
            pending[part] = self._session.begin(batch)
        return {part: applied(request.result()) for part, request in pending.items()}


def _by_part(ids: Iterable[EnqueueId]) -> dict[int, list[EnqueueId]]:
    parts: dict[int, list[EnqueueId]] = {}
    for enqueue_id in ids:
        parts.setdefault(enqueue_id.int % PARTITIONS, []).append(enqueue_id)
    return parts
