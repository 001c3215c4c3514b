"""delayed_mails: when a delayed mail is due, and which of its copies on the broker is the true one (the token).

A row is written only by who has read it before. Writes go USING TIMESTAMP max(now, what was read + 1): with the writers' clocks alone, the step of a
worker whose clock is behind would be lost, its copy's token would not be the row's, and the copy would be dropped.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from uuid import UUID

from cassandra.cluster import ResponseFuture
from cassandra.query import PreparedStatement

from mailslice.codec.row import epoch_ms, instant
from mailslice.model.mail import EnqueueId, Place, QueueName
from mailslice.stores.cassandra.session import CassandraSession, Row

DELAYED_MAILS_TABLE = """(
    queuename text,
    shard int,
    enqueueid uuid,
    due timestamp,
    copy_token uuid,
    published boolean,
    slicestart timestamp,
    bucketid int,
    message blob,
    failures int,
    redrives int,
    enqueued timestamp,
    throttled boolean,
    leased boolean,
    PRIMARY KEY ((queuename, shard), enqueueid)
)"""

_KEY = ("queuename", "shard", "enqueueid")
_VALUES = (
    "due",
    "copy_token",
    "published",
    "slicestart",
    "bucketid",
    "message",
    "failures",
    "redrives",
    "enqueued",
    "throttled",
    "leased",
)
_COLUMNS = (*_KEY, *_VALUES)
_READ = f"SELECT {', '.join(_COLUMNS)}, WRITETIME(copy_token)"
_SHARDS = 16
_IDS_A_REQUEST = 100
_CLOSED_TTL_SECONDS = 30 * 86400
"""How long a closed row is remembered, so that a late copy finds it and is dropped."""


@dataclass(frozen=True, slots=True)
class DelayedMail:
    """A delayed mail. `published`: it was given to the mail exchange, what still comes of it is a left-over. `written_us` is the write time that was read.

    `failures`, `redrives` and `enqueued` are what its message says of it (headers and timestamp), for who publishes it without a copy at hand.
    `throttled`: it waits for a destination that takes no more. `leased`: it is in a handler, and delivered again when that has died.
    """

    enqueue_id: EnqueueId
    due: datetime | None
    token: UUID
    published: bool
    place: Place | None
    message: bytes
    written_us: int = 0
    failures: int = 0
    redrives: int = 0
    enqueued: datetime | None = None
    throttled: bool = False
    leased: bool = False


class DelayedMails:
    """The table of delayed mails. Futures are the driver's: `row` reads what `read_future` gives."""

    def __init__(self, session: CassandraSession, keyspace: str) -> None:
        self._session = session
        self._name = f"{keyspace}.delayed_mails"

    def prepare(self) -> None:
        """Prepares what an event loop will ask, where waiting is allowed."""
        self._read, self._write, self._close  # noqa: B018 - cached properties

    def read_future(self, queue: QueueName, enqueue_id: EnqueueId) -> ResponseFuture:
        """A future of no rows, or of one for `row`."""
        return self._session.submit(self._read, [queue, _shard(enqueue_id), enqueue_id])

    def read(self, queue: QueueName, enqueue_id: EnqueueId) -> DelayedMail | None:
        """The mail's row, or None."""
        rows = self._session.execute(self._read, [queue, _shard(enqueue_id), enqueue_id])
        return self.row(rows[0]) if rows else None

    @staticmethod
    def row(values: Row) -> DelayedMail:
        """A row of `read_future`."""
        (
            _,
            _,
            enqueue_id,
            due,
            token,
            published,
            start,
            bucket,
            message,
            failures,
            redrives,
            enqueued,
            throttled,
            leased,
            written,
        ) = values
        return DelayedMail(
            enqueue_id=EnqueueId(enqueue_id),
            due=None if due is None else instant(due),
            token=token,
            published=bool(published),
            place=None if start is None or bucket is None else Place(instant(start), bucket),
            message=bytes(message or b""),
            written_us=written or 0,
            failures=failures or 0,
            redrives=redrives or 0,
            enqueued=None if enqueued is None else instant(enqueued),
            throttled=bool(throttled),
            leased=bool(leased),
        )

    def write_future(self, queue: QueueName, mail: DelayedMail) -> ResponseFuture:
        """Write the row over what was read (`mail.written_us`), and over a closing of what was read."""
        start, bucket = (
            (None, None)
            if mail.place is None
            else (epoch_ms(mail.place.slice_start), mail.place.bucket)
        )
        due = None if mail.due is None else epoch_ms(mail.due)
        enqueued = None if mail.enqueued is None else epoch_ms(mail.enqueued)
        values = [
            due,
            mail.token,
            mail.published,
            start,
            bucket,
            mail.message,
            mail.failures,
            mail.redrives,
            enqueued,
            mail.throttled,
            mail.leased,
        ]
        return self._session.submit(
            self._write,
            [
                queue,
                _shard(mail.enqueue_id),
                mail.enqueue_id,
                *values,
                _timestamp(mail.written_us + 1),
            ],
        )

    def close_future(
        self, queue: QueueName, enqueue_id: EnqueueId, token: UUID, after_us: int = 0
    ) -> ResponseFuture:
        """Say that the mail was published; the message goes, the row stays for 30 days. `after_us` is the write time of the row that was read.

        Written at `after_us` + 1 and not now: the mail may have been handled and delayed anew since it was published, and that row must win.
        """
        return self._session.submit(self._close, _closing(queue, enqueue_id, token, after_us))

    def close(
        self, queue: QueueName, enqueue_id: EnqueueId, token: UUID, after_us: int = 0
    ) -> None:
        """As `close_future`, done when it returns."""
        self._session.execute(self._close, _closing(queue, enqueue_id, token, after_us))

    def delete_future(
        self, queue: QueueName, enqueue_id: EnqueueId, after_us: int = 0
    ) -> ResponseFuture:
        """Delete the row."""
        return self._session.submit(
            self._delete, [_timestamp(after_us), queue, _shard(enqueue_id), enqueue_id]
        )

    def rows(self, queue: QueueName) -> Iterator[DelayedMail]:
        """Every row of the queue, closed ones too, a page at a time."""
        for _, rows in self._session.map(
            self._all, ([queue, shard] for shard in range(_SHARDS)), in_flight=4
        ):
            yield from map(self.row, rows)

    def waiting(
        self, queue: QueueName, ids: Iterable[EnqueueId], in_flight: int = 8
    ) -> dict[EnqueueId, datetime]:
        """When those of `ids` are due that wait in a delay level; the others were published, or never delayed. 100 a request, without their messages."""
        return {enqueue_id: due for enqueue_id, due, _ in self._waiting(queue, ids, in_flight)}

    def throttled(
        self, queue: QueueName, ids: Iterable[EnqueueId], in_flight: int = 8
    ) -> dict[EnqueueId, bool]:
        """Of those of `ids` that wait in a delay level, whether it is for their destination."""
        return {
            enqueue_id: throttled
            for enqueue_id, _, throttled in self._waiting(queue, ids, in_flight)
        }

    def _waiting(
        self, queue: QueueName, ids: Iterable[EnqueueId], in_flight: int
    ) -> Iterator[tuple[EnqueueId, datetime, bool]]:
        by_shard: dict[int, list[EnqueueId]] = {}
        for enqueue_id in ids:
            by_shard.setdefault(_shard(enqueue_id), []).append(enqueue_id)
        params = (
            [queue, shard, some[at : at + _IDS_A_REQUEST]]
            for shard, some in by_shard.items()
            for at in range(0, len(some), _IDS_A_REQUEST)
        )
        found = (
            row for _, rows in self._session.map(self._some, params, in_flight) for row in rows
        )
        return (
            (EnqueueId(enqueue_id), instant(due), bool(throttled))
            for enqueue_id, due, published, throttled in found
            if due is not None and not published
        )

    @cached_property
    def _read(self) -> PreparedStatement:
        return self._session.prepare(
            f"{_READ} FROM {self._name} WHERE queuename = ? AND shard = ? AND enqueueid = ?"
        )

    @cached_property
    def _all(self) -> PreparedStatement:
        return self._session.prepare(f"{_READ} FROM {self._name} WHERE queuename = ? AND shard = ?")

    @cached_property
    def _some(self) -> PreparedStatement:
        return self._session.prepare(
            f"SELECT enqueueid, due, published, throttled FROM {self._name} WHERE queuename = ? AND shard = ? AND enqueueid IN ?"
        )

    @cached_property
    def _insert(self) -> str:
        return f"INSERT INTO {self._name} ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"

    @cached_property
    def _write(self) -> PreparedStatement:
        return self._session.prepare(f"{self._insert} USING TIMESTAMP ?")

    @cached_property
    def _close(self) -> PreparedStatement:
        return self._session.prepare(
            f"{self._insert} USING TTL {_CLOSED_TTL_SECONDS} AND TIMESTAMP ?"
        )

    @cached_property
    def _delete(self) -> PreparedStatement:
        return self._session.prepare(
            f"DELETE FROM {self._name} USING TIMESTAMP ? WHERE queuename = ? AND shard = ? AND enqueueid = ?"
        )


def _shard(enqueue_id: EnqueueId) -> int:
    return enqueue_id.int % _SHARDS


def _closing(queue: QueueName, enqueue_id: EnqueueId, token: UUID, after_us: int) -> list[object]:
    return [
        queue,
        _shard(enqueue_id),
        enqueue_id,
        None,
        token,
        True,
        *[None] * (len(_VALUES) - 3),
        after_us + 1,
    ]


def _timestamp(after_us: int) -> int:
    return max(time.time_ns() // 1000, after_us + 1)
