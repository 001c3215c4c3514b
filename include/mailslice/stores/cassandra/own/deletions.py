"""deletions: batches of mails that people deleted and may take back (`admin.deletions`), and
undeleted_mails: which of them were brought back, each once.

A row is claimed, with the enqueue id of the new entry, before anything of that entry is written.
All writes are conditional batches within one partition: of two who act on a mail one is refused.
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
    """Some mails of one delete or clear, the run. `place` is how the keys of its objects begin.

    `marked`: all their deleted marks are written. A batch without it was cut off there: some of its
    mails may be in the queue yet. `size` in bytes; `lost` mails had no content any more.
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
    """The batches of each queue, the newest run first. A row ends with its batch, by TTL."""

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
        """Write the row, over an earlier one of this batch."""
        self._session.execute(self._insert, [queue, *_BATCHES.values(batch), ttl_seconds(ttl)])

    def list(self, queue: QueueName, run: str | None = None) -> Iterator[DeletedBatch]:
        statement, params = (self._list, [queue]) if run is None else (self._of_run, [queue, run])
        return map(_BATCHES.record, self._session.stream(statement, params))


class UndeleteStep(StrEnum):
    """How far the way back has come."""

    CLAIMED = "claimed"
    """Nothing, or a part, of the new entry is written."""
    ENTERED = "entered"
    """Its row is in the view; its message may be out."""
    DONE = "done"


@dataclass(frozen=True, slots=True)
class UndeletedMail:
    """The way back of one deleted mail. `voided`: new ids of attempts that were cut off."""

    enqueue_id: EnqueueId
    step: UndeleteStep
    new_id: EnqueueId
    voided: tuple[EnqueueId, ...] = ()


_ROWS = RowCodec(UndeletedMail, enqueue_id="enqueueid")
_KEY = ("queuename", "part")
_WHERE = "queuename = ? AND part = ? AND enqueueid"
PARTITIONS = 8
_TTL = ttl_seconds(timedelta(days=366))
"""MAILSLICE_ADMIN_UNDO_FOR allows 365 days: no run that has the mail outlives its row."""


class UndeletedMails(OwnTable):
    """One row a mail, for longer than any run keeps it: a mail may be in several."""

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
        """Those of `ids` that have a row. SERIAL: a write that was not answered shows."""
        asked = ([queue, part, chosen] for part, chosen in _by_part(ids).items())
        pages = self._session.map(self._by_ids, asked, in_flight=PARTITIONS)
        mails = (_ROWS.record(row) for _, rows in pages for row in rows)
        return {mail.enqueue_id: mail for mail in mails}

    def claim(
        self, queue: QueueName, wanted: Mapping[EnqueueId, EnqueueId]
    ) -> dict[EnqueueId, UndeletedMail]:
        """Claim each mail, as its new id, unless it is claimed already; the rows there are now."""
        rows: dict[EnqueueId, UndeletedMail] = {}
        claims = {one: UndeletedMail(one, UndeleteStep.CLAIMED, new) for one, new in wanted.items()}
        bound = {one: [*_ROWS.values(row), _TTL] for one, row in claims.items()}
        while parts := _by_part(one for one in wanted if one not in rows):
            values = {
                part: [[queue, part, *bound[one]] for one in of] for part, of in parts.items()
            }
            for part, done in self._apply_all(self._insert, values).items():
                ids = parts[part]
                rows |= {one: claims[one] for one in ids} if done else self.by_ids(queue, ids)
        return rows

    def change(
        self,
        queue: QueueName,
        changes: Sequence[tuple[UndeletedMail, UndeletedMail]],
    ) -> bool:
        """Writes each second one in place of its first. False: not all, as another was faster."""
        params: dict[int, list[list[object]]] = {}
        for was, now in changes:
            part = was.enqueue_id.int % PARTITIONS
            key, condition = [queue, part, was.enqueue_id], [was.new_id, was.step.value]
            values = [_TTL, *_ROWS.values(now)[1:], *key, *condition]
            params.setdefault(part, []).append(values)
        return all(self._apply_all(self._change, params).values())

    def _apply_all(
        self, statement: object, params: Mapping[int, Iterable[Sequence[object]]]
    ) -> dict[int, bool]:
        """A batch a partition, beside each other; whether each was done."""
        pending = {}
        for part, of_part in params.items():
            batch = BatchStatement(retry_policy=FallthroughRetryPolicy())
            for one in of_part:
                batch.add(statement, one)
            pending[part] = self._session.begin(batch)
        return {part: applied(one.result()) for part, one in pending.items()}


def _by_part(ids: Iterable[EnqueueId]) -> dict[int, list[EnqueueId]]:
    parts: dict[int, list[EnqueueId]] = {}
    for one in ids:
        parts.setdefault(one.int % PARTITIONS, []).append(one)
    return parts
