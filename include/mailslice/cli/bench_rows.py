"""Synthetic rows for benchmarks: a queue of its own, filled with dead and live rows that have no content, and cleared away again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID, uuid4

from mailslice.cli.loop import run
from mailslice.model.clock import system_clock
from mailslice.model.errors import MailsliceError, Refused
from mailslice.model.mail import BlobId, EnqueueId, Mail, Place, QueuedMail, QueueName, ViewRow
from mailslice.model.names import BENCH_NAMES, RabbitNames
from mailslice.model.slices import bucket_of, slice_start

if TYPE_CHECKING:
    from mailslice.model.settings import Settings
    from mailslice.queue.configuration import Shape
    from mailslice.stores import Stores

OWN_QUEUE = "mailslice-bench"
"""The one that is used by default: it belongs to benchmarks even where it exists."""
_REMEDY = "leave out --queue, and bench makes and removes a queue of its own, or name one that does not exist"
_LOCK = "mailslice-bench-lock-"
_LOCKED, _MISSING = 405, 404
_AT_ONCE = 20_000
_ATTRIBUTES = {
    "bench": b'{"serializer":"StringSerializer","value":"synthetic row of mailslice bench"}'
}


class BenchQueue:
    """A queue that holds nothing but synthetic rows, in the slices and buckets of `view`: the stored configuration, not the settings' defaults."""

    def __init__(self, stores: Stores, name: QueueName, view: Shape) -> None:
        self.stores = stores
        self.name = name
        self._view = view

    def fill(self, rows: int, slices: int, *, dead: bool) -> None:
        """Insert rows evenly into `slices` slices that were closed a day ago (dead), or into the present slice (live); dead ones get their marks."""
        window = self._view.window
        newest = slice_start(
            system_clock()
            - (timedelta(days=1) + self._view.largest_window if dead else timedelta(0)),
            window,
        )
        starts = [newest - window * back for back in range(slices if dead else 1)]
        self._first_start(starts[-1])
        made = (self._row(number, starts[number % len(starts)]) for number in range(rows))
        while chunk := list(islice(made, _AT_ONCE)):
            self.stores.tables.written.insert_many(chunk, in_flight=256)
            if dead:
                self.stores.tables.deleted.mark_many(
                    self.name, (row.enqueue_id for row in chunk), in_flight=256
                )

    def empty(self) -> None:
        """Delete all rows and marks of the queue."""
        now_us = int(system_clock().timestamp() * 1_000_000)
        for rows in self.stores.tables.existing:
            for place in list(rows.places(self.name)):
                rows.delete_partition(self.name, place, now_us)
        self.stores.tables.deleted.drop_many(
            self.name, self.stores.tables.deleted.ids(self.name), in_flight=256
        )

    def _first_start(self, oldest: datetime) -> None:
        """Both starts at the oldest slice, as if the queue had always been used; a start of an earlier fill is moved back (nobody else uses this queue)."""
        now_us = int(system_clock().timestamp() * 1_000_000)
        for starts in (self.stores.tables.browse_starts, self.stores.tables.content_starts):
            stored = starts.read(self.name)
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
        item = QueuedMail(
            EnqueueId(uuid4()),
            mail,
            BlobId(str(UUID(int=number))),
            BlobId(str(UUID(int=number + 1))),
        )
        return ViewRow(
            self.name, Place(start, bucket_of(name, self._view.bucket_counts[-1])), start, item
        )


@contextmanager
def bench_queue(
    settings: Settings,
    name: QueueName,
    *,
    synthetic: bool,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[BenchQueue]:
    """The queue, without a mail; made for the benchmark when missing, and emptied and removed again then. What a stopped benchmark left is taken off.

    `synthetic`: rows are inserted and all are deleted, marks too, and the starts move: that is only done to a queue that nobody else can have used,
    one that was made for it, or the default one. Refused otherwise, and whenever the queue holds somebody's mails, also at the end, or is consumed, or
    another benchmark uses it.
    """
    from mailslice.cli.door import guard
    from mailslice.queue import directory
    from mailslice.queue.configuration import ConfigurationGuard, shape
    from mailslice.stores import open_stores

    with _alone_on(settings, name), open_stores(replace_shared(settings)) as stores:
        known = name in directory.known(stores)
        ours = not known or name == OWN_QUEUE
        if synthetic and not ours:
            raise Refused(
                f"queue {name} exists: this benchmark deletes all rows of its queue; {_REMEDY}"
            )
        if not known:
            directory.create(stores, name)
        guard(stores)
        queue = BenchQueue(
            stores, name, shape(ConfigurationGuard(stores.tables, stores.settings), stores.settings)
        )
        if _in_broker(settings, name).consumers:
            raise Refused(
                f"queue {name} is being consumed, perhaps by another benchmark: {_REMEDY}"
            )
        _refuse_mails(stores, name)
        _take_left(settings, name, say)
        try:
            if ours:
                queue.empty()
            yield queue
        except BaseException:
            try:
                _cleared(queue, settings, say, ours=ours)
            except MailsliceError as error:  # what made it end is raised, and this told
                say(f"queue {name} is left as it is: {error}")
            raise
        _cleared(queue, settings, say, ours=ours)


def _cleared(
    queue: BenchQueue, settings: Settings, say: Callable[[str], None], *, ours: bool
) -> None:
    """Nothing of the benchmark stays. Refused, and nothing is deleted but its own mails, when the queue holds mails of others."""
    stores, name = queue.stores, queue.name
    _take_left(settings, name, say)
    _refuse_mails(stores, name)
    if ours:
        queue.empty()
        _forget(stores, name)
        _remove(stores, name)


@contextmanager
def _alone_on(settings: Settings, name: QueueName) -> Iterator[None]:
    """Refused while another benchmark has this queue. The broker ends it with the connection; without heartbeats, for nobody would answer them."""
    from pika.exceptions import ChannelClosedByBroker

    from mailslice.stores.rabbitmq.connection import PIKA_ERRORS, blocking_connection, meaning

    stack = (
        ExitStack()
    )  # closed by hand: what ends the block is not the broker's, and must not be taken for it
    connection = stack.enter_context(blocking_connection(settings.rabbitmq, heartbeat=0))
    try:
        try:
            connection.channel().queue_declare(f"{_LOCK}{name}", exclusive=True)
        except ChannelClosedByBroker as error:
            if error.reply_code == _LOCKED:
                raise Refused(
                    f"another benchmark uses queue {name}: wait for its end, or name another --queue"
                ) from None
            raise meaning(error, settings.rabbitmq) from error
        yield
    finally:
        with suppress(*PIKA_ERRORS, MailsliceError):
            stack.close()


def replace_shared(settings: Settings) -> Settings:
    """Not shared: nobody but the benchmark works on its queue, so marks go with their rows."""
    return settings.model_copy(
        update={"queue": settings.queue.model_copy(update={"shared": False})}
    )


def _refuse_mails(stores: Stores, name: QueueName) -> None:
    from mailslice.queue.filters import MailFilter
    from mailslice.queue.mail_queue import MailQueue

    rows = MailQueue(stores, name, system_clock).browse(MailFilter(), None)
    foreign = next(
        (row.item.mail.name for row in rows if not row.item.mail.name.startswith(BENCH_NAMES)), None
    )
    if foreign is not None:
        raise _holds(name, foreign)


def _take_left(settings: Settings, name: QueueName, say: Callable[[str], None]) -> None:
    """A benchmark's messages, when there are any: a run that was stopped, or failed, leaves them, and blobs that nobody else would ever delete."""
    from mailslice.worker.apart import apart

    ready = _in_broker(settings, name).ready
    if not ready:
        return
    say(f"taking {ready} mails off queue {name}, which a benchmark that was stopped has left")
    if (foreign := apart(_left, settings, name)) is not None:
        raise _holds(name, foreign)


def _left(settings: Settings, name: QueueName) -> str | None:
    from mailslice.worker.bench_left import take_left

    return run(take_left(settings, name))


class _InBroker(NamedTuple):
    ready: int
    consumers: int


def _in_broker(settings: Settings, name: QueueName) -> _InBroker:
    """What the broker itself says; the figures of its management API are some seconds old."""
    from mailslice.stores.rabbitmq.connection import blocking_connection

    with blocking_connection(settings.rabbitmq) as connection:
        found = (
            connection.channel().queue_declare(RabbitNames(name).work_queue, passive=True).method
        )
    return _InBroker(found.message_count, found.consumer_count)


def _holds(name: QueueName, foreign: str) -> Refused:
    return Refused(f"queue {name} holds mails that are not a benchmark's ({foreign!r}): {_REMEDY}")


def _forget(stores: Stores, name: QueueName) -> None:
    """Nothing of the benchmark's runs stays in the ledger or among the artifacts, where `report last` would find it."""
    from mailslice.duty.artifacts import artifacts, queue_folder

    own = stores.own
    for row in own.runs.list(None, name, 10_000):
        own.runs.delete(row)
        artifacts(stores.settings).remove_folder(queue_folder(row.duty, name))
    own.slice_statistics.delete_before(name, system_clock())
    own.queue_samples.delete(name)


def _remove(stores: Stores, name: QueueName) -> None:
    """Remove the exchanges and queues that were made for the benchmark, unless they are used meanwhile or hold messages."""
    from pika.exceptions import ChannelClosedByBroker

    from mailslice.stores.rabbitmq.connection import blocking_connection

    names = RabbitNames(name)
    classic = (
        not stores.settings.queue.quorum
    )  # a broker refuses both conditions for quorum queues: for those, what was just seen has to do
    with blocking_connection(stores.settings.rabbitmq) as connection:
        for queue in (
            names.work_queue,
            names.dead_letter_queue,
            *stores.management.waiting_queues(name),
        ):
            try:
                found = connection.channel().queue_declare(queue, passive=True).method
                if found.message_count or found.consumer_count:
                    return
                connection.channel().queue_delete(queue, if_unused=classic, if_empty=classic)
            except ChannelClosedByBroker as error:
                if error.reply_code != _MISSING:
                    return
        for exchange in (names.exchange, names.dead_letter_exchange, names.hop_exchange):
            connection.channel().exchange_delete(exchange)
