"""quarantine: mails that were set aside, with all that was known of them.

Their content is in mailslice's own bucket. A row a mail and attempt. Every write but the first is
conditional on the state it follows, and all are LWT: of two who act on a mail one is refused, and
no clock decides. A row goes when its mail was released or discarded. A mail may be kept anew under
the key of a row that went: each keeping has a copy of its own, named in its row (`copy_id`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property
from uuid import UUID

from cassandra.query import PreparedStatement

from mailslice.codec.row import epoch_ms, instant
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.stores.cassandra.session import CassandraSession, Row

QUARANTINE_TABLE = """(
    queuename text,
    enqueueid uuid,
    attempt int,
    state text,
    name text,
    action text,
    stage text,
    worker text,
    since timestamp,
    age_ms bigint,
    why text,
    decided timestamp,
    run text,
    who text,
    message blob,
    headerblobid text,
    bodyblobid text,
    content text,
    bytes bigint,
    released_as uuid,
    voided frozen<list<uuid>>,
    finished timestamp,
    entered uuid,
    copy_id text,
    PRIMARY KEY (queuename, enqueueid, attempt)
)"""

_KEY_COLUMNS = ("queuename", "enqueueid", "attempt")
_VALUE_COLUMNS = (
    *("state", "name", "action", "stage", "worker", "since", "age_ms", "why", "decided", "run"),
    *("who", "message", "headerblobid", "bodyblobid", "content", "bytes", "released_as", "voided"),
    *("finished", "entered", "copy_id"),
)
_COLUMNS = (*_KEY_COLUMNS, *_VALUE_COLUMNS)
_KEY = "queuename = ? AND enqueueid = ? AND attempt = ?"
_MILLISECOND = timedelta(milliseconds=1)


class State(StrEnum):
    """How far the setting aside of a mail, or its way back, has come."""

    NOTED = "noted"
    """Its content is about to be copied. Nothing is set aside yet: the mail is its holder's."""
    CLOSING = "closing"
    """The content is here; the deleted mark may not be written yet."""
    RECOVERING = "recovering"
    """The content is here while the mail is given to another holder, under its own enqueue id."""
    KEPT = "kept"
    """It waits for a person."""
    RELEASING = "releasing"
    """It is being enqueued anew, as `released_as`."""
    RELEASED = "released"
    """It is; the copy is about to go."""
    DISCARDING = "discarding"


class Content(StrEnum):
    """Whether there is a copy of the mail's content."""

    KEPT = "kept"
    LOST = "lost"
    NOT_COPIED = "not copied"


@dataclass(frozen=True, slots=True)
class QuarantinedMail:
    """A mail that was set aside.

    `message` is James' JSON of it, with the recipients that this is about. `since` and `age`: how long `worker` had held it. `voided` are enqueue ids of
    releases that were cut off. `finished`: when it was seen that the worker completed the mail after all. `entered` is `released_as` once the row of
    that new entry is in the view: if it has neither row nor deleted mark later, it was delivered or deleted, and then cleaned away. `copy_id`: which copy of
    the content is this row's: the deployment's id and an id of its own. Earlier versions wrote the
    latter alone, or nothing.
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


class QuarantineTable:
    """The rows of each queue, in one partition: mails that wait for a person are few."""

    TABLE = "quarantine"

    def __init__(self, session: CassandraSession, keyspace: str) -> None:
        self._session = session
        self._name = f"{keyspace}.{self.TABLE}"

    def add(self, queue: QueueName, mail: QuarantinedMail) -> QuarantinedMail:
        """Write the row unless there is one of this enqueue id and attempt; the row that is there now."""
        while not self._session.execute(self._insert, _values(queue, mail))[0][0]:
            if (there := self.read(queue, mail.enqueue_id, mail.attempt)) is not None:
                return there
            # It went between the two: ours was not written, either.
        return _as_stored(mail)

    def list(self, queue: QueueName, *, serial: bool = False) -> Iterator[QuarantinedMail]:
        """All rows of the queue, by enqueue id, a page at a time.

        `serial` before something is decided: a write that was not answered shows.
        """
        for row in self._session.stream(self._list_serial if serial else self._list, [queue]):
            yield _row(row)

    def read(self, queue: QueueName, enqueue_id: EnqueueId, attempt: int) -> QuarantinedMail | None:
        """The row, or None. SERIAL: a write that was not answered shows."""
        rows = self._session.execute(self._read, [queue, enqueue_id, attempt])
        return _row(rows[0]) if rows else None

    def move(
        self, queue: QueueName, mail: QuarantinedMail, **changes: object
    ) -> QuarantinedMail | None:
        """Change the row, if it is still as `mail`; the changed row. None: another was faster."""
        return self.put(queue, mail, replace(mail, **changes))  # type: ignore[arg-type]

    def put(
        self, queue: QueueName, before: QuarantinedMail, after: QuarantinedMail
    ) -> QuarantinedMail | None:
        """Write `after` in place of `before`, if the row is still that; None: another was faster.

        It is when state, released_as and decided are. Who changes anything else changes one of
        these, too.
        """
        values = _values(queue, after)[len(_KEY_COLUMNS) :]
        known = [before.state.value, before.released_as, epoch_ms(before.decided)]
        rows = self._session.execute(
            self._put, [*values, queue, before.enqueue_id, before.attempt, *known]
        )
        return _as_stored(after) if rows[0][0] else None

    def remove(self, queue: QueueName, mail: QuarantinedMail) -> bool:
        """Delete the row if it is still as `mail`, of the same state, decided and copy_id; False when another was faster."""
        known = [mail.state.value, epoch_ms(mail.decided), mail.copy_id or None]
        return bool(
            self._session.execute(self._delete, [queue, mail.enqueue_id, mail.attempt, *known])[0][
                0
            ]
        )

    @cached_property
    def _insert(self) -> PreparedStatement:
        values = ", ".join("?" * len(_COLUMNS))
        return self._session.prepare(
            f"INSERT INTO {self._name} ({', '.join(_COLUMNS)}) VALUES ({values}) IF NOT EXISTS",
            idempotent=False,
        )

    @cached_property
    def _select(self) -> str:
        return f"SELECT {', '.join(_COLUMNS[1:])} FROM {self._name}"

    @cached_property
    def _list(self) -> PreparedStatement:
        return self._session.prepare(f"{self._select} WHERE queuename = ?")

    @cached_property
    def _list_serial(self) -> PreparedStatement:
        return self._session.prepare(f"{self._select} WHERE queuename = ?", serial=True)

    @cached_property
    def _read(self) -> PreparedStatement:
        return self._session.prepare(f"{self._select} WHERE {_KEY}", serial=True)

    @cached_property
    def _put(self) -> PreparedStatement:
        changed = ", ".join(f"{name} = ?" for name in _VALUE_COLUMNS)
        return self._session.prepare(
            f"UPDATE {self._name} SET {changed} WHERE {_KEY}"
            " IF state = ? AND released_as = ? AND decided = ?",
            idempotent=False,
        )

    @cached_property
    def _delete(self) -> PreparedStatement:
        return self._session.prepare(
            f"DELETE FROM {self._name} WHERE {_KEY} IF state = ? AND decided = ? AND copy_id = ?",
            idempotent=False,
        )


def _values(queue: QueueName, mail: QuarantinedMail) -> list[object]:
    return [
        *(queue, mail.enqueue_id, mail.attempt, mail.state.value, mail.name, mail.action),
        *(mail.stage, mail.worker, epoch_ms(mail.since), mail.age // _MILLISECOND, mail.why),
        *(epoch_ms(mail.decided), mail.run, mail.who, mail.message, mail.header_blob_id),
        *(mail.body_blob_id, mail.content.value, mail.size, mail.released_as, list(mail.voided)),
        None if mail.finished is None else epoch_ms(mail.finished),
        mail.entered,
        mail.copy_id or None,
    ]


def _as_stored(mail: QuarantinedMail) -> QuarantinedMail:
    """As it is read again: Cassandra's timestamps are milliseconds."""
    since, decided = (instant(epoch_ms(each)) for each in (mail.since, mail.decided))
    return replace(mail, since=since, decided=decided, age=mail.age // _MILLISECOND * _MILLISECOND)


def _row(values: Row) -> QuarantinedMail:
    (
        enqueue_id,
        attempt,
        state,
        name,
        action,
        stage,
        worker,
        since,
        age,
        why,
        decided,
        run,
        who,
        *rest,
    ) = values
    (message, header, body, content, size, released_as, voided, finished, entered, copy_id) = rest
    return QuarantinedMail(
        enqueue_id=EnqueueId(enqueue_id),
        name=name,
        state=State(state),
        action=action,
        stage=stage,
        worker=worker,
        since=instant(since),
        age=age * _MILLISECOND,
        why=why,
        decided=instant(decided),
        message=bytes(message or b""),
        header_blob_id=header,
        body_blob_id=body,
        content=Content(content),
        size=size,
        attempt=attempt,
        run=run,
        who=who,
        released_as=_id(released_as),
        voided=tuple(EnqueueId(each) for each in voided or ()),
        finished=None if finished is None else instant(finished),
        entered=_id(entered),
        copy_id=copy_id or "",
    )


def _id(value: UUID | None) -> EnqueueId | None:
    return None if value is None else EnqueueId(value)
