"""delayed_mails: when a delayed mail is due, and which copy on the broker is valid (token).

A writer reads the row first, and writes USING TIMESTAMP max(now, the write time read + 1). By its
clock alone, the write of a worker whose clock is behind would be lost, and its copy be dropped.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from cassandra.cluster import ResponseFuture

from mailslice.codec.row import epoch_ms, instant
from mailslice.model.batches import batches_by_key
from mailslice.model.mail import EnqueueId, Partition, QueueName
from mailslice.stores.cassandra.ids import IDS_A_REQUEST
from mailslice.stores.cassandra.own.table import OwnTable
from mailslice.stores.cassandra.session import Row
from mailslice.stores.cassandra.table import Statement, insert, select
from mailslice.stores.own.codec import RowCodec

_SHARDS = 16
_CLOSED_TTL_SECONDS = 30 * 86400
"""How long a closed row stays: a late copy that meets it is dropped."""


@dataclass(frozen=True, slots=True)
class DelayedMail:
    """A delayed mail.

    `published`: it was published to the mail exchange; copies that still arrive are obsolete.
    `written_us` is the row's write time when it was read. `failures`, `redrives` and `enqueued` are
    those of its message (headers, timestamp), to publish it without a copy. `throttled`: it waits
    for a destination's rate limit. `leased`: a handler has it, or is `done` with it: then only its
    deleted mark is missing. `held`: one of its domains is held. `answer`: the server's answer to
    the last attempt, redacted. A closed row keeps `failures` and `answer`.
    """

    enqueue_id: EnqueueId
    due: datetime | None
    token: UUID
    published: bool
    partition: Partition | None
    message: bytes
    written_us: int = 0
    failures: int = 0
    redrives: int = 0
    enqueued: datetime | None = None
    throttled: bool = False
    leased: bool = False
    done: bool = False
    held: bool = False
    answer: str = ""


@dataclass(frozen=True, slots=True)
class DelayState:
    """Attempts at a mail that was delayed before. `due` None: it is not delayed now.

    `throttled`: if delayed, it waits for its destination. `written_us`: when it was delayed last.
    """

    due: datetime | None = None
    failures: int = 0
    answer: str = ""
    throttled: bool = False
    written_us: int = 0


_OMIT = ("enqueue_id", "partition", "written_us")
_ROWS = RowCodec(DelayedMail, omit=_OMIT, token="copy_token")  # noqa: S106
_VALUES = ("slicestart", "bucketid", *_ROWS.columns)
_COLUMNS = ("queuename", "shard", "enqueueid", *_VALUES)
_READ = ("enqueueid", "WRITETIME(copy_token)", *_VALUES)
_STATE = (*_READ[:2], "due", "published", "throttled", "failures", "answer")
_PARTITION = "queuename = ? AND shard = ?"
_KEY = f"{_PARTITION} AND enqueueid = ?"


class DelayedMails(OwnTable):
    """The table. Futures are the driver's: `row` decodes the rows of `read_future`."""

    TABLE = "delayed_mails"
    ON_EVENT_LOOP = ("_read", "_write", "_close")
    SCHEMA = """
        queuename text, shard int, enqueueid uuid, due timestamp, copy_token uuid,
        published boolean, slicestart timestamp, bucketid int, message blob, failures int,
        redrives int, enqueued timestamp, throttled boolean, leased boolean, done boolean,
        held boolean, answer text,
        PRIMARY KEY ((queuename, shard), enqueueid)
    """

    _read = Statement(select(_READ, _KEY))
    _all = Statement(select(_READ, _PARTITION))
    _by_ids = Statement(select(_STATE, f"{_PARTITION} AND enqueueid IN ?"))
    _write = Statement(insert(_COLUMNS, "USING TIMESTAMP ?"))
    _close = Statement(insert(_COLUMNS, f"USING TTL {_CLOSED_TTL_SECONDS} AND TIMESTAMP ?"))

    def read_future(self, queue: QueueName, enqueue_id: EnqueueId) -> ResponseFuture:
        """A future of no rows, or of one for `row`."""
        return self._session.submit(self._read, _key(queue, enqueue_id))

    def get(self, queue: QueueName, enqueue_id: EnqueueId) -> DelayedMail | None:
        row = self._row(self._read, _key(queue, enqueue_id))
        return None if row is None else self.row(row)

    @staticmethod
    def row(values: Row) -> DelayedMail:
        """Decodes a row of `read_future`."""
        enqueue_id, written, start, bucket, *rest = values
        partition = None if start is None or bucket is None else Partition(instant(start), bucket)
        us = written or 0
        return _ROWS.record(rest, enqueue_id=enqueue_id, partition=partition, written_us=us)

    def write_future(self, queue: QueueName, mail: DelayedMail) -> ResponseFuture:
        """Writes the row over the one that was read (`written_us`), and over a close of it."""
        return self._session.submit(self._write, _write_params(queue, mail))

    def save(self, queue: QueueName, mail: DelayedMail) -> None:
        """As `write_future`, done when it returns."""
        self._session.execute(self._write, _write_params(queue, mail))

    def close_future(
        self,
        queue: QueueName,
        enqueue_id: EnqueueId,
        token: UUID,
        after_us: int = 0,
        *,
        failures: int = 0,
        answer: str = "",
    ) -> ResponseFuture:
        """Records that the mail was published. Deletes the message; the row stays for 30 days.

        `after_us` is the write time of the row that was read. The write time is `after_us` + 1, not
        now: the mail may have been handled and delayed again since, and that row must win.
        """
        attempts = {"failures": failures, "answer": answer or None}
        values = _close_params(queue, enqueue_id, token, after_us, **attempts)
        return self._session.submit(self._close, values)

    def close(
        self, queue: QueueName, enqueue_id: EnqueueId, token: UUID, after_us: int = 0
    ) -> None:
        """As `close_future`, done when it returns."""
        self._session.execute(self._close, _close_params(queue, enqueue_id, token, after_us))

    def rows(self, queue: QueueName) -> Iterator[DelayedMail]:
        """Every row of the queue, closed ones too, a page at a time."""
        shards = ([queue, shard] for shard in range(_SHARDS))
        for _, rows in self._session.map(self._all, shards, in_flight=4):
            yield from map(self.row, rows)

    def waiting(self, queue: QueueName, ids: Iterable[EnqueueId]) -> dict[EnqueueId, datetime]:
        """Enqueue id -> due, for the mails that wait in a delay level; 100 ids a request."""
        return {key: state.due for key, state in self.states(queue, ids).items() if state.due}

    def states(self, queue: QueueName, ids: Iterable[EnqueueId]) -> dict[EnqueueId, DelayState]:
        """Enqueue id -> state, for the mails that were delayed within 30 days."""
        states: dict[EnqueueId, DelayState] = {}
        by_shard = batches_by_key(((_shard(mail_id), mail_id) for mail_id in ids), IDS_A_REQUEST)
        params = ([queue, shard, batch] for shard, batch in by_shard)
        for _, rows in self._session.map(self._by_ids, params, in_flight=8):
            for enqueue_id, written, due, published, throttled, failures, answer in rows:
                until = None if due is None or published else instant(due)
                attempts = (failures or 0, answer or "", bool(throttled))
                states[enqueue_id] = DelayState(until, *attempts, written_us=written or 0)
        return states


def _shard(enqueue_id: EnqueueId) -> int:
    return enqueue_id.int % _SHARDS


def _key(queue: QueueName, enqueue_id: EnqueueId) -> list[Any]:
    return [queue, _shard(enqueue_id), enqueue_id]


def _write_params(queue: QueueName, mail: DelayedMail) -> list[Any]:
    partition = mail.partition
    where = partition and (epoch_ms(partition.slice_start), partition.bucket)
    after_us = max(time.time_ns() // 1000, mail.written_us + 2)  # a close is written at + 1
    values = [*(where or (None, None)), *_ROWS.values(mail), after_us]
    return [*_key(queue, mail.enqueue_id), *values]


def _close_params(
    queue: QueueName, enqueue_id: EnqueueId, token: UUID, after_us: int, **attempts: object
) -> list[Any]:
    """The bound values of a close: all null but token, `published` and the attempts."""
    known = {"copy_token": token, "published": True, **attempts}
    return [*_key(queue, enqueue_id), *(known.get(name) for name in _VALUES), after_us + 1]
