"""Stops an operation at each of its points, one child after the other on one queue, and balances
the books of that queue.

Each child is killed, or loses a store, at one point. The next child finds what it left. At the end
the queue is drained, and its books are balanced.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import re
import smtplib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager as AsyncContext
from contextlib import ExitStack, aclosing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from uuid import UUID

from mailslice.admin.quarantine import Decided, Holder, Quarantine
from mailslice.admin.queues import create
from mailslice.bench.clearing import marked_ids
from mailslice.codec import message
from mailslice.model.clock import system_clock
from mailslice.model.delay_levels import DELAY_LEVELS
from mailslice.model.mail import EnqueueId, QueuedMail, QueueName
from mailslice.model.names import RabbitNames
from mailslice.model.settings import load_settings
from mailslice.model.stages import MailStage, Stage
from mailslice.stores import Stores
from mailslice.stores.rabbitmq.blocking_publisher import publish_confirmed
from mailslice.testing.faults.books import Books, QueueState, ready
from mailslice.testing.faults.child import ChildMessage, Stop, run
from mailslice.testing.faults.operations import (
    OPERATIONS,
    RECIPIENTS,
    Operation,
    Seeds,
    new_mail,
    reports_of,
    send_to_recipients,
)
from mailslice.testing.faults.proxy import Proxy
from mailslice.testing.faults.restarts import Restarts
from mailslice.worker.process.handler_pool import next_delivery
from mailslice.worker.queue_worker import QueueWorker, open_worker, worker_of

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from mailslice.worker.dequeue.delivery import Delivery
    from mailslice.worker.dequeue.dequeuer import Deliveries

_LONGEST = 90.0
"""Most seconds that a child may take."""
_FORK = multiprocessing.get_context("forkserver")
_FORK.set_forkserver_preload(["mailslice.testing.faults.child"])
_DELAYS = {
    Seeds.DUE: timedelta(seconds=1),
    Seeds.DUE_DELETED: timedelta(seconds=1),
    Seeds.LATER: timedelta(seconds=2.5),
    Seeds.FAR: timedelta(hours=1),
}
_IDLE = timedelta(seconds=0.3)
_ACCEPTED = 250
_DEAD_WORKER = "worker-that-is-gone"
_NAME = re.compile(r"m-[0-9a-f-]{36}")


class Break(StrEnum):
    """What happens to the connections of a store."""

    REFUSE = "refuse"
    """Connections are closed and new ones refused. Clients see a restart, but the server keeps its
    state.
    """
    STALL = "stall"
    """Bytes are held back and pass afterwards, as with a machine that froze."""
    MID_FRAME = "mid-frame"
    """Connections are closed in the middle of the worker's next frame; new ones pass."""
    RESTART = "restart"
    """The server itself is stopped and started (`World.restarts`)."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A store (`rabbitmq`, `cassandra`, `s3`) that breaks at a point, for `seconds`. `after`: bytes
    that still pass before a break in mid-frame.
    """

    store: str
    how: Break
    seconds: float = 1.0
    after: int = 20


@dataclass(frozen=True, slots=True)
class Case:
    """One child: the point where it stops, and the fault there; without a fault it is killed.

    A child without a stop is undisturbed, and reports the points that it reaches.
    """

    stop: Stop | None = None
    fault: Fault | None = None


@dataclass
class LaneResult:
    """The result of a lane.

    `points`: each point that the undisturbed child reached, as often as it reached it. `missed`:
    cases whose child did not reach its stop.
    """

    books: Books
    points: list[str] = field(default_factory=list)
    stopped: list[Case] = field(default_factory=list)
    missed: list[Case] = field(default_factory=list)
    end: QueueState | None = None


@dataclass(frozen=True)
class World:
    """Where lanes run: open stores, and the environment variables that name them to children."""

    stores: Stores
    env: Mapping[str, str]
    restarts: Restarts | None = None
    """Restarts the server for `Break.RESTART`. Nobody else may use that server."""

    def lane(
        self,
        operation: str,
        queue: str,
        cases: Callable[[Sequence[str]], Sequence[Case]],
        *,
        strict: bool = True,
    ) -> LaneResult:
        """Runs an undisturbed child, then a child for each case that `cases` makes of its points,
        all on a new queue of this name; then balances the books.
        """
        with nullcontext() if self.restarts is None else self.restarts.lane():
            lane = _Lane(
                self, operation, create(self.stores, queue), LaneResult(Books(strict=strict))
            )
            if lane.spec.reported:
                create(self.stores, reports_of(lane.queue))
            return lane.run(cases)

    @contextmanager
    def behind(self, fault: Fault | None) -> Iterator[tuple[Mapping[str, str], Proxy | None]]:
        """The environment that names a proxy in place of the fault's store, and the proxy."""
        if fault is None or fault.how is Break.RESTART:
            yield {**self.env, **(_timeouts(fault.store) if fault else {})}, None
            return
        variable, target = self._address(fault.store)
        proxy = Proxy(target)
        try:
            yield {**self.env, **_timeouts(fault.store), **variable(proxy.port)}, proxy
        finally:
            proxy.close()

    def _address(self, store: str) -> tuple[Callable[[int], Mapping[str, str]], tuple[str, int]]:
        """A function, local port -> variables that name it as the store; the store's address."""
        if store == "cassandra":
            points, port = "MAILSLICE_CASSANDRA_CONTACT_POINTS", "MAILSLICE_CASSANDRA_PORT"
            host = self.env[points].split(",")[0]
            return lambda own: {points: "127.0.0.1", port: str(own)}, (host, int(self.env[port]))
        name = {"rabbitmq": "MAILSLICE_RABBITMQ_URL", "s3": "MAILSLICE_S3_ENDPOINT"}[store]
        url = urlsplit(self.env[name])
        login = f"{url.username}:{url.password}@" if url.username else ""
        target = (url.hostname or "", url.port or 0)
        return lambda own: {name: url._replace(netloc=f"{login}127.0.0.1:{own}").geturl()}, target


def _timeouts(store: str) -> dict[str, str]:
    """A short time-out, so that clients give up a call while the store hangs."""
    return {f"MAILSLICE_{store.upper()}_TIMEOUT": "2s"}


@dataclass
class _Lane:
    world: World
    operation: str
    queue: QueueName
    outcome: LaneResult
    _clients: list[threading.Thread] = field(default_factory=list)

    @property
    def books(self) -> Books:
        return self.outcome.books

    @property
    def spec(self) -> Operation:
        return OPERATIONS[self.operation]

    def run(self, cases: Callable[[Sequence[str]], Sequence[Case]]) -> LaneResult:
        self._child(Case())
        for case in cases(self.outcome.points):
            self._child(case)
        self.books.check_live(QueueState.load(self.world.stores, self.queue))
        before = set(self.books.ended)
        self._release_all()
        asyncio.run(self._drain())
        end = self.outcome.end = QueueState.load(self.world.stores, self.queue)
        # A copy that falls due after the last worker waits in the hop queue for the next worker.
        hop_queue = {RabbitNames(self.queue).hop_queue} if self._far else set()
        self.books.check_end(end, self._far | hop_queue)
        self._check_more(end, before)
        return self.outcome

    def _release_all(self) -> None:
        """Finishes the quarantine: tidies entries, or repeats releases that a kill cut off. A child
        that released last may hold the lease for a while.
        """
        if self.spec.seeds is not Seeds.SET_ASIDE:
            return
        for mail in list(self._quarantine.mails()):
            if not self._quarantine.tidy(mail):
                self.books.accepted.add(self._quarantine.release(mail))

    def _check_more(self, end: QueueState, before: set[EnqueueId]) -> None:
        """Checks what only some operations promise. `before`: ids of mails that children ended."""
        quarantined = list(self._quarantine.mails())
        failed = [message.decode(mail.message) for mail in quarantined]
        if self.spec.staged:
            self.books.check_sent(end, failed)
        if self.spec.reported:
            ended = (
                failed
                if self.spec.staged
                else [end.rows[one].item for one in before & self.books.accepted]
            )
            self.books.check_told((item.mail.name for item in ended), asyncio.run(self._reported()))
        if self.spec.seeds is Seeds.SET_ASIDE:
            if self.operation == "release":
                self.books.check_released(end)
            if remaining := len(quarantined) + sum(
                1 for _ in self.world.stores.own_blobs.list(f"quarantine/{self.queue}/")
            ):
                self.books.wrong.append(f"{remaining} rows and contents are left in quarantine")

    async def _reported(self) -> set[str]:
        """Names of the mails that the reports in the queue of reports name."""
        reported: set[str] = set()
        async with (
            worker_of(self.world.stores, QueueName(reports_of(self.queue))) as worker,
            aclosing(worker.deliveries(16)) as deliveries,
        ):
            while (delivery := await next_delivery(deliveries, _IDLE, lambda: False)) is not None:
                reported.update(_NAME.findall(delivery.content.decode()))
                await delivery.complete()
        return reported

    @property
    def _far(self) -> frozenset[str]:
        """Delay queues in which late copies of flushed mails wait; workers drop them when due."""
        return (
            frozenset(RabbitNames(self.queue).delay_queue(level) for level in DELAY_LEVELS)
            if self.spec.seeds is Seeds.FAR
            else frozenset()
        )

    async def _seed(self, count: int) -> None:
        seeds = self.spec.seeds
        if seeds is Seeds.NONE:
            return
        if seeds is Seeds.JUNK:
            for number in range(count):
                body = json.dumps({"no": "mail", "number": number}).encode()
                exchange = RabbitNames(self.queue).exchange
                publish_confirmed(self.world.stores.settings.rabbitmq, exchange, body, {}, None)
                self.books.junk.add(body)
            return
        async with worker_of(self.world.stores, self.queue) as worker:
            items = await asyncio.gather(
                *(worker.enqueue(*new_mail(), delay=_DELAYS.get(seeds)) for _ in range(count))
            )
        ids = [item.enqueue_id for item in items]
        self.books.accepted.update(ids)
        if seeds in (Seeds.DELETED, Seeds.DUE_DELETED):
            self.world.stores.tables.deleted.mark_many(self.queue, ids)
            self.books.end(ids, time.monotonic())
        elif seeds is Seeds.BEGUN:
            self.world.stores.own.mail_stages.prepare()
            for item in items:
                nobody = MailStage(item.enqueue_id, _DEAD_WORKER, 1, 0, item.mail.recipients)
                self.world.stores.own.mail_stages.advance(
                    self.queue,
                    None,
                    nobody.moved(
                        RECIPIENTS[:1], Stage.SENDING, by=_DEAD_WORKER, now=system_clock()
                    ),
                )
        elif seeds is Seeds.SET_ASIDE:
            for item in items:
                self._quarantine_mail(item)
        elif seeds is Seeds.BARE:
            self.world.stores.blobs.delete_many(
                [blob for item in items for blob in (item.header_blob_id, item.body_blob_id)]
            )
            self.books.bare.update(ids)

    def _quarantine_mail(self, item: QueuedMail) -> None:
        quarantine = self._quarantine
        holder = Holder(_DEAD_WORKER, "loaded", system_clock(), timedelta(minutes=11))
        quarantined = quarantine.keep(
            item, holder, Decided("closed", "it was held for too long", "test kit")
        )
        self.world.stores.tables.deleted.mark_many(self.queue, [item.enqueue_id])
        quarantine.settle(quarantined)
        self.books.set_aside[item.enqueue_id] = item.mail.name
        self.books.end([item.enqueue_id], time.monotonic())

    @property
    def _quarantine(self) -> Quarantine:
        return Quarantine(self.world.stores, self.queue, system_clock)

    def _note_marks(self) -> None:
        """Notes that all marked mails have ended: no handler may get them from now on. The child
        that wrote a mark may be dead.
        """
        self.books.end(marked_ids(self.world.stores.tables.deleted, self.queue), time.monotonic())

    def _child(self, case: Case) -> None:
        asyncio.run(self._seed(self.spec.each))
        with ExitStack() as stack:
            env, proxy = stack.enter_context(self.world.behind(case.fault))
            line, child_end = _FORK.Pipe()
            env = {**env, **self.spec.settings(self.queue)}
            process = _FORK.Process(
                target=run,
                args=(self.operation, env, self.queue, child_end, case.stop),
                daemon=True,
            )
            process.start()
            child_end.close()
            try:
                stopped = self._follow(line, case, proxy)
            finally:
                if process.is_alive() and not case.stop:
                    process.join(5)
                process.kill()
                process.join()
                line.close()
        while self._clients:
            self._clients.pop().join(_LONGEST)
        if case.stop is not None:
            (self.outcome.stopped if stopped else self.outcome.missed).append(case)
        if self.world.restarts is not None:
            self.world.restarts.up()
        self._note_marks()

    def _break(self, fault: Fault, proxy: Proxy | None) -> None:
        if proxy is not None:
            _break(proxy, fault)
        elif self.world.restarts is not None:
            self.world.restarts.down()

    def _follow(self, line: Connection, case: Case, proxy: Proxy | None) -> bool:
        """Handles the child's messages until it ends. Returns whether it reached its stop."""
        stopped, ended = False, False
        until = time.monotonic() + _LONGEST
        with suppress(EOFError, ConnectionResetError):
            while True:
                if not line.poll(max(0.0, until - time.monotonic())):
                    self.books.wrong.append(f"{self.operation} at {case}: it hangs")
                    return stopped
                message: ChildMessage = line.recv()
                ended = ended or message.kind in ("ended", "broken")
                if message.kind == "stopped":
                    stopped = True
                    if case.fault is not None:
                        self._break(case.fault, proxy)
                        line.send("go on")
                        until = time.monotonic() + _LONGEST
                else:
                    self._hear(message, case)
        if not ended and not (stopped and case.fault is None):
            self.books.wrong.append(f"{self.operation} at {case}: it ended without a word")
        return stopped

    def _hear(self, message: ChildMessage, case: Case) -> None:  # noqa: C901 - one line a word
        books = self.books
        match message.kind:
            case "reached":
                self.outcome.points.append(message.payload)
            case "accepted":
                books.accepted.add(message.payload.enqueue_id)
            case "refused":
                books.refused.add(message.payload)
            case "handed":
                item, arrived, content = message.payload
                books.hand(item, arrived, content)
            case "sent-to":
                books.send(*message.payload)
            case "released":
                books.accepted.add(message.payload)
            case "completed":
                books.end([message.payload], message.at)
            case "narrowed" if case.fault is None:
                books.narrowed[message.payload] = message.at
            case "listening":
                client = threading.Thread(target=self._client, args=(message.payload,), daemon=True)
                client.start()
                self._clients.append(client)
            case "deleted":
                self._check_deleted()
            case "broken":
                books.wrong.append(f"{self.operation} at {case}:\n{message.payload}")

    def _check_deleted(self) -> None:
        """Checks that a deletion that returned has marked all accepted mails."""
        marks = marked_ids(self.world.stores.tables.deleted, self.queue)
        for enqueue_id in self.books.accepted - marks:
            self.books.wrong.append(f"{enqueue_id} is not marked, and its deletion has returned")

    def _client(self, port: int) -> None:
        """An SMTP client that sends one mail. Sends again while it is not accepted and the server
        can be reached.
        """
        with suppress(OSError, smtplib.SMTPException):
            while True:
                mail, content = new_mail()
                with smtplib.SMTP("127.0.0.1", port, "client.example", timeout=_LONGEST) as smtp:
                    smtp.ehlo()
                    smtp.mail(str(mail.sender))
                    for recipient in mail.recipients:
                        smtp.rcpt(recipient)
                    code, answer = smtp.data(content)
                    if code == _ACCEPTED:
                        self.books.accepted.add(EnqueueId(UUID(answer.rsplit(b" ", 1)[1].decode())))
                        return
                time.sleep(0.2)

    async def _drain(self) -> None:
        """Consumes and completes all mails, as the next worker process would. Waits for delayed
        mails that fall due.
        """
        async with self._last_worker() as worker:
            if self.spec.seeds is Seeds.FAR:
                await worker.flush()
            try:
                async with asyncio.timeout(_LONGEST):
                    await self._consume(worker)
            except TimeoutError:
                self.books.wrong.append(
                    f"{self.operation}: the queue does not become empty: "
                    f"{ready(self.world.stores, self.queue)}"
                )

    def _last_worker(self) -> AsyncContext[QueueWorker]:
        """A worker on the open stores, or on new ones if the queue has settings of its own."""
        more = self.spec.settings(self.queue)
        if not more:
            return worker_of(self.world.stores, self.queue)
        settings = load_settings({**self.world.env, **more}, state_file=Path("/nonexistent"))
        return open_worker(settings, self.queue)

    async def _consume(self, worker: QueueWorker) -> None:
        expected = RECIPIENTS[1:] if self.books.narrowed else None
        async with aclosing(worker.deliveries(16)) as deliveries:
            while (delivery := await self._next(deliveries)) is not None:
                item = delivery.item
                self.books.hand(item, delivery.message.arrived, delivery.content, expected)
                if not self.spec.staged:
                    await delivery.complete()
                elif not await send_to_recipients(
                    delivery, partial(self.books.send, item.enqueue_id)
                ):
                    continue
                self.books.end([item.enqueue_id], time.monotonic())
                self.books.drained[item.enqueue_id] = item

    async def _next(self, deliveries: Deliveries) -> Delivery | None:
        while True:
            if (delivery := await next_delivery(deliveries, _IDLE, lambda: False)) is not None:
                return delivery
            # Read before the stores and again behind them: a mail may move from a queue to this
            # worker meanwhile. A busy machine takes seconds to deliver an expired mail.
            surfacing = deliveries.has_expired_copies
            more = await asyncio.to_thread(self._more_to_come)
            if (
                not (more or surfacing or deliveries.has_expired_copies)
                and deliveries.idle_seconds >= _IDLE.total_seconds()
            ):
                return None

    def _more_to_come(self) -> bool:
        """Whether a mail is still delayed (the hop consumer may hold it), or in a RabbitMQ queue.
        In this order: a mail is published before it stops being delayed.
        """
        late = system_clock() - timedelta(seconds=2)
        rows = self.world.stores.own.delayed_mails.rows(self.queue)
        return any(row.due is not None and row.due > late for row in rows) or bool(
            ready(self.world.stores, self.queue).keys() - self._far
        )


def _break(proxy: Proxy, fault: Fault) -> None:
    if fault.how is Break.REFUSE:
        proxy.cut()
    elif fault.how is Break.STALL:
        proxy.stall()
    else:
        proxy.break_off(fault.after)
    timer = threading.Timer(fault.seconds, proxy.mend)
    timer.daemon = True
    timer.start()


def kills(points: Sequence[str], limit: int = 1) -> list[Case]:
    """Kills at each point that the undisturbed child reached, at each of the first `limit` times
    that it reached it.
    """
    return [
        Case(Stop(point, time))
        for point in dict.fromkeys(points)
        for time in range(1, min(limit, points.count(point)) + 1)
    ]


def faults(points: Sequence[str], fault: Fault) -> list[Case]:
    """The same fault at each point."""
    return [Case(Stop(point, kill=False), fault) for point in dict.fromkeys(points)]
