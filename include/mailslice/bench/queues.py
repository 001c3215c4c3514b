"""A queue that only a benchmark uses: filled with rows without content, and cleared again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timedelta
from itertools import chain, islice
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from pika.exceptions import ChannelClosedByBroker

from mailslice.admin import queues
from mailslice.admin.filters import MailFilter
from mailslice.admin.mail_queue import MailQueue
from mailslice.bench.clearing import delete_delayed, delete_sample, drop_all_marks
from mailslice.bench.isolated import isolated
from mailslice.bench.own_mails import BENCH_NAMES, take_stale
from mailslice.maintenance.artifacts import artifacts, queue_folder
from mailslice.model.clock import system_clock
from mailslice.model.errors import MailsliceError, Refused
from mailslice.model.mail import BlobId, EnqueueId, Mail, Partition, QueuedMail, QueueName, ViewRow
from mailslice.model.names import DELETED_MAILS, RabbitNames
from mailslice.model.slices import bucket_of, slice_start
from mailslice.stores import open_stores
from mailslice.stores.rabbitmq.connection import (
    PIKA_ERRORS,
    blocking_connection,
    is_missing,
    translated,
)
from mailslice.view.configuration import ConfigurationGuard, view_shape

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel

    from mailslice.model.settings import Settings
    from mailslice.stores import Stores
    from mailslice.stores.cassandra.session import CassandraSession
    from mailslice.view.configuration import Shape

ProgressPrinter = Callable[[str], None]
OWN_QUEUE = QueueName("mailslice-bench")
"""The default queue. It belongs to benchmarks even if it exists before."""
_REMEDY = (
    "leave out --queue, and bench makes and removes a queue of its own, or name one that does not "
    "exist"
)
_LOCK = "mailslice-bench-lock-"
_LOCKED = 405
_AT_ONCE = 20_000
_A_REQUEST = 10
_INSERTS_IN_FLIGHT = 64
_ATTRIBUTES = {
    "bench": b'{"serializer":"StringSerializer","value":"synthetic row of mailslice bench"}'
}


class BenchQueue:
    """A queue of synthetic rows. `view` has the slices and buckets of the stored configuration."""

    def __init__(self, stores: Stores, name: QueueName, view: Shape) -> None:
        self.stores = stores
        self.name = name
        self._view = view

    def fill(self, rows: int, slices: int, *, dead: bool) -> None:
        """Inserts dead rows, with marks, evenly into `slices` slices that were closed a day ago.

        Inserts live rows into the present slice.
        """
        window = self._view.window
        age = timedelta(days=1) + self._view.largest_window if dead else timedelta(0)
        newest = slice_start(system_clock() - age, window)
        starts = [newest - window * back for back in range(slices if dead else 1)]
        self._first_start(starts[-1])
        tables = self.stores.tables
        made = (self._row(number, starts[number % len(starts)]) for number in range(rows))
        while chunk := list(islice(made, _AT_ONCE)):
            tables.written.insert_many(chunk, in_flight=256)
            if dead:
                self.mark(row.enqueue_id for row in chunk)

    def mark(self, ids: Iterable[EnqueueId]) -> None:
        """Insert deleted marks."""
        table = f"{self.stores.settings.cassandra.keyspace}.{DELETED_MAILS}"
        insert = f"INSERT INTO {table} (queuename, enqueueid) VALUES (?, ?)"
        insert_all(self.stores.cassandra, insert, ([self.name, mail_id] for mail_id in ids))

    def empty(self) -> None:
        """Delete all rows and marks of the queue."""
        tables, now_us = self.stores.tables, int(system_clock().timestamp() * 1_000_000)
        for rows in tables.existing:
            for partition in list(rows.partitions(self.name)):
                rows.delete_partition_future(self.name, partition, now_us).result()
        drop_all_marks(tables.deleted, self.name)

    def _first_start(self, oldest: datetime) -> None:
        """Sets both starts to the oldest slice. A later start of an earlier fill moves back."""
        now_us = int(system_clock().timestamp() * 1_000_000)
        for starts in (self.stores.tables.browse_starts, self.stores.tables.content_starts):
            stored = starts.get(self.name)
            if stored is None or stored.value > oldest:
                starts.write(self.name, oldest, max(now_us, stored.written_us + 1 if stored else 0))

    def _row(self, number: int, start: datetime) -> ViewRow:
        name = f"{BENCH_NAMES}{number}"
        mail = Mail(
            name,
            "alice@bench.example",
            (f"bob{number % 97}@bench.example",),
            attributes=_ATTRIBUTES,
            last_updated_ns=int(start.timestamp()) * 10**9,
        )
        blobs = (BlobId(str(UUID(int=number + part))) for part in (0, 1))
        partition = Partition(start, bucket_of(name, self._view.bucket_counts[-1]))
        item = QueuedMail(EnqueueId(uuid4()), mail, *blobs)
        return ViewRow(self.name, partition, start, item)


@contextmanager
def bench_queue(
    settings: Settings,
    name: QueueName,
    *,
    synthetic: bool,
    print_progress: ProgressPrinter = lambda _: None,
) -> Iterator[BenchQueue]:
    """The queue without mails. Creates it if it is missing, and then removes it at the end.

    Takes off the mails that a stopped benchmark left. `synthetic`: the benchmark deletes all rows
    and marks and moves the starts; allowed only in the default queue or a new one. Raises Refused
    otherwise, and if the queue has foreign mails, even at the end, or is consumed, or another
    benchmark uses it.
    """
    with _lock(settings, name), open_stores(not_shared(settings)) as stores:
        known = name in stores.rabbitmq.names()
        is_own = not known or name == OWN_QUEUE
        if synthetic and not is_own:
            raise Refused(
                f"queue {name} exists: this benchmark deletes all rows of its queue; {_REMEDY}"
            )
        if is_own:
            queues.create(stores, name)
        ConfigurationGuard(stores.tables, stores.settings).agreed()
        view = view_shape(stores)
        queue = BenchQueue(stores, name, view)
        if _in_broker(settings, name)[1]:
            raise Refused(
                f"queue {name} is being consumed, perhaps by another benchmark: {_REMEDY}"
            )
        _refuse_mails(stores, name)
        _take_stale(settings, name, print_progress)
        try:
            if is_own:
                queue.empty()
            yield queue
        except BaseException:
            try:
                _clear(queue, settings, print_progress, is_own=is_own)
            except MailsliceError as error:  # the error of the block is raised; this one is printed
                print_progress(f"queue {name} is left as it is: {error}")
            raise
        _clear(queue, settings, print_progress, is_own=is_own)


def _clear(
    queue: BenchQueue, settings: Settings, print_progress: ProgressPrinter, *, is_own: bool
) -> None:
    """Deletes everything of the benchmark.

    Raises Refused if the queue has foreign mails; it then deletes nothing but its own mails.
    """
    stores, name = queue.stores, queue.name
    _take_stale(settings, name, print_progress)
    _refuse_mails(stores, name)
    if is_own:
        queue.empty()
        _remove_own_rows(stores, name)
        _remove(stores, name)


@contextmanager
def _lock(settings: Settings, name: QueueName) -> Iterator[None]:
    """A lock on the queue; Refused if another benchmark has it. It ends with the connection."""
    stack = ExitStack()  # closed by hand: an error of the block is not translated
    # Without heartbeats: nobody would answer them.
    connection = stack.enter_context(blocking_connection(settings.rabbitmq, heartbeat=0))
    try:
        try:
            connection.channel().queue_declare(f"{_LOCK}{name}", exclusive=True)
        except ChannelClosedByBroker as error:
            if error.reply_code == _LOCKED:
                raise Refused(
                    f"another benchmark uses queue {name}: wait for its end, or name another "
                    "--queue"
                ) from None
            raise translated(error, settings.rabbitmq) from error
        yield
    finally:
        with suppress(*PIKA_ERRORS, MailsliceError):
            stack.close()


def not_shared(settings: Settings) -> Settings:
    """Settings of a queue that James does not share: a cleanup drops marks with their rows."""
    return settings.model_copy(
        update={"queue": settings.queue.model_copy(update={"shared": False})}
    )


def _refuse_mails(stores: Stores, name: QueueName) -> None:
    for row in MailQueue(stores, name, system_clock).browse(MailFilter(), None):
        if not row.item.mail.name.startswith(BENCH_NAMES):
            raise _foreign_mails(name, row.item.mail.name)


def _take_stale(settings: Settings, name: QueueName, print_progress: ProgressPrinter) -> None:
    """Completes the mails of a stopped or failed run, whose blobs nobody else would delete."""
    ready = _in_broker(settings, name)[0]
    if not ready:
        return
    print_progress(
        f"taking {ready} mails off queue {name}, which a benchmark that was stopped has left"
    )
    if (foreign := isolated(take_stale, settings, name)) is not None:
        raise _foreign_mails(name, foreign)


def _in_broker(settings: Settings, name: QueueName) -> tuple[int, int]:
    """(ready messages, consumers), asked by AMQP: the management API is some seconds behind."""
    with blocking_connection(settings.rabbitmq) as connection:
        return _state(connection.channel(), RabbitNames(name).work_queue)


def _state(channel: BlockingChannel, queue: str) -> tuple[int, int]:
    state = channel.queue_declare(queue, passive=True).method
    return state.message_count, state.consumer_count


def _foreign_mails(name: QueueName, foreign: str) -> Refused:
    return Refused(f"queue {name} holds mails that are not a benchmark's ({foreign!r}): {_REMEDY}")


def _remove_own_rows(stores: Stores, name: QueueName) -> None:
    """Deletes the queue's rows in mailslice's own tables, and the artifacts of its runs."""
    own = stores.own
    for mail in own.delayed_mails.rows(name):
        delete_delayed(stores, name, mail.enqueue_id, mail.written_us)
    for row in own.runs.list(None, name, 10_000):
        own.runs.delete(row)
        artifacts(stores.settings).remove_folder(queue_folder(row.duty, name))
    own.slice_statistics.delete_before(name, system_clock())
    delete_sample(stores, name)


def _remove(stores: Stores, name: QueueName) -> None:
    """Deletes the queues and exchanges, unless a queue has messages or consumers by now."""
    names = RabbitNames(name)
    # Quorum queues refuse if_unused and if_empty: the check of `_state` must suffice for them.
    classic = not stores.settings.queue.quorum
    waiting = stores.management.waiting_queues(name)
    with blocking_connection(stores.settings.rabbitmq) as connection:
        for queue in (names.work_queue, names.dead_letter_queue, *waiting):
            try:
                if any(_state(connection.channel(), queue)):
                    return
                connection.channel().queue_delete(queue, if_unused=classic, if_empty=classic)
            except ChannelClosedByBroker as error:
                if not is_missing(error):
                    return
        for exchange in (names.exchange, names.dead_letter_exchange, names.hop_exchange):
            connection.channel().exchange_delete(exchange)


def insert_all(session: CassandraSession, cql: str, rows: Iterable[Sequence[object]]) -> int:
    """Runs an INSERT for each row, ten a batch: Cassandra does not warn of so small a batch.

    Returns the number of rows.
    """
    batch = session.prepare(f"BEGIN UNLOGGED BATCH {'; '.join([cql] * _A_REQUEST)}; APPLY BATCH")
    iterator, rest = iter(rows), list[Sequence[object]]()

    def full() -> Iterable[list[object]]:
        while len(chunk := list(islice(iterator, _A_REQUEST))) == _A_REQUEST:
            yield list(chain.from_iterable(chunk))
        rest.extend(chunk)

    return _A_REQUEST * session.run_many(batch, full(), _INSERTS_IN_FLIGHT) + session.run_many(
        session.prepare(cql), rest, _INSERTS_IN_FLIGHT
    )
