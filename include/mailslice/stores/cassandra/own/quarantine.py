"""quarantine: mails that were set aside, with all that was known of them.

One row a mail and attempt. The content is in mailslice's own bucket. Every write is an LWT, and all
but the first are conditional on the previous state: of two concurrent writers one is refused, and
no clock decides. The row is deleted when its mail was released or discarded. The same mail may be
quarantined again later: each time it gets a new copy of its content, named in the row (`copy_id`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from mailslice.codec.row import epoch_ms
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.stores.cassandra.own.table import OwnTable
from mailslice.stores.cassandra.table import Statement, assignments, insert, select
from mailslice.stores.own.codec import RowCodec


class State(StrEnum):
    """The progress of a mail's quarantine, or of its release."""

    NOTED = "noted"
    """Its content is about to be copied. The mail still belongs to the worker that holds it."""
    CLOSING = "closing"
    """The content is copied. The deleted mark may not be written yet."""
    RECOVERING = "recovering"
    """The content is copied. Another worker gets the mail, under the same enqueue id."""
    KEPT = "kept"
    """It waits for a person's decision."""
    TAKEN = "taken"
    """It has its deleted mark, and no worker completed it: a move may enqueue it."""
    RELEASING = "releasing"
    """It is being enqueued anew, as `released_as`."""
    RELEASED = "released"
    """It is enqueued. The copy is about to be deleted."""
    DISCARDING = "discarding"


class Content(StrEnum):
    """Whether there is a copy of the mail's content."""

    KEPT = "kept"
    LOST = "lost"
    NOT_COPIED = "not copied"


@dataclass(frozen=True, slots=True)
class QuarantinedMail:
    """A mail that was set aside.

    `message` is James' JSON of it, with the recipients in question. `worker` held it from `since`
    on, for `age`. `voided`: ids of interrupted releases, until their void ends. `finished`: when a
    check saw that the worker completed the mail after all. `entered` is `released_as` once the view
    has the row of that entry: if the entry later has neither row nor deleted mark, it was delivered
    or deleted, and then cleaned up. `copy_id` names this row's copy of the content: deployment's id
    and copy's id. Earlier versions wrote the latter alone, or nothing. `moved_to` is the queue that
    gets it on release, empty for its own. `due`: its time of delivery there, None for at once.
    """

    enqueue_id: EnqueueId
    name: str
    state: State
    action: str
    stage: str
    worker: str
    since: datetime
    age: timedelta
    why: str
    decided: datetime
    message: bytes
    header_blob_id: str
    body_blob_id: str
    content: Content
    size: int = 0
    attempt: int = 1
    run: str = ""
    who: str = "unknown"
    released_as: EnqueueId | None = None
    voided: tuple[EnqueueId, ...] = ()
    finished: datetime | None = None
    entered: EnqueueId | None = None
    copy_id: str = ""
    moved_to: str = ""
    due: datetime | None = None


_OMIT = ("enqueue_id", "attempt", "copy_id")
_NAMES = {"header_blob_id": "headerblobid", "body_blob_id": "bodyblobid", "size": "bytes"}
_ROWS = RowCodec(QuarantinedMail, omit=_OMIT, age="age_ms", **_NAMES)
_KEY_COLUMNS = ("queuename", "enqueueid", "attempt")
_VALUE_COLUMNS = (*_ROWS.columns, "copy_id")
_SELECTED = (*_KEY_COLUMNS[1:], *_VALUE_COLUMNS)
_KEY = "queuename = ? AND enqueueid = ? AND attempt = ?"


class QuarantineTable(OwnTable):
    """The rows of each queue in one partition: few mails wait for a person."""

    TABLE = "quarantine"
    SCHEMA = """
        queuename text, enqueueid uuid, attempt int, state text, name text, action text, stage text,
        worker text, since timestamp, age_ms bigint, why text, decided timestamp, run text,
        who text, message blob, headerblobid text, bodyblobid text, content text, bytes bigint,
        released_as uuid, voided frozen<list<uuid>>, finished timestamp, entered uuid, copy_id text,
        moved_to text, due timestamp, PRIMARY KEY (queuename, enqueueid, attempt)
    """

    _insert = Statement(insert((*_KEY_COLUMNS, *_VALUE_COLUMNS), "IF NOT EXISTS"), idempotent=False)
    _list = Statement(select(_SELECTED, "queuename = ?"))
    _list_serial = Statement(select(_SELECTED, "queuename = ?"), serial=True)
    _read = Statement(select(_SELECTED, _KEY), serial=True)
    _put = Statement(
        f"UPDATE {{table}} SET {assignments(_VALUE_COLUMNS)} WHERE {_KEY} "
        "IF state = ? AND released_as = ? AND decided = ?",
        idempotent=False,
    )
    _unchanged = "IF state = ? AND decided = ? AND copy_id = ?"
    _delete = Statement(f"DELETE FROM {{table}} WHERE {_KEY} {_unchanged}", idempotent=False)

    def add(self, queue: QueueName, mail: QuarantinedMail) -> QuarantinedMail:
        """Writes the row unless this enqueue id and attempt have one. Returns the stored row."""
        while not self._apply(self._insert, [*self._key(queue, mail), *_values(mail)]):
            if (existing := self.get(queue, mail.enqueue_id, mail.attempt)) is not None:
                return existing
            # The existing row went before it was read, and ours was not written: try again.
        return _as_stored(mail)

    def list(self, queue: QueueName, *, serial: bool = False) -> Iterator[QuarantinedMail]:
        """The queue's rows, by enqueue id. `serial` for decisions: it shows unanswered writes."""
        statement = self._list_serial if serial else self._list
        for partition in self._partitions(queue):
            yield from map(_record, self._session.stream(statement, [partition]))

    def get(self, queue: QueueName, enqueue_id: EnqueueId, attempt: int) -> QuarantinedMail | None:
        """The row, or None. Reads SERIAL, which shows a write without an answer, too."""
        row = self._row(self._read, [self._partition(queue, enqueue_id), enqueue_id, attempt])
        return None if row is None else _record(row)

    def move(
        self, queue: QueueName, mail: QuarantinedMail, **changes: object
    ) -> QuarantinedMail | None:
        """Changes the row if it is still `mail`. Returns the new row; None: another was faster."""
        return self.put(queue, mail, replace(mail, **changes))  # type: ignore[arg-type]

    def put(
        self, queue: QueueName, before: QuarantinedMail, after: QuarantinedMail
    ) -> QuarantinedMail | None:
        """Writes `after` if the row is still `before`. None: another writer was faster.

        Compares state, released_as and decided. Others see no change of `finished` or `entered`.
        """
        condition = [before.state.value, before.released_as, epoch_ms(before.decided)]
        params = [*_values(after), *self._key(queue, before), *condition]
        return _as_stored(after) if self._apply(self._put, params) else None

    def remove(self, queue: QueueName, mail: QuarantinedMail) -> bool:
        """Deletes the row if state, decided and copy_id are as in `mail`. False: they are not."""
        condition = [mail.state.value, epoch_ms(mail.decided), mail.copy_id or None]
        return self._apply(self._delete, [*self._key(queue, mail), *condition])

    def _key(self, queue: QueueName, mail: QuarantinedMail) -> Sequence[Any]:
        return self._partition(queue, mail.enqueue_id), mail.enqueue_id, mail.attempt

    def _partition(self, queue: QueueName, _enqueue_id: EnqueueId) -> str:
        return queue

    def _partitions(self, queue: QueueName) -> Iterable[str]:
        return (queue,)


class MovingMails(QuarantineTable):
    """moving_mails: as quarantine, but in 64 partitions: a move has many mails."""

    TABLE = "moving_mails"
    PARTITIONS = 64

    def _partition(self, queue: QueueName, enqueue_id: EnqueueId) -> str:
        return f"{queue}/{enqueue_id.int % self.PARTITIONS}"  # no queue's name has a slash

    def _partitions(self, queue: QueueName) -> Iterable[str]:
        return (f"{queue}/{number}" for number in range(self.PARTITIONS))


def _values(mail: QuarantinedMail) -> list[Any]:
    return [*_ROWS.values(mail), mail.copy_id or None]


def _record(row: Sequence[Any]) -> QuarantinedMail:
    enqueue_id, attempt, *values, copy_id = row
    return _ROWS.record(values, enqueue_id=enqueue_id, attempt=attempt, copy_id=copy_id or "")


def _as_stored(mail: QuarantinedMail) -> QuarantinedMail:
    """As it is read again: Cassandra's timestamps are milliseconds."""
    return _record([mail.enqueue_id, mail.attempt, *_values(mail)])
