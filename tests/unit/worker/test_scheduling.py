"""In which order a delay writes its row and publishes its copy, and what a failure leaves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from mailslice.codec import message as codec
from mailslice.model.errors import StoreUnavailable
from mailslice.model.mail import BlobId, EnqueueId, Mail, QueuedMail
from mailslice.model.names import (
    HEADER_DELAY_TOKEN,
    HEADER_FAILURES,
    HEADER_PARKED,
    RabbitNames,
    queue_name,
)
from mailslice.stores.cassandra.own import DelayedMail
from mailslice.worker.dequeue.park import LONGEST_UNACKNOWLEDGED
from mailslice.worker.enqueue.delayed_mails import Delays
from mailslice.worker.io.context import Tuning
from mailslice.worker.io.message_copy import MessageCopy
from mailslice.worker.io.statistics import WorkerStatistics

MAIL = EnqueueId(UUID(int=1))
NOW = datetime(2026, 11, 27, tzinfo=UTC)
ITEM = QueuedMail(MAIL, Mail("m", None, ("a@b.example",)), BlobId("h"), BlobId("b"))
COPY = MessageCopy(codec.encode(ITEM), {}, NOW)


def handed_out(copy: MessageCopy, *, again: bool = True) -> Any:
    """What the broker delivers of this copy; `again`: not for the first time."""
    repeated = again or HEADER_PARKED in copy.headers
    facts = {"timestamp": copy.timestamp, "redelivered": repeated, "ack": lambda: True}
    return SimpleNamespace(body=copy.body, headers=copy.headers, **facts)


class Stores:
    """The row of one mail, the tokens of the copies that were published for it, and what of it was
    published to the work queue.
    """

    def __init__(self) -> None:
        self.row: DelayedMail | None = None
        self.tokens: list[str] = []
        self.queues: list[str] = []
        self.copies: list[MessageCopy] = []
        self.published: list[MessageCopy] = []
        self.before_close: Callable[[], Awaitable[object]] | None = None
        self.away: set[str] = set()
        self.now = NOW
        self.save_seconds = 0
        self.is_done = False
        self.declare: Callable[..., object] = lambda *_: None
        context: Any = SimpleNamespace(
            clock=lambda: self.now,
            tuning=Tuning(),
            queue=queue_name("spool"),
            names=RabbitNames(queue_name("spool")),
            statistics=WorkerStatistics(),
            stores=SimpleNamespace(rabbitmq=SimpleNamespace(declare_delays=self._declare)),
            publish=self._publish,
            is_marked=self._is_marked,
            mark=self._mark,
            discarder=SimpleNamespace(add=self._is_marked),
        )
        self._context = context
        self.delays = self.process()

    def begins(self, now: datetime) -> None:
        """From now on the clock runs."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._context.clock = lambda: now + timedelta(seconds=loop.time() - began)

    def process(self) -> Delays:
        """Of another process."""
        delays = Delays(self._context)
        rows: Any = SimpleNamespace(
            table_exists=self._exist, load=self._load, save=self._save, close=self._close
        )
        delays.rows = rows
        return delays

    def _ask(self, what: str) -> None:
        if what in self.away:
            raise StoreUnavailable(f"{what} fails")

    async def _exist(self) -> bool:
        return True

    def _declare(self, *of: Any) -> None:
        self.declare(*of)

    async def _is_marked(self, _: EnqueueId) -> bool:
        return self.is_done

    async def _mark(self, _: EnqueueId) -> None:
        self._ask("mark")
        self.is_done = True

    async def _publish(self, copy: MessageCopy, queue: str | None = None) -> None:
        self._ask("publish")
        if queue is None:
            self.published.append(copy)
            return
        self.headers = copy.headers
        self.copies.append(copy)
        self.queues.append(queue)
        self.tokens.append(copy.headers[HEADER_DELAY_TOKEN])

    async def _load(self, _: EnqueueId) -> DelayedMail | None:
        self._ask("load")
        row = self.row
        await asyncio.sleep(0)
        return row

    async def _save(self, row: DelayedMail) -> None:
        self._ask("save")
        self.now += timedelta(seconds=self.save_seconds)
        await asyncio.sleep(0)
        self.row = row

    async def _close(self, row: DelayedMail) -> None:
        """At the write time of the row that was read: one that was written since stays."""
        before, self.before_close = self.before_close, None
        if before is not None:
            await before()
        if self.row is not None and self.row.token == row.token:
            self.row = replace(row, published=True)

    async def schedule(self, *, has_message: bool = True, leased: bool = False) -> None:
        due = NOW + timedelta(minutes=30)
        await self.delays.schedule(MAIL, COPY, due, has_message=has_message, leased=leased)

    async def expire(self) -> None:
        """All copies come due, and are looked at, one after the other."""
        for token in list(self.tokens):
            copy = COPY.with_headers({HEADER_DELAY_TOKEN: token})
            await self.delays.on_expired(handed_out(copy, again=False))

    @property
    def has_true_copy(self) -> bool:
        """Whether a copy was published whose token is the row's."""
        return self.row is not None and str(self.row.token) in self.tokens


async def test_no_copy_is_published_while_the_row_before_cannot_be_read() -> None:
    stores = Stores()
    stores.away = {"load"}
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="load"):
            await stores.schedule(has_message=False)
    assert stores.tokens == []


@pytest.mark.parametrize("leased", [False, True])
async def test_a_repetition_leaves_the_row_whose_copy_may_be_all_there_is(*, leased: bool) -> None:
    """Another worker got the message, published the row's copy, and acknowledged (`overtaken`)."""
    stores = Stores()
    stores.away = {"publish"}
    with pytest.raises(StoreUnavailable):
        await stores.schedule(leased=leased)
    assert stores.row is not None
    stores.tokens.append(str(stores.row.token))
    with pytest.raises(StoreUnavailable):
        await stores.schedule(leased=leased)
    assert stores.has_true_copy
    stores.away = set()
    await stores.schedule(leased=leased)
    assert stores.has_true_copy
    assert len(stores.tokens) == 2


@pytest.mark.parametrize("how", ["copy", "old copy", "message"])
async def test_a_mail_that_was_done_when_its_worker_died_is_marked_and_not_delivered_again(
    how: str,
) -> None:
    """Its mark could not be written then. The message came back if it was not acknowledged yet."""
    stores = Stores()
    due = NOW + timedelta(minutes=10)
    await stores.delays.schedule(MAIL, COPY, due, leased=True, done=True)
    stores.now = due
    copy = COPY.with_headers({HEADER_DELAY_TOKEN: stores.tokens[0]})
    message = handed_out(copy if how == "copy" else COPY, again=how == "message")
    if how == "old copy":
        await stores.delays.on_expired(message)
        assert not stores.is_done, "the true copy writes it: one write each ten minutes"
        return
    stores.away = {"mark"}
    for away in (True, False):
        if how == "message":
            done = stores.delays.defer_to_later_attempt(MAIL, message)
        else:
            done = stores.delays.on_expired(message)  # type: ignore[assignment]
        if away:
            with pytest.raises(StoreUnavailable, match="mark"):
                await done
            stores.away = set()
        else:
            assert await done is (True if how == "message" else None)
    assert stores.is_done
    assert (stores.published, len(stores.copies)) == ([], 1)
    await stores.expire()
    assert stores.row is not None
    assert stores.row.published
    assert stores.published == []


@pytest.mark.parametrize(
    ("seconds", "levels"), [(30, (60, 30)), (59, (60, 30)), (59.999, (60,)), (61, (60,))]
)
async def test_a_delay_has_no_two_copies_that_are_due_at_once(
    seconds: float, levels: tuple[int, ...]
) -> None:
    """Two workers would get them at once, each before the other has closed the row, and the mail
    would be published twice. The handler took long: a lease has replaced the message.
    """
    stores, due = Stores(), NOW + timedelta(seconds=seconds)
    await stores.delays.schedule(MAIL, COPY, due, has_message=False)
    assert stores.queues == [f"mailslice-delay-{level}s-spool" for level in levels]


@pytest.mark.parametrize("cause", ["overtaken", "overtaken for long", "killed in a hop"])
async def test_a_copy_and_its_double_in_another_process_publish_the_mail_once(
    monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    """Both wait for the same moment, and closing the row takes its time."""
    monkeypatch.setattr("mailslice.worker.enqueue.delayed_mails.CLOSING_SECONDS", 0.1)
    stores = Stores()
    due = NOW + timedelta(minutes=30 if cause == "overtaken for long" else 10)
    await stores.delays.schedule(MAIL, COPY.with_headers({HEADER_FAILURES: 1}), due)
    if cause == "killed in a hop":
        handed = [handed_out(stores.copies[0], again=again) for again in (False, True)]
    else:
        # Its worker lost the connection: the message that was to be acknowledged comes back.
        assert await stores.process().defer_to_later_attempt(MAIL, handed_out(COPY))
        handed = [handed_out(copy, again=False) for copy in stores.copies]
    if cause == "overtaken for long":
        stores.copies.clear()
        stores.now = due - timedelta(minutes=16)
        await stores.process().on_expired(handed[1])  # it goes into one more level
        handed[1] = handed_out(stores.copies[0], again=False)
    stores.begins(due - timedelta(seconds=0.1))
    stores.before_close = lambda: asyncio.sleep(0.05)
    await asyncio.gather(*(stores.process().on_expired(message) for message in handed))
    assert len(stores.published) == 1
    assert HEADER_PARKED not in stores.published[0].headers


@pytest.mark.parametrize("leased", [False, True])
@pytest.mark.parametrize("is_from_it", [False, True])
@pytest.mark.parametrize("is_due", [False, True])
async def test_an_older_message_leaves_a_delay_that_is_no_failed_attempt_its_pause(
    *, leased: bool, is_from_it: bool, is_due: bool
) -> None:
    """A throttled mail, or one for which a store was away: its message is handed out again. It may
    come from that very delay, which is not closed yet, or a handler may have had it long.
    """
    stores, due = Stores(), NOW + timedelta(minutes=10)
    await stores.delays.schedule(MAIL, COPY, due, leased=leased)
    headers = {HEADER_DELAY_TOKEN: stores.tokens[0]} if is_from_it else {}
    stores.now = due if is_due else NOW
    overtaken = await stores.process().defer_to_later_attempt(
        MAIL, handed_out(COPY.with_headers(headers))
    )
    assert overtaken is not (leased or is_from_it or is_due)
    assert stores.tokens == [stores.tokens[0]] * (1 + overtaken)


async def test_the_row_comes_first_where_no_copy_is_out() -> None:
    """A copy without a row is delivered, beside the message that is not acknowledged yet."""
    stores = Stores()
    stores.away = {"save"}
    with pytest.raises(StoreUnavailable):
        await stores.schedule()
    assert stores.tokens == []


async def test_the_end_of_a_lease_does_not_close_a_delay() -> None:
    """Another worker may have delayed the mail, before this one knows that its link is lost."""
    stores = Stores()
    await stores.schedule()
    await stores.delays.close_row(MAIL, only_lease=True)
    assert stores.row is not None
    assert not stores.row.published
    await stores.schedule(leased=True)
    await stores.delays.close_row(MAIL, only_lease=True)
    assert stores.row.published


async def test_a_copy_that_a_row_gives_says_that_the_mail_may_have_been_in_a_handler() -> None:
    stores = Stores()
    await stores.schedule()
    assert stores.row is not None
    assert await stores.delays.bring_forward(stores.row)
    assert stores.headers[HEADER_FAILURES] == 0


@pytest.mark.parametrize("parked", [False, True])
@pytest.mark.parametrize("processes", [1, 2])
async def test_a_mail_that_comes_back_while_its_held_row_is_being_closed_is_delivered_once(
    *, parked: bool, processes: int
) -> None:
    """Whoever published it closes the row late: by then the copies of that row are worth nothing.

    It was handed to a worker that lost its connection, or could not look it up and parked it.
    """
    stores, overtaken = Stores(), []
    await stores.delays.schedule(MAIL, COPY, NOW, held=True)

    async def comes_back() -> None:
        (again,) = stores.published
        if parked:
            again = MessageCopy.of(handed_out(again)).with_headers({HEADER_PARKED: 1})
        asked = [
            stores.delays.defer_to_later_attempt(MAIL, handed_out(again)) for _ in range(processes)
        ]
        overtaken.extend(await asyncio.gather(*asked))

    stores.before_close = comes_back
    await stores.expire()
    assert overtaken == [True] * processes  # so its message is acknowledged
    assert stores.row is not None
    assert not stores.row.published
    assert stores.has_true_copy
    stores.now += timedelta(minutes=5)
    await stores.expire()
    assert stores.row.published
    assert len(stores.published) == 2


async def test_a_held_mail_that_came_back_twice_waits_for_whoever_has_the_other_message() -> None:
    """Who published it was killed before it closed the row: two processes get message and copy."""
    stores = Stores()
    await stores.delays.schedule(MAIL, COPY, NOW, held=True)
    copy = handed_out(COPY.with_headers({HEADER_DELAY_TOKEN: stores.tokens[0]}), again=False)

    async def killed() -> None:
        raise asyncio.CancelledError

    stores.before_close = killed
    with pytest.raises(asyncio.CancelledError):
        await stores.delays.on_expired(copy)
    (message,) = stores.published
    stores.before_close = lambda: stores.process().defer_to_later_attempt(MAIL, handed_out(message))
    await stores.process().on_expired(copy)
    assert len(stores.published) == 2
    assert stores.row is not None
    assert stores.row.due is not None
    assert stores.row.due - NOW > timedelta(seconds=LONGEST_UNACKNOWLEDGED), "it may get a lease"
    stores.now, stores.is_done = stores.row.due, True
    await stores.expire()
    assert stores.row.published
    assert len(stores.published) == 2


@pytest.mark.parametrize(
    ("headers", "how", "begins"),
    [
        ({}, {}, 6),
        ({HEADER_FAILURES: 0}, {}, 0),
        ({}, {"held": True}, 0),
        ({}, {"leased": True}, 0),
    ],
)
async def test_the_age_of_a_mail_that_was_enqueued_with_a_delay_begins_when_it_is_due(
    headers: dict[str, int], how: dict[str, bool], begins: int
) -> None:
    """Else a relay would give it up at its first failure; a mail that was tried keeps its age."""
    stores, due = Stores(), NOW + timedelta(days=6)
    await stores.delays.schedule(MAIL, COPY.with_headers(headers), due, **how)
    stores.now = due
    copy = COPY.with_headers({**headers, HEADER_DELAY_TOKEN: stores.tokens[0]})
    await stores.delays.on_expired(handed_out(copy, again=False))
    assert [one.timestamp for one in stores.published] == [NOW + timedelta(days=begins)]


async def test_a_message_that_was_to_be_acknowledged_is_dropped_as_the_row_s_mail_is_published():
    """Its worker was killed between the copy of a held mail and the acknowledgement."""
    stores = Stores()
    await stores.delays.schedule(MAIL, COPY, NOW, held=True)
    overtaken = []

    async def comes_back() -> None:
        overtaken.append(await stores.delays.defer_to_later_attempt(MAIL, handed_out(COPY)))

    stores.before_close = comes_back
    await stores.expire()
    assert overtaken == [True]
    await stores.expire()
    assert stores.row is not None
    assert stores.row.published
    assert len(stores.published) == 1


async def test_one_slow_declaration_stops_no_delay_of_a_level_that_is_declared() -> None:
    """A retry, a lease, a park and a hop all go by `declare`."""
    stores, go_on = Stores(), threading.Event()
    levels: list[int] = []

    def declare(_queue: object, declared: tuple[int, ...]) -> None:
        levels.extend(declared)
        if declared == (60,):
            go_on.wait(10)

    stores.declare = declare
    await stores.delays.declare(5)
    slow = [asyncio.create_task(stores.delays.declare(60)) for _ in range(2)]
    await asyncio.sleep(0)  # it has begun
    try:
        await asyncio.wait_for(stores.delays.declare(5), 2)
    finally:
        go_on.set()
        await asyncio.gather(*slow)
    assert levels == [5, 60]


async def test_a_row_that_is_written_slowly_changes_no_level() -> None:
    """A shorter level would have to be declared, and its copy would hop once more."""
    stores, declared = Stores(), []
    stores.declare = lambda _queue, levels: declared.extend(levels)
    stores.save_seconds = 3
    await stores.schedule()
    assert declared == [1800]
    assert stores.queues == ["mailslice-delay-1800s-spool"]
