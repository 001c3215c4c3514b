"""worker_records: the mails that each worker holds of a queue, since when, and its heartbeat.

The broker shows neither (reference/rabbitmq.md). There is one row a worker and queue. The worker
rewrites it whole every few seconds while it holds mails, so there is no write a mail. Cassandra's
clock gives the heartbeat, and the age of a record when it is read. The worker's monotonic clock
gives how long a mail was held. No worker's wall clock decides anything. A record expires by TTL, a
day after its last write.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any, Self
from uuid import UUID

from cassandra.cluster import ResponseFuture

from mailslice.codec.row import epoch_ms, instant
from mailslice.model.batches import batches
from mailslice.model.mail import EnqueueId, Partition, QueueName
from mailslice.model.processing_times import ProcessingTimes
from mailslice.stores.cassandra.own.table import OwnTable
from mailslice.stores.cassandra.session import Row
from mailslice.stores.cassandra.table import Statement, select
from mailslice.stores.own.codec import RowCodec

MAX_LISTED = 1000
"""Mails in one record. Those in handlers come first."""
_TTL_SECONDS = 86400
_QUEUES_A_REQUEST = 20
"""Few, as the answer is not paged."""
_MISSED_BEATS = 4
_SLACK = timedelta(seconds=2)
_IDLE_DEAD_AFTER = timedelta(seconds=75)
"""The limit for a worker without mails, which writes its record once a minute."""
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class InFlightMail:
    """A mail that the broker delivered to a worker and that is not settled.

    `held`: time since a handler got it, or, before that (`begun` False), since the broker delivered
    it; as of the record's heartbeat. `returned`: its connection is gone, so the broker has requeued
    the mail. The handler may still run, but the mail is not this worker's. `message`: James' JSON
    with the remaining recipients, of mails that are held for long. `partition` is that of the row,
    None for a message of James.
    """

    enqueue_id: EnqueueId
    name: str
    held: timedelta
    stage: str
    attempt: int
    begun: bool
    returned: bool = False
    partition: Partition | None = None
    message: bytes | None = None

    def as_json(self) -> list[object]:
        """The mail as short JSON, without its message."""
        partition = self.partition and [epoch_ms(self.partition.slice_start), self.partition.bucket]
        held = self.held // _MILLISECOND
        state = [self.stage, self.attempt, self.begun, self.returned, partition]
        return [str(self.enqueue_id), self.name, held, *state]

    @classmethod
    def of_json(cls, value: list[Any], messages: dict[UUID, bytes]) -> Self:
        text, name, held, stage, attempt, begun, returned, partition = value
        enqueue_id, held = EnqueueId(UUID(text)), held * _MILLISECOND
        where = partition and Partition(instant(partition[0]), partition[1])
        message = messages.get(enqueue_id)
        return cls(enqueue_id, name, held, stage, attempt, begun, returned, where, message)


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """The last record that a worker wrote of itself.

    `done` are the ids of mails that it completed, the newest last; `times`: how long its mails
    took. `heartbeat` and `read_at` are by Cassandra's clock, the other times by the worker's.
    `beat` grows with every record; `written_us` is the write time.
    """

    worker: str
    host: str
    pid: int
    started: datetime
    every: timedelta
    beat: int
    in_flight: tuple[InFlightMail, ...] = ()
    done: tuple[EnqueueId, ...] = ()
    times: ProcessingTimes | None = None
    settled: int = 0
    completed: int = 0
    """Mails settled since it started; of them completed (not retried, rejected, bounced)."""
    hops: int = 0
    """Copies of delayed mails that it published to a delay level since it started."""
    undoing: int = 0
    left_behind: int = 0
    """Failed enqueues that it still tries to revoke, and those that it has given up to revoke."""
    stage_marks: bool = False
    """Whether it writes stage marks. Without them a stage does not show what was sent."""
    shared: bool | None = None
    """Its MAILSLICE_QUEUE_SHARED; None in a record of an earlier version."""
    holds: tuple[str, ...] = ()
    """The changes of holds that it has applied (`model.holds`)."""
    ended: bool = False
    """It was closed in order, and this record is its last."""
    heartbeat: datetime | None = None
    read_at: datetime | None = None
    written_us: int = 0

    @property
    def dead_after(self) -> timedelta:
        """The silence after which the worker is dead, or the broker takes it for dead."""
        return self.every * _MISSED_BEATS + _SLACK

    @property
    def silence(self) -> timedelta:
        """Time from the last heartbeat to the reading of this record."""
        if self.heartbeat is None or self.read_at is None:
            return timedelta.max
        return max(timedelta(0), self.read_at - self.heartbeat)

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended and its heartbeat is recent. A later `beat` proves it alive."""
        limit = self.dead_after if self.in_flight else max(self.dead_after, _IDLE_DEAD_AFTER)
        return not self.ended and self.silence <= limit

    def age(self, mail: InFlightMail) -> timedelta:
        return mail.held if self.heartbeat is None else mail.held + self.silence

    def since(self, mail: InFlightMail) -> datetime | None:
        """Since when the worker holds the mail, by Cassandra's clock."""
        return None if self.heartbeat is None else self.heartbeat - mail.held


_OMIT = ("in_flight", "times", "heartbeat", "read_at", "written_us")
_ROWS = RowCodec(WorkerRecord, omit=_OMIT, every="every_ms")
_COLUMNS = ("queuename", *_ROWS.columns, "in_flight", "messages", "times")
_READ = (*_COLUMNS[1:], "heartbeat", "WRITETIME(beat)", "toTimestamp(now())")


class WorkerRecords(OwnTable):
    """The records of a queue's workers in one partition: a few kilobytes a worker."""

    TABLE = "worker_records"
    ON_EVENT_LOOP = ("_save",)
    SCHEMA = """
        queuename text, worker text, host text, pid int, started timestamp, heartbeat timestamp,
        beat bigint, every_ms int, stage_marks boolean, in_flight blob,
        messages frozen<map<uuid, blob>>, done frozen<list<uuid>>, times frozen<map<int, bigint>>,
        settled bigint, completed bigint, hops bigint, undoing bigint, left_behind bigint,
        shared boolean, holds frozen<list<text>>,
        ended boolean, PRIMARY KEY (queuename, worker)
    """
    GC_GRACE_SECONDS = 3_600

    _save = Statement(
        f"INSERT INTO {{table}} ({', '.join(_COLUMNS)}, heartbeat) "
        f"VALUES ({'?, ' * len(_COLUMNS)}toTimestamp(now())) USING TTL {_TTL_SECONDS}"
    )
    _list = Statement(select(_READ, "queuename = ?"))
    _of_queues = Statement(select(("queuename", *_READ), "queuename IN ?"), paged=False)
    _read = Statement(select(_READ, "queuename = ? AND worker = ?"))
    _discard = Statement(
        "DELETE in_flight, messages FROM {table} USING TIMESTAMP ? "
        "WHERE queuename = ? AND worker = ?"
    )
    _queues = Statement("SELECT DISTINCT queuename FROM {table}")

    def save_future(self, queue: QueueName, record: WorkerRecord) -> ResponseFuture:
        """Writes the whole row over the worker's last one. The heartbeat is Cassandra's now()."""
        mails = [mail.as_json() for mail in record.in_flight]
        in_flight = json.dumps(mails, separators=(",", ":")).encode()
        bodies = ((mail.enqueue_id, mail.message) for mail in record.in_flight)
        messages = {mail_id: body for mail_id, body in bodies if body is not None}
        times = dict(record.times.counts) if record.times is not None else {}
        params = [queue, *_ROWS.values(record), in_flight, messages, times]
        return self._session.submit(self._save, params)

    def list(self, queue: QueueName) -> list[WorkerRecord]:
        """The records of the queue's workers, dead ones too."""
        return [_record(row) for row in self._session.stream(self._list, [queue])]

    def by_queue(self, queues: Iterable[QueueName]) -> Mapping[QueueName, Sequence[WorkerRecord]]:
        """As `list`, of several queues. Queues without records are absent."""
        params = ([batch] for batch in batches(queues, _QUEUES_A_REQUEST))
        pages = self._session.map(self._of_queues, params, in_flight=8)
        rows = sorted((row for _, page in pages for row in page), key=itemgetter(0, 1))
        grouped = groupby(rows, itemgetter(0))
        return {queue: [_record(row[1:]) for row in group] for queue, group in grouped}

    def get(self, queue: QueueName, worker: str) -> WorkerRecord | None:
        """One worker's record; None if it has written none for a day."""
        row = self._row(self._read, [queue, worker])
        return None if row is None else _record(row)

    def alive(self, queue: QueueName, worker: str) -> bool:
        """Whether the worker may still write deleted marks: also if it has just ended."""
        record = self.get(queue, worker)
        return record is not None and record.silence <= record.dead_after

    def discard(self, queue: QueueName, record: WorkerRecord) -> None:
        """Deletes this record's mails in flight, unless a later one was written. The rest stays."""
        self._session.execute(self._discard, [record.written_us, queue, record.worker])

    def queues(self) -> Iterator[QueueName]:
        for row in self._session.stream(self._queues):
            yield QueueName(row[0])


def _record(row: Row) -> WorkerRecord:
    *values, in_flight, messages, times, heartbeat, written, now = row
    bodies = {key: bytes(value) for key, value in (messages or {}).items()}
    mails = json.loads(in_flight or b"[]")
    return _ROWS.record(
        values,
        in_flight=tuple(InFlightMail.of_json(mail, bodies) for mail in mails),
        times=ProcessingTimes(dict(times or {})),
        heartbeat=heartbeat and instant(heartbeat),
        read_at=instant(now),
        written_us=written or 0,
    )
