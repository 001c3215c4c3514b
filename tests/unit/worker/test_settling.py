"""A delivery that is settled twice at once: one settlement is done, both learn its result."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from mailslice.codec.message import decode
from mailslice.codec.reports import Failure
from mailslice.model.clock import system_clock
from mailslice.model.errors import StoreUnavailable, TakenOver, Unconfirmed
from mailslice.model.mail import BlobId, EnqueueId, Mail, QueuedMail
from mailslice.model.names import HEADER_FAILURES, HEADER_PARKED, RabbitNames, queue_name
from mailslice.model.stages import MailStage, Stage, decide
from mailslice.stores.cassandra.own import WorkerRecord
from mailslice.stores.rabbitmq.consumer import Message
from mailslice.testing.memory import MemoryMailStages
from mailslice.worker.dequeue.delivery import Delivery, WorkerState
from mailslice.worker.dequeue.dequeuer import Deliveries
from mailslice.worker.events import EventLog, MailEvents
from mailslice.worker.heartbeat import Recorder
from mailslice.worker.io.content_loader import ContentBudget
from mailslice.worker.io.message_copy import MessageCopy
from mailslice.worker.io.statistics import WorkerStatistics
from mailslice.worker.outcome import Bounce, Disposition, Reject, Retry
from mailslice.worker.process.consume_loop import Consumed
from mailslice.worker.process.handler_pool import HandlerPool, Policy
from mailslice.worker.process.handler_spec import checked_handler

ITEM = QueuedMail(
    EnqueueId(UUID(int=1)), Mail("m", None, ("a@b.example",)), BlobId("h"), BlobId("b")
)
FAILURES = [Failure("a@b.example", "5.1.1", "no such user")]


class Stores:
    """What a settlement asks of its stores; the marks and dead letters take a turn of the loop."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fails = 0
        self.is_marked = self.marks_away = False
        self.state = WorkerState(
            SimpleNamespace(  # type: ignore[arg-type]
                names=RabbitNames(queue_name("spool")),
                queue=queue_name("spool"),
                clock=lambda: SimpleNamespace(timestamp=lambda: 0),
                events=MailEvents(queue_name("spool"), "", None),
                statistics=WorkerStatistics(),
                mark=lambda _: self._take("mark"),
                is_marked=lambda _: self._looked_up(),
                publish_dead_letter=lambda _: self._take("dead letter"),
                discarder=SimpleNamespace(add=lambda _: self._take("blobs")),
            ),
            None,  # type: ignore[arg-type]
        )

    async def _take(self, what: str) -> None:
        await asyncio.sleep(0)
        if self.fails:
            self.fails -= 1
            raise StoreUnavailable("away")
        self.asked.append(what)

    async def forget(self) -> None:
        await self._take("delay closed")

    async def _looked_up(self) -> bool:
        if self.marks_away:
            raise StoreUnavailable("a shard of Cassandra does not answer")
        return self.is_marked

    def _ack(self) -> bool:
        self.asked.append("ack")
        return True

    def delivery(self, item: QueuedMail = ITEM, **given: Any) -> Delivery:
        link = SimpleNamespace(is_open=True, flushed=lambda: asyncio.sleep(0))
        message: Any = SimpleNamespace(
            headers={},
            body=b"m",
            timestamp=None,
            redelivered=False,
            arrived=0.0,
            link=link,
            ack=self._ack,
            requeue=self._ack,
        )
        reservation: Any = SimpleNamespace(release=lambda: None)
        record = None
        if self.state.in_doubt is not None:
            recipients, now = item.mail.recipients, system_clock()
            record = decide(None, item.enqueue_id, recipients, by="me", now=now).record
        how: Any = {"content": b"", "reservation": reservation, "record": record, **given}
        return Delivery(self.state, message, item, **how)


@pytest.mark.parametrize("second", ["complete", "reject"])
async def test_it_is_settled_once_by_the_first(second: str) -> None:
    stores = Stores()
    delivery = stores.delivery()
    other = delivery.complete() if second == "complete" else delivery.reject("no")
    became = await asyncio.gather(delivery.complete(), other)
    assert became == [Disposition.COMPLETED] * 2
    assert stores.asked == ["mark", "ack", "blobs"]
    assert await delivery.requeue() is Disposition.COMPLETED
    assert (stores.state.in_hand, delivery.settled.is_set()) == ({}, True)


async def test_a_settlement_that_fails_leaves_the_mail_to_the_next() -> None:
    stores = Stores()
    stores.fails = 1
    delivery = stores.delivery()
    first, second = await asyncio.gather(
        delivery.complete(), delivery.reject("no"), return_exceptions=True
    )
    assert isinstance(first, StoreUnavailable)
    assert second is Disposition.REJECTED
    assert stores.asked == ["dead letter", "ack"]


async def test_a_retry_of_a_mail_without_recipients_is_a_requeue_and_no_completion() -> None:
    stores = Stores()
    delivery = stores.delivery(replace(ITEM, mail=replace(ITEM.mail, recipients=())))
    assert await delivery.retry() is Disposition.RETRIED
    assert stores.asked == ["ack"], "given back: no mark, and its blobs stay"
    assert await stores.delivery().retry(()) is Disposition.COMPLETED


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_mail_that_was_deleted_meanwhile_is_not_bounced(*, deleted: bool) -> None:
    stores = Stores()
    stores.is_marked = deleted

    async def report(*_: object) -> bool:
        stores.asked.append("report")
        return True

    stores.state.reporter = SimpleNamespace(report=report)  # type: ignore[assignment]
    became = await stores.delivery().bounce("no such user", FAILURES)
    assert became is (Disposition.DROPPED if deleted else Disposition.BOUNCED)
    assert stores.asked == (["ack"] if deleted else ["report", "mark", "ack", "blobs"])


@pytest.mark.parametrize("lost", [False, True])
async def test_a_delayed_mail_of_a_lost_link_has_no_message(
    monkeypatch: pytest.MonkeyPatch, *, lost: bool
) -> None:
    """Another worker may have delayed it anew: its copy is void once the row is written over."""
    has_message: list[bool] = []

    async def publish(*_: object, **how: Any) -> None:
        has_message.append(how["has_message"])

    monkeypatch.setattr("mailslice.worker.dequeue.delivery.publish_retry", publish)
    delivery = Stores().delivery()
    delivery.message.link.is_open = not lost  # type: ignore[misc]
    assert await delivery.retry(after=timedelta(seconds=30)) is Disposition.RETRIED
    assert has_message == [not lost]


@pytest.mark.parametrize(
    ("how", "failures"),
    [
        ({}, 3),
        ({"counted": False}, 2),
        ({"throttled": True}, 2),
        ({"after": None, "recipients": ["c@d.example"]}, 2),
    ],
)
async def test_the_message_of_a_retry_says_that_the_mail_was_in_a_handler(
    monkeypatch: pytest.MonkeyPatch, how: dict[str, Any], failures: int
) -> None:
    told: list[dict[str, object]] = []

    async def publish(*_: object, **how: Any) -> None:
        told.append(how["headers"])

    monkeypatch.setattr("mailslice.worker.dequeue.delivery.publish_retry", publish)
    stores = Stores()
    delays: Any = SimpleNamespace(close_row=lambda *_, **__: stores.forget())
    stores.state.delays = delays
    for before, after in (({}, failures - 2), ({HEADER_FAILURES: 2}, failures)):
        recipients = ("a@b.example", "c@d.example")
        delivery = stores.delivery(replace(ITEM, mail=replace(ITEM.mail, recipients=recipients)))
        delivery.message.headers.update(before)
        delivery.failures = before.get(HEADER_FAILURES, 0)
        await delivery.retry(**{"after": timedelta(seconds=30), **how})
        assert told.pop()[HEADER_FAILURES] == after


@pytest.mark.parametrize("lost", [False, True])
async def test_a_rejected_mail_of_a_lost_link_leaves_the_delay_to_who_has_the_message(
    *, lost: bool
) -> None:
    stores = Stores()
    delays: Any = SimpleNamespace(close_row=lambda *_, **__: stores.forget())
    stores.state.delays = delays
    delivery = stores.delivery()
    delivery.message.redelivered = True  # type: ignore[misc]
    delivery.message.link.is_open = not lost  # type: ignore[misc]
    assert await delivery.reject("no such user") is Disposition.REJECTED
    assert stores.asked == ["dead letter", "ack", *([] if lost else ["delay closed"])]


async def test_a_reject_closes_no_delay_while_there_is_no_dead_letter() -> None:
    """Its link may be lost without its knowledge: then the delay is that of the worker to which
    RabbitMQ gave the message, and the mail has nothing else.
    """
    stores = Stores()
    delays: Any = SimpleNamespace(close_row=lambda *_, **__: stores.forget())
    stores.state.delays = delays

    async def away(_: object) -> None:
        raise StoreUnavailable("RabbitMQ does not answer")

    stores.state.context.publish_dead_letter = away  # type: ignore[method-assign]
    delivery = stores.delivery()
    delivery.message.redelivered = True  # type: ignore[misc]
    with pytest.raises(StoreUnavailable):
        await delivery.reject("no such user")
    assert stores.asked == []


async def test_a_dead_letter_whose_delay_cannot_be_closed_is_settled() -> None:
    stores = Stores()

    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("a shard of Cassandra does not answer")

    delays: Any = SimpleNamespace(close_row=away)
    stores.state.delays = delays
    delivery = stores.delivery()
    delivery.message.redelivered = True  # type: ignore[misc]
    assert await delivery.reject("no such user") is Disposition.REJECTED
    assert (stores.asked, delivery.settled.is_set()) == (["dead letter", "ack"], True)


async def test_a_completed_mail_closes_the_lease_whose_copy_was_not_confirmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There may be no copy that would close it."""
    monkeypatch.setattr("mailslice.worker.dequeue.lease.LENGTH", 0)
    stores = Stores()

    async def schedule(*_: object, **__: object) -> None:
        raise Unconfirmed("nobody confirms")

    delays: Any = SimpleNamespace(schedule=schedule, close_row=lambda *_, **__: stores.forget())
    stores.state.delays = delays
    stores.state.context.clock = lambda: 0  # type: ignore[assignment,return-value]
    delivery = stores.delivery()
    delivery.handed_at, extended = 0.0, asyncio.all_tasks()
    delivery.extend_when_due()
    await asyncio.wait(asyncio.all_tasks() - extended)
    assert await delivery.complete() is Disposition.COMPLETED
    assert stores.asked == ["mark", "delay closed", "ack", "blobs"]


async def answered(given: Any = None, *_: object, **__: object) -> Any:
    return given


async def recorded(stores: Stores, count: int = 1) -> list[WorkerRecord]:
    """The worker's first records, so many of them, and its last word."""
    records: list[WorkerRecord] = []
    written = asyncio.Event()

    def save(_queue: object, record: WorkerRecord) -> None:
        records.append(record)
        if len(records) == count:
            written.set()

    table = SimpleNamespace(save_future=save)
    context: Any = stores.state.context
    context.clock, context.worker = system_clock, "me"
    context.bridge = SimpleNamespace(rows=answered)
    context.open_table = lambda _: answered(table)
    every = SimpleNamespace(record_every=timedelta(milliseconds=10))
    context.settings = SimpleNamespace(worker=every, queue=SimpleNamespace(shared=True))
    recorder = Recorder(stores.state, lambda: ())
    recorder.start()
    await written.wait()
    await recorder.close()
    return records


async def test_a_bounced_mail_is_recorded_as_settled_and_not_as_completed() -> None:
    stores = Stores()
    reporter: Any = SimpleNamespace(report=lambda *_: answered(True))
    stores.state.reporter = reporter
    failures = [Failure("a@b.example", "5.1.1", "no")]
    for settle in (lambda one: one.complete(), lambda one: one.bounce("no such user", failures)):
        delivery = stores.delivery()
        delivery.handed_at = 0.0
        await settle(delivery)
    records = await recorded(stores)
    assert (records[0].settled, records[0].completed) == (2, 1)
    assert list(records[0].done) == [ITEM.enqueue_id] * 2, "both are done: `queue move` has to know"


async def test_the_queue_has_been_idle_only_since_the_last_mail_was_settled() -> None:
    """The next one comes after the acknowledgement, where the window has room for one alone."""
    stores = Stores()
    stores.state.context.settings = SimpleNamespace(rabbitmq=None)  # type: ignore[misc, assignment]
    deliveries = Deliveries(stores.state, 1, None)
    deliveries.connected = True
    delivery = stores.delivery()
    assert deliveries.idle_seconds > 1, "nothing has come since the clock began"
    await delivery.complete()
    assert deliveries.idle_seconds < 1


async def test_the_message_of_a_mail_that_is_long_in_its_handler_is_encoded_once() -> None:
    stores = Stores()
    stores.delivery().handed_at = 0.0
    first, second = [one.in_flight[0].message for one in (await recorded(stores, 2))[:2]]
    assert first is not None
    assert first is second


async def test_a_mail_whose_mark_cannot_be_looked_up_is_tried_again_and_frees_its_handler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its next delivery looks the mark up, too."""
    stores = Stores()
    monkeypatch.setattr("mailslice.worker.dequeue.delivery.publish_retry", answered)
    stores.marks_away = True
    assert await stores.delivery().retry(after=timedelta(seconds=30)) is Disposition.RETRIED
    assert stores.asked == ["ack"]


@pytest.mark.parametrize("row", ["away", "absent", "closed", "open"])
@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("delay", [timedelta(seconds=30), None])
async def test_a_retry_that_no_store_takes_is_parked_and_frees_its_handler(
    monkeypatch: pytest.MonkeyPatch, *, row: str, lost: bool, delay: timedelta | None
) -> None:
    """Where its row is open a copy of it may be out, and a lost message is another worker's."""
    stores = Stores()
    parked: list[MessageCopy] = []
    acknowledged: list[int] = []

    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("a shard of Cassandra does not answer")

    async def put(copy: MessageCopy, level: int | None) -> None:
        assert level is None
        parked.append(copy)

    async def load(_: EnqueueId) -> Any:
        if row == "away":
            await away()
        return None if row == "absent" else SimpleNamespace(published=row == "closed")

    monkeypatch.setattr("mailslice.worker.dequeue.delivery.publish_retry", away)
    monkeypatch.setattr("mailslice.worker.dequeue.delivery.RETRY_SECONDS", 0.1)
    rows = SimpleNamespace(load=load)
    stores.state.delays = SimpleNamespace(put=put, rows=rows)  # type: ignore[assignment]
    item = replace(ITEM, mail=replace(ITEM.mail, recipients=("a@b.example", "c@d.example")))
    delivery = stores.delivery(item)
    channel = SimpleNamespace(basic_ack=acknowledged.append)
    link: Any = SimpleNamespace(is_open=not lost, flushed=lambda: asyncio.sleep(0), channel=channel)
    headers = {HEADER_FAILURES: 3}
    delivery.lease.message = Message(link, 7, b"m", headers, None, redelivered=False, arrived=0.0)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await delivery.retry(["c@d.example"], delay)
    await asyncio.sleep(0.15)
    if row == "open" or lost:
        with pytest.raises(StoreUnavailable):
            await delivery.retry(["c@d.example"], delay)
        assert (parked, acknowledged) == ([], [])
        return
    became = await delivery.retry(["c@d.example"], delay)
    assert (became, acknowledged) == (Disposition.RETRIED, [7])
    assert delivery.settled.is_set()
    assert decode(parked[0].body).mail.recipients == ("c@d.example",)
    assert parked[0].headers == {HEADER_FAILURES: 3, HEADER_PARKED: 1}


async def test_a_message_that_is_adopted_while_the_lost_one_is_parked_is_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would stay unacknowledged until RabbitMQ closes the channel."""
    stores = Stores()
    acknowledged: list[int] = []

    def message(tag: int, *, is_open: bool) -> Message:
        channel = SimpleNamespace(basic_ack=acknowledged.append)
        link: Any = SimpleNamespace(
            is_open=is_open, flushed=lambda: asyncio.sleep(0), channel=channel
        )
        return Message(link, tag, b"m", {}, None, redelivered=tag > 1, arrived=0.0)

    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("a shard of Cassandra does not answer")

    async def put(*_: object) -> None:
        first.link.is_open = False  # type: ignore[misc]
        monkeypatch.setattr(delivery.lease, "extend_when_due", lambda: None)
        assert delivery.lease.adopt(message(2, is_open=True))

    monkeypatch.setattr("mailslice.worker.dequeue.delivery.publish_retry", away)
    monkeypatch.setattr("mailslice.worker.dequeue.delivery.RETRY_SECONDS", 0.0)
    rows = SimpleNamespace(load=lambda _: answered())
    stores.state.delays = SimpleNamespace(put=put, rows=rows)  # type: ignore[assignment]
    delivery = stores.delivery()
    first = delivery.lease.message = message(1, is_open=True)
    assert await delivery.retry(after=timedelta(seconds=30)) is Disposition.RETRIED
    assert acknowledged == [2]


@pytest.mark.parametrize("mails", [1, 500])
async def test_a_completion_that_no_store_takes_has_its_message_replaced_by_a_lease(
    monkeypatch: pytest.MonkeyPatch, *, mails: int
) -> None:
    """The window would be full of such mails, although other partitions take their marks. More than
    five hundred stay in it: the worker's record would not list them all.
    """
    stores, acknowledged, leased = Stores(), [], []

    async def schedule(*_: object, **how: bool) -> None:
        leased.append(how)

    rows = SimpleNamespace(load=lambda _: answered())
    stores.state.delays = SimpleNamespace(schedule=schedule, rows=rows)  # type: ignore[assignment]
    stores.state.context.clock = lambda: datetime.now(UTC)
    monkeypatch.setattr("mailslice.worker.dequeue.delivery.UNSTORED_SECONDS", 0.1)
    delivery = stores.delivery()
    delivery.hand_out()
    channel = SimpleNamespace(basic_ack=acknowledged.append)
    link: Any = SimpleNamespace(is_open=True, flushed=lambda: asyncio.sleep(0), channel=channel)
    delivery.lease.message = Message(link, 7, b"m", {}, None, redelivered=False, arrived=0.0)
    for number in range(502, 1002):  # those in the window do not count
        waiting = stores.delivery(replace(ITEM, enqueue_id=EnqueueId(UUID(int=number))))
        assert waiting.handed_at is None
    for number in range(2, mails + 1):
        stores.state.in_hand[EnqueueId(UUID(int=number))] = delivery
    stores.fails = 3
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await delivery.complete()
    assert not delivery.lease.is_out, "a store that blinks costs no lease"
    await asyncio.sleep(0.15)
    with pytest.raises(StoreUnavailable):
        await delivery.complete()
    if mails == 500:
        assert (leased, acknowledged) == ([], [])
        return
    row = {"leased": True, "done": True, "has_message": True}
    assert (leased, acknowledged) == ([row], [7])
    assert not delivery.settled.is_set()
    assert stores.state.in_hand[ITEM.enqueue_id] is delivery


async def test_a_worker_whose_outcomes_no_store_takes_lists_every_mail_in_its_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A `queue move` takes a mail that no living worker lists: its handler and the move both send
    it. Here each mail was long in its handler, and has its lease already.
    """
    stores, concurrency = Stores(), 64
    rows: Any = SimpleNamespace(
        schedule=answered, close_row=answered, rows=SimpleNamespace(load=answered)
    )
    stores.state.delays = rows
    stores.state.context.clock = lambda: datetime.now(UTC)
    stores.fails = 10**9
    monkeypatch.setattr("mailslice.worker.dequeue.delivery.UNSTORED_SECONDS", 0.0)
    monkeypatch.setattr(logging.root.manager, "disable", logging.WARNING)
    handler = checked_handler(lambda _mail, _content: None)
    pool = HandlerPool(handler, concurrency, Consumed(), Policy(settle_pauses=(0.05,)))

    async def hand_out() -> None:
        for number in range(1, 3000):
            item = replace(ITEM, enqueue_id=EnqueueId(UUID(int=number)))
            delivery = stores.delivery(item)
            delivery.hand_out()
            delivery.lease.is_out = True
            await pool.start(delivery)

    handing = asyncio.create_task(hand_out())
    await asyncio.wait({handing}, timeout=3)
    handing.cancel()
    await asyncio.wait({handing})
    record = (await recorded(stores))[0]
    assert len(stores.state.in_hand) > concurrency
    unlisted = stores.state.in_hand.keys() - {mail.enqueue_id for mail in record.in_flight}
    assert len(unlisted) == 0
    await pool.drain(0.0)


async def test_eight_mails_whose_marks_no_store_takes_hold_up_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many as there are handlers. Each mail is handled once and acknowledged once."""
    stores, refusing, handled = Stores(), set(range(1, 9)), Counter[int]()
    leased, marked, acknowledged = set[int](), set[int](), Counter[int]()

    async def mark(enqueue_id: EnqueueId) -> None:
        if enqueue_id.int in refusing:
            raise StoreUnavailable("too few replicas")
        marked.add(enqueue_id.int)

    async def schedule(enqueue_id: EnqueueId, *_: object, **__: object) -> None:
        leased.add(enqueue_id.int)

    async def close_row(enqueue_id: EnqueueId, **_: object) -> None:
        leased.remove(enqueue_id.int)

    async def handle(_mail: Mail, _content: bytes, *, enqueue_id: EnqueueId) -> None:
        handled[enqueue_id.int] += 1

    monkeypatch.setattr("mailslice.worker.dequeue.delivery.UNSTORED_SECONDS", 0.1)
    stores.state.context.mark = mark  # type: ignore[method-assign]
    stores.state.context.clock = lambda: datetime.now(UTC)
    rows = SimpleNamespace(load=lambda _: answered())
    delays: Any = SimpleNamespace(schedule=schedule, rows=rows, close_row=close_row)
    stores.state.delays = delays
    consumed, now = Consumed(), asyncio.get_running_loop().time()
    pool = HandlerPool(checked_handler(handle), 8, consumed, Policy(settle_pauses=(0.1,)))
    channel = SimpleNamespace(basic_ack=lambda tag: acknowledged.update([tag]))
    link: Any = SimpleNamespace(is_open=True, flushed=lambda: asyncio.sleep(0), channel=channel)
    async with asyncio.timeout(10):
        for number in range(1, 41):
            delivery = stores.delivery(replace(ITEM, enqueue_id=EnqueueId(UUID(int=number))))
            message = Message(link, number, b"m", {}, None, redelivered=False, arrived=now)
            delivery.lease.message = message
            await pool.start(delivery)
        while consumed.completed < 32 or leased != refusing:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        assert refusing == set(range(1, 41)) - marked
        refusing.clear()
        assert await pool.drain(5) == 0
    assert (consumed.completed, leased) == (40, set())
    assert handled == acknowledged == Counter(range(1, 41))


@pytest.mark.parametrize("how", ["retry", "reject", "bounce"])
async def test_an_outcome_whose_stage_record_no_store_takes_frees_its_handler(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """While a node joins, its ranges are read and take no conditional write: the window would fill
    with such mails. Their content is not needed any more.
    """
    stores, acknowledged, leased = Stores(), [], []
    staged(stores, answered)

    async def away(*_: object) -> bool:
        raise StoreUnavailable("too few replicas")

    async def schedule(*_: object, **how: bool) -> None:
        leased.append(how)

    advance = stores.state.in_doubt.stages.advance  # type: ignore[union-attr]
    stores.state.in_doubt.stages.advance = away  # type: ignore[union-attr,method-assign]
    stores.state.reporter = reporter_of_none()
    stores.state.context.clock = lambda: datetime.now(UTC)
    rows: Any = SimpleNamespace(schedule=schedule, close_row=answered)
    stores.state.delays = rows
    monkeypatch.setattr("mailslice.worker.dequeue.delivery.UNSTORED_SECONDS", 0.1)
    monkeypatch.setattr("mailslice.worker.dequeue.delivery.publish_retry", answered)
    outcome = {
        "retry": Retry(after=timedelta(seconds=30)),
        "reject": Reject("no"),
        "bounce": Bounce("no such user", tuple(FAILURES)),
    }[how]
    budget = ContentBudget(8)
    reservation = await budget.acquire(8)
    delivery = stores.delivery(content=b"8 bytes.", reservation=reservation)
    channel = SimpleNamespace(basic_ack=acknowledged.append)
    link: Any = SimpleNamespace(is_open=True, flushed=lambda: asyncio.sleep(0), channel=channel)
    delivery.lease.message = Message(link, 7, b"m", {}, None, redelivered=False, arrived=0.0)
    consumed = Consumed()
    handler = checked_handler(lambda _mail, _content: outcome)
    pool = HandlerPool(handler, 1, consumed, Policy(settle_pauses=(0.1,)))
    async with asyncio.timeout(5):
        await pool.start(delivery)
        await pool._permits.acquire()
        row = {"leased": True, "done": False, "has_message": True}
        assert (leased, acknowledged) == ([row], [7]), "the next attempt is not written yet"
        (await budget.acquire(8)).release()
        assert (consumed.total, delivery.content) == (0, b"")
        stores.state.in_doubt.stages.advance = advance  # type: ignore[union-attr,method-assign]
        assert await pool.drain(5) == 0
    assert consumed.total == 1
    assert acknowledged == [7]


@pytest.mark.parametrize("marks", [False, True])
async def test_a_mail_whose_report_no_store_takes_is_tried_again_and_frees_its_handler(
    monkeypatch: pytest.MonkeyPatch, *, marks: bool
) -> None:
    stores = Stores()
    if marks:
        staged(stores, answered)
    delays: list[timedelta | None] = []
    is_away = True

    async def report(*_: object) -> bool:
        raise StoreUnavailable("the partition of the bounce queue has no quorum")

    async def publish(*_: object, after: timedelta | None, **__: object) -> None:
        delays.append(after)
        if is_away:
            raise StoreUnavailable("that of this queue, too")

    monkeypatch.setattr("mailslice.worker.dequeue.delivery.publish_retry", publish)
    monkeypatch.setattr("mailslice.worker.dequeue.delivery.RETRY_SECONDS", 0.1)
    stores.state.reporter = SimpleNamespace(report=report)  # type: ignore[assignment]
    rows: Any = SimpleNamespace(close_row=lambda *_, **__: answered())
    stores.state.delays = rows
    delivery = stores.delivery()
    monkeypatch.setattr(type(delivery.lease), "has_message", False)
    with pytest.raises(StoreUnavailable, match="the bounce queue"):
        await delivery.bounce("refused", FAILURES)
    await asyncio.sleep(0.15)
    with pytest.raises(StoreUnavailable, match="this queue"):
        await delivery.bounce("refused", FAILURES)
    is_away = False
    assert await delivery.bounce("refused", FAILURES) is Disposition.RETRIED
    # Marks have begun the next attempt: it is given back then.
    assert delays == [timedelta(minutes=1)] * (1 if marks else 2)
    assert (stores.asked, delivery.settled.is_set()) == (["ack"], True)


@pytest.mark.parametrize("case", ["", "marks", "no report", "redelivered"])
async def test_a_reject_that_the_broker_does_not_take_is_tried_again_and_frees_its_handler(
    monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """The dead letter queue may be full, and refuse what is published."""
    stores, delays = Stores(), []
    if case in {"marks", "no report"}:
        staged(stores, answered)
        stores.state.reporter = reporter_of_none()

    async def publish(*_: object, after: timedelta | None, headers: Any, **__: object) -> None:
        delays.append((after, headers[HEADER_FAILURES]))

    monkeypatch.setattr("mailslice.worker.dequeue.delivery.publish_retry", publish)
    monkeypatch.setattr("mailslice.worker.dequeue.delivery.RETRY_SECONDS", 0.1)
    rows: Any = SimpleNamespace(close_row=lambda *_, **__: stores.forget())
    stores.state.delays = rows
    events = logged(stores)
    delivery = stores.delivery()
    delivery.message.redelivered = case == "redelivered"  # type: ignore[misc]
    stores.fails = 3

    async def settle() -> Disposition:
        if case == "no report":
            return await delivery.bounce("no such user", FAILURES)
        return await delivery.reject("no such user")

    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await settle()
    await asyncio.sleep(0.15)
    assert await settle() is Disposition.RETRIED
    assert delays == [(timedelta(minutes=1), 0)]
    assert (stores.asked, delivery.settled.is_set()) == (["ack"], True)
    assert [event for event, *_ in events] == ["deferred"]


def reporter_of_none() -> Any:
    """Its mails have a null sender."""
    return SimpleNamespace(report=lambda *_: answered(False))


async def test_a_mail_without_a_report_is_rejected_by_the_second_call_too() -> None:
    """Marks had begun the next attempt: it was handed out again, once a second."""
    stores = Stores()
    staged(stores, answered)
    stores.state.reporter = reporter_of_none()
    stores.state.delays = SimpleNamespace()  # type: ignore[assignment]
    delivery = stores.delivery()
    stores.fails = 1
    with pytest.raises(StoreUnavailable):
        await delivery.bounce("refused", FAILURES)
    assert await delivery.bounce("refused", FAILURES) is Disposition.REJECTED
    assert stores.asked == ["dead letter", "ack"]


async def test_a_retry_of_very_many_recipients_does_not_stop_the_event_loop() -> None:
    stores = Stores()
    stores.state.context.events = MailEvents(
        stores.state.context.queue, "w", EventLog(os.open(os.devnull, os.O_WRONLY))
    )
    stores.state.context.clock = system_clock
    every = tuple(f"r{number}@x.example" for number in range(20_000))
    item = replace(ITEM, mail=replace(ITEM.mail, recipients=every))
    delivery = stores.delivery(item)
    began = time.thread_time()
    assert await delivery.retry() is Disposition.RETRIED
    assert time.thread_time() - began < 0.5


def staged(stores: Stores, notify: Any = None) -> MemoryMailStages:
    """Has stage marks from now on, in this table."""
    table = MemoryMailStages()
    stages: Any = SimpleNamespace(worker="me", clock=system_clock)

    async def advance(before: MailStage, after: MailStage) -> bool:
        return table.advance(stores.state.context.queue, before, after)

    async def fetch(enqueue_id: EnqueueId) -> MailStage | None:
        return table.get(stores.state.context.queue, enqueue_id)

    stages.advance, stages.fetch = advance, fetch
    in_doubt: Any = SimpleNamespace(stages=stages, notify=notify)
    stores.state.in_doubt = in_doubt
    return table


async def test_nobody_is_begun_while_those_in_doubt_are_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that was begun then would be recorded as failed, and nobody would hear of it."""
    stores, told = Stores(), []
    begun: list[asyncio.Task[None]] = []

    async def notify(_item: QueuedMail, _record: MailStage, those: Any, *_: object) -> None:
        told.append(those)
        begun.append(asyncio.create_task(stage.sending(["c@d.example"])))
        await asyncio.sleep(0.05)

    table = staged(stores, notify)
    item = replace(ITEM, mail=replace(ITEM.mail, recipients=("a@b.example", "c@d.example")))
    delivery = stores.delivery(item)
    stage = delivery.stage_for_coroutine()
    await stage.sending(["a@b.example"])
    monkeypatch.setattr("mailslice.worker.dequeue.delivery.publish_retry", answered)
    assert await delivery.retry() is Disposition.RETRIED
    with pytest.raises(TakenOver):
        await begun[0]
    record = table.get(stores.state.context.queue, ITEM.enqueue_id)
    assert record is not None
    assert told == [("a@b.example",)]
    assert (record.remaining, record.recipients_at(Stage.FAILED)) == (("c@d.example",), told[0])


def logged(stores: Stores) -> list[tuple[str, tuple[str, ...], object]]:
    """The mail events from now on: their names, recipients and reasons."""
    events: list[tuple[str, tuple[str, ...], object]] = []

    def emit(event: str, item: QueuedMail, **facts: object) -> None:
        events.append((event, item.mail.recipients, facts.get("why")))

    context: Any = stores.state.context
    context.events, context.clock = SimpleNamespace(enabled=True, emit=emit), system_clock
    return events


async def test_a_recipient_that_failed_in_doubt_is_not_logged_as_delivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mailslice.worker.dequeue.delivery.publish_retry", answered)
    stores = Stores()
    staged(stores, answered)
    stores.state.delays = SimpleNamespace()  # type: ignore[assignment]
    events = logged(stores)
    every = ("sent@b.example", "doubtful@b.example", "left@b.example")
    delivery = stores.delivery(replace(ITEM, mail=replace(ITEM.mail, recipients=every)))
    stage = delivery.stage_for_coroutine()
    await stage.sending(every[:2])
    await stage.sent(every[:1])
    assert await delivery.retry(every[2:]) is Disposition.RETRIED
    assert [event[:2] for event in events] == [("delivered", every[:1]), ("deferred", every[2:])]


async def test_a_mail_whose_recipients_all_failed_in_doubt_was_not_completed() -> None:
    stores = Stores()
    staged(stores, answered)
    events = logged(stores)
    delivery = stores.delivery()
    delivery.handed_at = asyncio.get_running_loop().time()
    await delivery.stage_for_coroutine().sending()
    delivery.explain("421 later", "")
    assert await delivery.retry() is Disposition.DROPPED
    assert stores.asked == ["mark", "ack", "blobs"]
    why = "every recipient that was left is in doubt"
    assert events == [("dropped", ITEM.mail.recipients, why)]
    records = await recorded(stores)
    assert (records[0].settled, records[0].completed) == (1, 0)
    assert list(records[0].done) == [ITEM.enqueue_id], "it is done: `queue move` has to know"


@pytest.mark.parametrize("doubtful", [1, 0])
async def test_recipients_that_were_served_before_the_others_failed_in_doubt_are_logged_as_such(
    doubtful: int,
) -> None:
    """The handler raises. Without anyone in doubt the mail is complete."""
    stores = Stores()
    staged(stores, answered)
    events = logged(stores)
    every = ("doubtful@b.example", "sent@b.example")
    delivery = stores.delivery(replace(ITEM, mail=replace(ITEM.mail, recipients=every)))
    delivery.handed_at = asyncio.get_running_loop().time()
    stage = delivery.stage_for_coroutine()
    await stage.sending()
    await stage.sent(every[doubtful:])
    delivery.explain("the handler failed", "")
    stores.fails = 1
    with pytest.raises(StoreUnavailable):
        await delivery.retry()
    assert events == [], "nothing is known to be stored"
    became = await delivery.retry()
    assert became is (Disposition.DROPPED if doubtful else Disposition.COMPLETED)
    why = "every recipient that was left is in doubt"
    dropped = [("dropped", every[:doubtful], why)] if doubtful else []
    assert events == [("delivered", every[doubtful:], None), *dropped]


@pytest.mark.parametrize("handed", [False, True])
async def test_only_what_a_handler_had_is_logged_as_given_back(*, handed: bool) -> None:
    """What was only fetched goes back at each hold and each end of a worker."""
    stores = Stores()
    events = logged(stores)
    delivery = stores.delivery()
    delivery.handed_at = asyncio.get_running_loop().time() if handed else None
    assert await delivery.requeue() is Disposition.GIVEN_BACK
    assert [event[0] for event in events] == (["given_back"] if handed else [])


@pytest.mark.parametrize("settle", ["retry", "reject", "bounce"])
async def test_a_mail_that_was_deleted_in_its_handler_is_logged_with_that_reason(
    settle: str,
) -> None:
    stores = Stores()
    stores.is_marked = True
    stores.state.reporter = SimpleNamespace()  # type: ignore[assignment]
    events = logged(stores)
    delivery = stores.delivery()
    delivery.handed_at = asyncio.get_running_loop().time()
    delivery.explain("421 later", "421 later")
    await {
        "retry": lambda: delivery.retry(after=timedelta(seconds=30)),
        "reject": lambda: delivery.reject("no"),
        "bounce": lambda: delivery.bounce("no", []),
    }[settle]()
    why = "it was deleted, or closed, while a handler had it"
    assert events == [("dropped", ITEM.mail.recipients, why)]


async def test_who_was_told_failed_and_answers_before_that_is_written_is_told_as_sent() -> None:
    stores, told, late = Stores(), [], []

    async def notify(_item: QueuedMail, _record: MailStage, those: Any, *_: object) -> None:
        told.append(those)
        in_doubt.stages.advance = away

    async def sent_after_all(_item: QueuedMail, _record: MailStage, those: Any) -> None:
        late.append(those)

    table = staged(stores, notify)
    in_doubt: Any = stores.state.in_doubt
    in_doubt.sent_after_all = sent_after_all
    delivery = stores.delivery()
    stage = delivery.stage_for_coroutine()
    await stage.sending()
    advance = in_doubt.stages.advance

    async def away(*_: object) -> bool:
        raise StoreUnavailable("away")

    with pytest.raises(StoreUnavailable):
        await delivery.retry()
    in_doubt.stages.advance = advance
    await stage.sent()
    assert (told, late) == ([ITEM.mail.recipients], [ITEM.mail.recipients])
    in_doubt.stages.advance = away
    with pytest.raises(StoreUnavailable):
        await delivery.retry()
    assert len(told) == 1
    assert table.get(stores.state.context.queue, ITEM.enqueue_id) is not None


async def test_a_handler_that_outlives_its_delivery_sends_nothing_any_more() -> None:
    """What was given back is handed out again, maybe to this worker: its name proves nothing."""
    stores = Stores()
    staged(stores)
    first = stores.delivery()
    stage = first.stage_for_coroutine()
    assert await first.requeue() is Disposition.GIVEN_BACK
    second = stores.delivery()
    await second.stage_for_coroutine().sending()
    with pytest.raises(TakenOver):
        await stage.sending()
