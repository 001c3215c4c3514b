"""The operations of a child on a queue. Each acts like a careful caller, which repeats a call that
a store refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from functools import partial
from typing import Any
from uuid import uuid4

from mailslice.admin.filters import MailFilter
from mailslice.admin.mail_queue import MailQueue
from mailslice.admin.quarantine import Quarantine
from mailslice.codec.reports import Failure
from mailslice.model import crash
from mailslice.model.clock import system_clock
from mailslice.model.errors import StoreUnavailable, TakenOver
from mailslice.model.mail import Mail, QueuedMail, QueueName
from mailslice.stores.cassandra.own.quarantine import State
from mailslice.worker.dequeue.delivery import Delivery
from mailslice.worker.dequeue.dequeuer import Deliveries
from mailslice.worker.process.handler_pool import next_delivery
from mailslice.worker.queue_worker import QueueWorker
from mailslice.worker.retries import retry_now
from mailslice.worker.smtp_server.metrics import SmtpMetrics
from mailslice.worker.smtp_server.policy import policy_of
from mailslice.worker.smtp_server.server import serve

RECIPIENTS = ("first@example.net", "second@example.net")
REFUSED = tuple(Failure(recipient, "5.1.1", "there is no such user") for recipient in RECIPIENTS)
_PATIENCE = 180.0
"""Seconds. A restart waits for every lane, and a lane may drain a mail parked for a minute."""
_PAUSE = 0.2
_QUIET = timedelta(seconds=0.3)
_ROOM = 250
"""Prefetch of a child. It must exceed all mails that earlier children may have left, with their
duplicates: the child skips these mails but keeps them unacknowledged.
"""
_SOON = timedelta(seconds=1)
_SENDER = "sender@example.org"
_OWN_MAILS = MailFilter(sender=_SENDER)


class Seeds(Enum):
    """The mails that the matrix puts on the queue before each child."""

    NONE = auto()
    WAITING = auto()
    DELETED = auto()
    """Waiting, and marked as deleted."""
    JUNK = auto()
    """Messages that are not mails."""
    BARE = auto()
    """Waiting, without their blobs."""
    DUE = auto()
    """Delayed by a second: the delay expires while the child runs."""
    DUE_DELETED = auto()
    LATER = auto()
    """Delayed by 2.5 seconds, which takes one more hop through a delay level."""
    FAR = auto()
    """Delayed by an hour."""
    BEGUN = auto()
    """Waiting; a dead worker had begun to send to the first recipient."""
    SET_ASIDE = auto()
    """In quarantine, and marked as deleted."""


@dataclass(frozen=True)
class Session:
    """The worker of an operation, and its messages to the parent.

    `arm(*prefixes)`: points count from now on, except those with a prefix, which occur by chance.
    """

    worker: QueueWorker
    say: Callable[..., None]
    arm: Callable[..., None]

    def hand(self, delivery: Delivery) -> None:
        """Tells the parent that a handler has this mail."""
        self.say("handed", (delivery.item, delivery.message.arrived, delivery.content))

    @property
    def quarantine(self) -> Quarantine:
        """The quarantine of the queue."""
        return Quarantine(self.worker.context.stores, self.worker.queue, system_clock)

    @property
    def view(self) -> MailQueue:
        """The queue as an operator sees it."""
        return MailQueue(self.worker.context.stores, self.worker.queue, system_clock)


def reports_of(queue: QueueName) -> str:
    """The name of the queue that gets the reports to senders of mails of `queue`."""
    return f"{queue}-reports"


@dataclass(frozen=True)
class Operation:
    """One operation, with the kind of its seeds and their number for each child.

    `reported`: senders get reports. `staged`: the queue has stage marks, so no recipient gets a
    mail twice, and workers write records so often that a killed one soon counts as dead.
    """

    run: Callable[[Session], Awaitable[None]]
    seeds: Seeds = Seeds.NONE
    each: int = 1
    reported: bool = False
    staged: bool = False

    def settings(self, queue: QueueName) -> Mapping[str, str]:
        """Settings of the queue in addition to the environment."""
        reports = {"MAILSLICE_WORKER_BOUNCE_QUEUE": reports_of(queue)}
        marks = {"MAILSLICE_QUEUE_STAGE_MARKS": queue, "MAILSLICE_WORKER_RECORD_EVERY": "100ms"}
        return {**(reports if self.reported else {}), **(marks if self.staged else {})}


def new_mail() -> tuple[Mail, bytes]:
    """A new mail, and content that names the mail."""
    name = f"m-{uuid4()}"
    return Mail(name, _SENDER, RECIPIENTS), content_of(name)


def content_of(name: str) -> bytes:
    """The content of the mail of this name."""
    return f"Subject: {name}\r\n\r\n{name}\r\n".encode()


async def _insisting(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Repeats the call until no store refuses it. Raises TimeoutError after _PATIENCE."""
    async with asyncio.timeout(_PATIENCE):
        while True:
            try:
                return await ask()
            except StoreUnavailable:
                await asyncio.sleep(_PAUSE)


async def _in_thread(work: Callable[[], Any]) -> Any:
    return await _insisting(partial(asyncio.to_thread, work))


async def _enqueue(session: Session, delay: timedelta | None = None) -> None:
    session.arm()

    async def once() -> None:
        mail, content = new_mail()
        try:
            session.say("accepted", await session.worker.enqueue(mail, content, delay=delay))
        except StoreUnavailable:
            session.say("refused", mail.name)
            raise

    await _insisting(once)


async def _enqueue_undone(session: Session) -> None:
    """Enqueues a mail whose message reaches the broker and whose confirm is lost."""
    publisher = session.worker.context.publisher
    publish = publisher.publish

    async def unconfirmed(*arguments: Any, **named: Any) -> None:
        await publish(*arguments, **named)
        raise StoreUnavailable("the confirm was lost")

    publisher.publish = unconfirmed  # type: ignore[method-assign]
    mail, content = new_mail()
    session.arm()
    try:
        await session.worker.enqueue(mail, content)
    except StoreUnavailable:
        session.say("refused", mail.name)
    publisher.publish = publish  # type: ignore[method-assign]


@dataclass(frozen=True)
class _Server:
    """The worker behind the SMTP server. Stops the server shortly after it enqueued a mail."""

    worker: QueueWorker
    stop: asyncio.Event

    async def enqueue(self, mail: Mail, content: bytes) -> QueuedMail:
        item = await self.worker.enqueue(mail, content)
        asyncio.get_running_loop().call_later(_QUIET.total_seconds(), self.stop.set)
        return item


async def _smtp(session: Session) -> None:
    """Serves SMTP until a mail is enqueued. The parent is the client."""
    settings = session.worker.context.settings
    smtp_in = settings.smtp_in.model_copy(
        update={"host": "127.0.0.1", "port": 0, "hostname": "kit.example"}
    )
    settings = settings.model_copy(update={"smtp_in": smtp_in})
    stop = asyncio.Event()
    session.arm()
    server = _Server(session.worker, stop)
    await serve(
        settings,
        policy_of(smtp_in),
        server,
        stop,
        clock=system_clock,
        metrics=SmtpMetrics(session.worker.context.queue),
        on_listening=lambda _, port: session.say("listening", port),
    )


async def _next(session: Session, deliveries: Deliveries) -> Delivery:
    try:
        delivery = await asyncio.wait_for(anext(deliveries), _PATIENCE)
    except TimeoutError as error:
        in_hand, behind = len(session.worker.state.in_hand), sum(1 for _ in deliveries.received())
        raise TimeoutError(
            f"no mail within {_PATIENCE:g} s: {in_hand} are in hand here, {behind} more of others "
            "are held"
        ) from error
    session.hand(delivery)
    return delivery


async def _settle(
    session: Session, kind: str, how: Callable[[Delivery], Awaitable[object]]
) -> None:
    """Takes one mail that still has all its recipients, and settles it."""
    async with aclosing(session.worker.deliveries(_ROOM)) as deliveries:
        delivery = await _next(session, deliveries)
        while delivery.item.mail.recipients != RECIPIENTS:
            delivery = await _next(session, deliveries)
        session.arm("dequeue:", "hop:")
        await _insisting(lambda: how(delivery))
        session.say(kind, delivery.item.enqueue_id)
    await session.worker.settle()


async def _taken(session: Session) -> None:
    """Takes one mail until a handler has it, then gives it back."""
    session.arm()
    async with aclosing(session.worker.deliveries(1)) as deliveries:
        await _next(session, deliveries)


async def _idle(session: Session) -> None:
    """Consumes the queue until it is empty. No handler should get a mail."""
    session.arm()
    async with aclosing(session.worker.deliveries(4)) as deliveries:
        if (delivery := await next_delivery(deliveries, _QUIET, lambda: False)) is not None:
            session.hand(delivery)
    await session.worker.settle()


async def _delay_expired(session: Session) -> None:
    """Consumes the queue until no mail is delayed any more and the remaining work of delayed
    mails is done.
    """
    session.arm()
    async with aclosing(session.worker.deliveries(1)) as deliveries:
        first = asyncio.ensure_future(anext(deliveries))
        async with asyncio.timeout(_PATIENCE):
            while await _in_thread(partial(_delayed, session.worker)):
                if first.done():
                    first.result()  # raises the error that ended the deliveries
                await asyncio.sleep(_PAUSE)
        await asyncio.sleep(_QUIET.total_seconds())
        if first.done():
            delivery = first.result()
            session.hand(delivery)
        first.cancel()
    await session.worker.settle()


def _delayed(worker: QueueWorker) -> bool:
    return any(
        not row.published for row in worker.context.stores.own.delayed_mails.rows(worker.queue)
    )


async def send_to_recipients(
    delivery: Delivery, sent: Callable[[str], None], *, then_retry: bool = False
) -> bool:
    """A handler with stage marks, which sends to each recipient in turn. The completion writes the
    last `sent` mark. `then_retry`: sends to the first recipient, and retries for the others.
    Returns whether the mail was completed: neither taken over by another worker nor retried.
    """
    stage = delivery.stage_for_coroutine()
    recipients = delivery.item.mail.recipients
    postponed = then_retry and len(recipients) > 1
    try:
        for recipient in recipients[:1] if postponed else recipients:
            await _insisting(partial(stage.sending, [recipient]))
            sent(recipient)
            crash.point("handler:sent-to")
            if postponed or recipient != recipients[-1]:
                await stage.sent([recipient])
    except TakenOver:
        await delivery.requeue()
        return False
    await _insisting(partial(delivery.retry, recipients[1:]) if postponed else delivery.complete)
    return not postponed


async def _served(session: Session, *, then_retry: bool = False) -> None:
    """Handles all mails: those that earlier children left, too, and those that wait until their
    worker counts as dead.
    """
    session.arm("hop:")
    async with aclosing(session.worker.deliveries(_ROOM)) as deliveries:
        while (delivery := await next_delivery(deliveries, _QUIET, lambda: False)) is not None:
            enqueue_id = delivery.item.enqueue_id
            session.hand(delivery)
            if await send_to_recipients(
                delivery,
                lambda recipient, of=enqueue_id: session.say(  # type: ignore[misc]
                    "sent-to", (of, recipient)
                ),
                then_retry=then_retry,
            ):
                session.say("completed", enqueue_id)
    await session.worker.settle()


async def _release(session: Session) -> None:
    """Releases all mails whose release has not begun."""
    mails = await asyncio.to_thread(lambda: list(session.quarantine.mails()))
    session.arm()
    for mail in mails:
        if mail.state is State.KEPT:
            session.say("released", await _in_thread(partial(session.quarantine.release, mail)))


async def _discard(session: Session) -> None:
    def all_of_them() -> None:
        for mail in session.quarantine.mails():
            if mail.state in {State.KEPT, State.DISCARDING}:
                session.quarantine.discard(mail)

    session.arm()
    await _in_thread(all_of_them)


async def _flush(session: Session) -> None:
    session.arm()
    await _insisting(partial(session.worker.state.delays.flush, _SOON))
    session.say("flushed")


async def _retry_now(session: Session) -> None:
    session.arm()
    await _insisting(partial(retry_now, session.worker, _OWN_MAILS, lease=_SOON))
    session.say("retried-now")


async def _delete(session: Session, mails: MailFilter | None = None) -> None:
    session.arm()
    await _in_thread(partial(session.view.delete, mails) if mails else session.view.clear)
    session.say("deleted")


def _settling(
    kind: str, how: Callable[..., Awaitable[object]], **arguments: object
) -> Callable[[Session], Awaitable[None]]:
    """An operation that takes one mail and settles it by a method of Delivery."""
    return partial(_settle, kind=kind, how=partial(how, **arguments))


OPERATIONS = {
    "enqueue": Operation(_enqueue),
    "enqueue-later": Operation(partial(_enqueue, delay=_SOON)),
    "enqueue-undone": Operation(_enqueue_undone),
    "smtp": Operation(_smtp),
    "dequeue": Operation(_taken, Seeds.WAITING),
    "drop": Operation(_idle, Seeds.DELETED),
    "junk": Operation(_idle, Seeds.JUNK),
    "bare": Operation(_idle, Seeds.BARE),
    "complete": Operation(_settling("completed", Delivery.complete), Seeds.WAITING),
    "retry": Operation(_settling("retried", Delivery.retry), Seeds.WAITING),
    "retry-fewer": Operation(
        _settling("narrowed", Delivery.retry, recipients=RECIPIENTS[1:]), Seeds.WAITING
    ),
    "retry-later": Operation(
        _settling("narrowed", Delivery.retry, recipients=RECIPIENTS[1:], after=_SOON), Seeds.WAITING
    ),
    "reject": Operation(_settling("rejected", Delivery.reject, reason="refused"), Seeds.WAITING),
    "bounce": Operation(
        _settling("completed", Delivery.bounce, reason="refused", failures=REFUSED),
        Seeds.WAITING,
        reported=True,
    ),
    "stages": Operation(_served, Seeds.WAITING, reported=True, staged=True),
    "stages-retry": Operation(
        partial(_served, then_retry=True), Seeds.WAITING, reported=True, staged=True
    ),
    "stages-doubt": Operation(_served, Seeds.BEGUN, reported=True, staged=True),
    "release": Operation(_release, Seeds.SET_ASIDE),
    "discard": Operation(_discard, Seeds.SET_ASIDE),
    "surface": Operation(_delay_expired, Seeds.DUE),
    "surface-deleted": Operation(_delay_expired, Seeds.DUE_DELETED),
    "round": Operation(_delay_expired, Seeds.LATER),
    "flush": Operation(_flush, Seeds.FAR, each=2),
    "retry-now": Operation(_retry_now, Seeds.FAR, each=2),
    "delete": Operation(partial(_delete, mails=_OWN_MAILS), Seeds.WAITING, each=3),
    "clear": Operation(_delete, Seeds.WAITING, each=3),
}
