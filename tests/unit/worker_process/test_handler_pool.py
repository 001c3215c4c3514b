from __future__ import annotations

import asyncio
import logging
import pickle
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from mailslice.codec.reports import Failure
from mailslice.model.back_off import BackOff
from mailslice.model.errors import BadSetting, ContentMissing, StoreUnavailable, TakenOver
from mailslice.model.mail import BlobId, EnqueueId, Mail, QueuedMail, QueueName
from mailslice.model.settings import GiveUp, Settings
from mailslice.worker.dequeue.strikes import InHandlers, Isolation, StrikeState
from mailslice.worker.io.destination_throttle import UNTHROTTLED, BlockingThrottle
from mailslice.worker.io.statistics import WorkerStatistics
from mailslice.worker.metrics import ConsumerMetrics
from mailslice.worker.outcome import Bounce, Complete, Disposition, Reject, Retry
from mailslice.worker.process.child import hand_out
from mailslice.worker.process.handler_pool import HandlerPool, Policy, policy_of
from mailslice.worker.process.handler_spec import LoadedHandler, checked_handler
from mailslice.worker.stages.handler_stage import AsyncStage, BlockingStage

FAILURE = Failure("b@c", "5.1.1", "no")
SECONDS = timedelta(seconds=1)


@dataclass
class FakeDelivery:
    """Remembers what it was told; fails the first times as wanted."""

    number: int = 1
    content: bytes = b"content"
    failures: int = 0
    redelivered: bool = False
    arrived: float = 0.0
    headers: dict[str, int] = field(default_factory=dict)
    told: list[tuple[Any, ...]] = field(default_factory=list)
    away: int = 0
    fault: Exception = field(
        default_factory=lambda: StoreUnavailable("Cassandra at 127.0.0.1:1 does not answer")
    )
    recipients: tuple[str, ...] = ("b@c",)
    attributes: dict[str, bytes] = field(default_factory=dict)
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    explained: tuple[str, str] | None = None
    stage: str = "loaded"
    lease: Any = field(default_factory=lambda: SimpleNamespace(is_out=False, says_done=False))
    has_room: bool = True
    became: Disposition | None = None
    """What becomes of it, whatever is asked."""

    @property
    def message(self) -> Any:
        facts = {"redelivered": self.redelivered, "headers": self.headers}
        return SimpleNamespace(arrived=self.arrived, **facts)

    @property
    def item(self) -> QueuedMail:
        return QueuedMail(
            EnqueueId(UUID(int=self.number)),
            Mail(
                f"m{self.number}",
                "secret@sender.example",
                self.recipients,
                attributes=self.attributes,
            ),
            BlobId("h"),
            BlobId("b"),
        )

    def drop_content(self) -> None:
        self.content = b""

    def _take(self, became: Disposition, *what: Any) -> Disposition:
        if self.away:
            self.away -= 1
            raise self.fault
        self.told.append(what)
        self.settled.set()
        return self.became or became

    async def complete(self) -> Disposition:
        return self._take(Disposition.COMPLETED, "complete")

    async def retry(
        self,
        recipients: Sequence[str] | None = None,
        after: timedelta | None = None,
        *,
        counted: bool = True,
        throttled: bool = False,
    ) -> Disposition:
        return self._take(
            Disposition.RETRIED,
            "retry",
            recipients,
            after,
            *(["uncounted"] if not counted else []),
            *(["throttled"] if throttled else []),
        )

    async def reject(self, reason: str) -> Disposition:
        return self._take(Disposition.REJECTED, "reject", reason)

    async def bounce(self, reason: str, failures: Sequence[Failure]) -> Disposition:
        return self._take(Disposition.BOUNCED, "bounce", reason, failures)

    def explain(self, why: str, answer: str) -> None:
        self.explained = (why, answer)

    async def requeue(self) -> Disposition:
        return self._take(Disposition.GIVEN_BACK, "give back")

    def stage_for_thread(self) -> BlockingStage:
        return BlockingStage(attempt=self.failures + 1)

    def stage_for_coroutine(self) -> AsyncStage:
        return AsyncStage(attempt=self.failures + 1)

    def throttle_for_thread(self) -> BlockingThrottle:
        return UNTHROTTLED


@dataclass
class Bench:
    """A HandlerPool with the figures it writes."""

    handling: HandlerPool
    registry: CollectorRegistry

    async def give(self, delivery: FakeDelivery) -> list[tuple[Any, ...]]:
        await self.handling.start(delivery)
        await asyncio.wait_for(delivery.settled.wait(), 5)
        await asyncio.sleep(0)  # the figure is written right after
        return delivery.told

    def figure(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, {"queue": "spool", **labels})


EXACT = Policy(chance=lambda: 0.0, settle_pauses=(0, 0.01))


def bench(call: Callable[..., Any], concurrency: int = 8, policy: Policy = EXACT) -> Bench:
    registry = CollectorRegistry()
    handler = LoadedHandler(call, asyncio.iscoroutinefunction(call))
    return Bench(
        HandlerPool(handler, concurrency, ConsumerMetrics(QueueName("spool"), registry), policy),
        registry,
    )


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (None, ("complete",)),
        (Complete(), ("complete",)),
        (Retry(), ("retry", None, None)),
        (Retry(after=5 * SECONDS), ("retry", None, 5 * SECONDS)),
        (Retry(recipients=("b@c",)), ("retry", ("b@c",), None)),
        (Retry(recipients=("b@c",), back_off=True), ("retry", ("b@c",), 30 * SECONDS)),
        (Retry(recipients=("stranger@y",)), ("retry", None, 30 * SECONDS)),
        (Retry(after=5 * SECONDS, back_off=True), ("retry", None, 30 * SECONDS)),
        (Retry(after=50 * SECONDS, back_off=True), ("retry", None, 50 * SECONDS)),
        (Retry(after=5 * SECONDS, counted=False), ("retry", None, 5 * SECONDS, "uncounted")),
        (Retry(after=5 * SECONDS, throttled=True), ("retry", None, 5 * SECONDS, "throttled")),
        (Retry(after=timedelta(days=31)), ("retry", None, 30 * SECONDS)),
        (Reject("why"), ("reject", "why")),
        (Bounce("why", (FAILURE,)), ("bounce", "why", (FAILURE,))),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
async def test_each_outcome_has_its_action(
    outcome: object, told: tuple[Any, ...], *, is_async: bool
) -> None:
    async def coroutine(_mail: Mail, _content: bytes) -> object:
        return outcome

    assert await bench(coroutine if is_async else lambda _m, _c: outcome).give(FakeDelivery()) == [
        told
    ]


def _raising(error: BaseException) -> Callable[[Mail, bytes], None]:
    def handle(_mail: Mail, _content: bytes) -> None:
        raise error

    return handle


@pytest.mark.parametrize(
    "error",
    [
        ValueError("secret@sender.example"),
        StopIteration(),
        SystemExit(1),
        KeyboardInterrupt(),
        OSError(28, "no space"),
        BaseException("secret@sender.example"),
        BaseExceptionGroup("", [KeyboardInterrupt()]),
    ],
)
async def test_whatever_a_handler_throws_is_a_retry_with_back_off(error: BaseException) -> None:
    made = bench(_raising(error))
    assert await made.give(FakeDelivery()) == [("retry", None, 30 * SECONDS)]
    assert await made.give(FakeDelivery(failures=1)) == [("retry", None, 60 * SECONDS)]
    assert await made.give(FakeDelivery(failures=140)) == [("retry", None, 3600 * SECONDS)]
    assert made.figure("mailslice_handler_errors_total") == 3


@pytest.mark.parametrize(
    "error", [asyncio.CancelledError(), SystemExit(3), KeyboardInterrupt(), BaseException()]
)
async def test_an_async_handler_that_cancels_itself_or_exits_is_a_retry(
    error: BaseException,
) -> None:
    async def ends(_mail: Mail, _content: bytes) -> None:
        raise error

    assert await bench(ends).give(FakeDelivery()) == [("retry", None, 30 * SECONDS)]


@pytest.mark.parametrize("is_wrapped", [False, True])
@pytest.mark.parametrize("waits", [False, True])
async def test_an_async_handler_that_cancels_its_task_is_a_retry(
    *, waits: bool, is_wrapped: bool
) -> None:
    async def cancels(_mail: Mail, _content: bytes) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if waits:
            await asyncio.sleep(0)

    def wrapped(mail: Mail, content: bytes) -> Any:
        return cancels(mail, content)

    made = bench(wrapped if is_wrapped else cancels)
    assert await made.give(FakeDelivery()) == [("retry", None, 30 * SECONDS)]
    assert made.figure("mailslice_handler_errors_total") == 1
    assert await made.handling.drain(5) == 0


@pytest.mark.parametrize("is_async", [False, True])
async def test_what_a_handler_writes_into_the_attributes_is_not_sent(*, is_async: bool) -> None:
    """The message of a retry could not be written, and its mail would hold its handler for ever."""
    seen: list[Mail] = []

    def plain(mail: Mail, _content: bytes) -> Retry:
        seen.append(pickle.loads(pickle.dumps(mail)))
        mail.attributes["seen"] = "text"  # type: ignore[index]
        return Retry(after=SECONDS)

    async def coroutine(mail: Mail, content: bytes) -> Retry:
        return plain(mail, content)

    delivery = FakeDelivery(attributes={"a": b'"1"'})
    await bench(coroutine if is_async else plain).give(delivery)
    assert delivery.item.mail.attributes == {"a": b'"1"'}
    assert seen == [delivery.item.mail]


def response() -> object:
    """As a client's, which fails to read what it is asked for."""

    class Response:
        @property
        def reason(self) -> str:
            raise ValueError("its body is no JSON")

    return Response()


def proxy() -> object:
    """As a web framework's outside of a request."""

    class Proxy:
        @property
        def __class__(self) -> Any:
            raise RuntimeError("working outside of a request")

    return Proxy()


@pytest.mark.parametrize("result", [str, response, proxy])
async def test_a_handler_that_gives_something_else_is_a_retry(result: Callable[[], object]) -> None:
    made = bench(lambda _m, _c: result())
    assert await made.give(FakeDelivery()) == [("retry", None, 30 * SECONDS)]
    assert made.figure("mailslice_handler_errors_total") == 1


@pytest.mark.parametrize(
    "outcome",
    [
        Retry(after=30),  # type: ignore[arg-type]
        Retry(recipients=5),  # type: ignore[arg-type]
        Retry(recipients="b@c"),  # type: ignore[arg-type]
        Retry(recipients=([],)),  # type: ignore[arg-type]
        Retry(why=ValueError("no")),  # type: ignore[arg-type]
        Retry(counted=None),  # type: ignore[arg-type]
        Retry(throttled=""),  # type: ignore[arg-type]
        Retry(back_off=[]),  # type: ignore[arg-type]
        Reject(None),  # type: ignore[arg-type]
        Bounce("why", ("b@c",)),  # type: ignore[arg-type]
        Bounce("why", None),  # type: ignore[arg-type]
        Bounce("why", (Failure("b@c", "5.1.1", None),)),  # type: ignore[arg-type]
        Bounce("why", (FAILURE, Failure("b@c", 5.1, "no"))),  # type: ignore[arg-type]
        Bounce("why", (Failure(b"b@c", "5.1.1", "no"),)),  # type: ignore[arg-type]
        Bounce("why", (Failure("b@c", "5.1.1", "no", 550),)),  # type: ignore[arg-type]
    ],
)
async def test_an_outcome_with_a_field_of_another_type_is_a_retry_and_the_mail_stays_somebodys(
    outcome: object,
) -> None:
    made = bench(lambda _m, _c: outcome)
    assert await made.give(FakeDelivery()) == [("retry", None, 30 * SECONDS)]
    assert made.figure("mailslice_handler_errors_total") == 1


async def test_a_dead_letter_error_is_a_reject_with_its_reason() -> None:
    assert await bench(_raising(ContentMissing("header blob gone"))).give(FakeDelivery()) == [
        ("reject", "ContentMissing: header blob gone")
    ]


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_mail_that_another_one_has_is_given_back_and_counted_as_no_failure(
    *, is_async: bool
) -> None:
    async def coroutine(_mail: Mail, _content: bytes) -> None:
        raise TakenOver("another one has it")

    made = bench(coroutine if is_async else _raising(TakenOver("another one has it")))
    assert await made.give(FakeDelivery()) == [("give back",)]
    assert (
        made.figure("mailslice_handler_errors_total"),
        made.figure("mailslice_mails_total", outcome="given_back"),
    ) == (0, 1)


THREE = Policy(BackOff(attempts=3), chance=lambda: 0.0, settle_pauses=(0, 0.01))


async def test_after_the_last_attempt_a_mail_is_rejected_with_what_failed() -> None:
    made = bench(_raising(ValueError("secret@sender.example")), policy=THREE)
    assert await made.give(FakeDelivery(failures=1)) == [("retry", None, 60 * SECONDS)]
    ((told, reason),) = await made.give(FakeDelivery(failures=2))
    assert told == "reject"
    assert reason.startswith(
        "given up after 3 attempts (MAILSLICE_WORKER_ATTEMPTS); the last: ValueError at "
    )
    assert "secret" not in reason
    assert made.figure("mailslice_mails_total", outcome="rejected") == 1


async def test_or_bounced_for_each_recipient_that_is_left() -> None:
    policy = Policy(BackOff(attempts=3), GiveUp.BOUNCE, settle_pauses=(0, 0.01))
    delivery = FakeDelivery(failures=5, recipients=("b@c", "d@e"))
    ((told, reason, failures),) = await bench(
        lambda _m, _c: Retry(after=SECONDS), policy=policy
    ).give(delivery)
    assert (told, reason) == ("bounce", "given up after 6 attempts (MAILSLICE_WORKER_ATTEMPTS)")
    assert [(failure.recipient, failure.status) for failure in failures] == [
        ("b@c", "4.4.7"),
        ("d@e", "4.4.7"),
    ]


async def test_who_was_served_by_the_last_attempt_is_not_given_up_with_the_others() -> None:
    made = bench(lambda _m, _c: Retry(recipients=("d@e",), back_off=True), policy=THREE)
    assert await made.give(FakeDelivery(failures=2, recipients=("b@c", "d@e"))) == [
        ("retry", ("d@e",), None)
    ]
    assert (await made.give(FakeDelivery(failures=2, recipients=("d@e",))))[0][0] == "reject"


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (Retry(), ("retry", None, None)),
        (Retry(after=SECONDS, counted=False), ("retry", None, SECONDS, "uncounted")),
        (
            Retry(after=SECONDS, back_off=True, throttled=True),
            ("retry", None, 3600 * SECONDS, "throttled"),
        ),
    ],
)
async def test_what_does_not_count_is_never_the_last_attempt(
    outcome: Retry, told: tuple[Any, ...]
) -> None:
    assert await bench(lambda _m, _c: outcome, policy=THREE).give(FakeDelivery(failures=9)) == [
        told
    ]


async def test_without_a_number_of_attempts_there_is_no_last_one() -> None:
    policy = Policy(BackOff(attempts=0), chance=lambda: 0.0, settle_pauses=(0, 0.01))
    assert await bench(_raising(ValueError()), policy=policy).give(
        FakeDelivery(failures=10**6)
    ) == [("retry", None, 3600 * SECONDS)]


async def test_a_pause_that_grows_beyond_the_longest_delay_is_that_delay() -> None:
    """A longer one would be refused each time, and its mail would hold its place for ever."""
    policy = Policy(BackOff(cap=timedelta(days=28), attempts=0), chance=lambda: 1.0)
    assert await bench(_raising(ValueError()), policy=policy).give(FakeDelivery(failures=99)) == [
        ("retry", None, timedelta(days=30))
    ]


async def test_a_store_that_is_away_in_a_handler_uses_up_no_attempt() -> None:
    made = bench(_raising(StoreUnavailable("S3 at 127.0.0.1:1 does not answer")), policy=THREE)
    assert await made.give(FakeDelivery(failures=2)) == [
        ("retry", None, 120 * SECONDS, "uncounted")
    ]


def test_mails_can_only_bounce_with_a_queue_for_the_reports() -> None:
    settings = Settings.model_validate({"worker": {"give_up": "bounce", "attempts": 7}})
    with pytest.raises(
        BadSetting, match=r"MAILSLICE_WORKER_GIVE_UP=bounce .* needs MAILSLICE_WORKER_BOUNCE_QUEUE"
    ):
        policy_of(settings)
    worker = settings.worker.model_copy(update={"bounce_queue": "bounces"})
    assert policy_of(settings.model_copy(update={"worker": worker})).back_off == BackOff(attempts=7)


async def test_a_handler_that_takes_the_stage_gets_the_one_of_its_kind() -> None:
    got: list[object] = []

    async def coroutine(_mail: Mail, _content: bytes, *, stage: AsyncStage) -> None:
        await stage.sending()
        await stage.not_sent()
        await stage.sent()
        got.append(stage)

    def plain(_mail: Mail, _content: bytes, *, stage: BlockingStage) -> None:
        stage.sending(["b@c"])
        stage.not_sent()
        stage.sent()
        got.append(stage)

    for call in (coroutine, plain):
        handler = LoadedHandler(call, asyncio.iscoroutinefunction(call), frozenset({"stage"}))
        delivery = FakeDelivery(failures=2)
        await HandlerPool(
            handler, 1, ConsumerMetrics(QueueName("spool"), CollectorRegistry()), EXACT
        ).start(delivery)
        await asyncio.wait_for(delivery.settled.wait(), 5)
        assert delivery.told == [("complete",)]
    stages: Any = got
    attempts = [(type(stage), stage.attempt) for stage in stages]
    assert attempts == [(AsyncStage, 3), (BlockingStage, 3)]


@pytest.mark.parametrize(
    ("redelivered", "headers", "expected"),
    [
        (False, {}, False),
        (True, {}, True),
        (False, {"x-mailslice-failures": 1}, True),
        (False, {"x-mailslice-failures": 0}, True),
    ],
)
async def test_a_handler_learns_when_a_mail_arrived_and_whether_it_was_handled_before(
    headers: dict[str, int], *, redelivered: bool, expected: bool
) -> None:
    calls: list[tuple[float, bool]] = []

    def handle(_mail: Mail, _content: bytes, *, arrived: float, redelivered: bool) -> None:
        calls.append((time.monotonic() - arrived, redelivered))

    delivery = FakeDelivery(headers=headers, redelivered=redelivered)
    delivery.arrived = asyncio.get_running_loop().time() - 7
    running = HandlerPool(
        checked_handler(handle), 1, ConsumerMetrics(QueueName("spool"), CollectorRegistry()), EXACT
    )
    await running.start(delivery)
    await asyncio.wait_for(delivery.settled.wait(), 5)
    assert calls == [(pytest.approx(7, abs=1), expected)]


@pytest.mark.parametrize("end", [HandlerPool.announce_end, lambda running: running.drain(1.0)])
async def test_a_handler_learns_that_the_end_is_near(end: Callable[[HandlerPool], Any]) -> None:
    begun = threading.Event()
    saw: list[bool] = []

    def handle(_mail: Mail, _content: bytes, *, stopping: threading.Event) -> None:
        begun.set()
        saw.append(stopping.wait(5))

    delivery = FakeDelivery()
    running = HandlerPool(
        checked_handler(handle), 1, ConsumerMetrics(QueueName("spool"), CollectorRegistry()), EXACT
    )
    await running.start(delivery)
    await asyncio.to_thread(begun.wait, 5)
    if (ending := end(running)) is not None:
        await ending
    await asyncio.wait_for(delivery.settled.wait(), 5)
    assert saw == [True]


async def test_a_mail_is_in_no_handler_where_its_thread_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An executor raises then, and runs the call in another thread all the same."""
    start, handled = threading.Thread.start, Counter[str]()
    go_on = threading.Event()

    def starting(thread: threading.Thread) -> None:
        if thread.name == "handler_1":
            raise RuntimeError("can't start new thread")
        start(thread)

    def handle(mail: Mail, _content: bytes) -> None:
        handled[mail.name] += 1
        go_on.wait(5)

    monkeypatch.setattr(threading.Thread, "start", starting)
    first, second = FakeDelivery(1), FakeDelivery(2)
    with suppress(BadSetting):
        running = bench(handle, 2).handling
        await running.start(first)
        await running.start(second)
        await asyncio.wait_for(second.settled.wait(), 5)
        go_on.set()
        await running.drain(5)
    assert not (handled["m2"] and second.told == [("retry", None, 30 * SECONDS)])
    with pytest.raises(BadSetting, match=r"2 handlers at once .*can't start new thread"):
        bench(handle, 2)


async def test_no_address_of_an_error_is_logged_above_debug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    await bench(_raising(ValueError("secret@sender.example"))).give(FakeDelivery())
    assert "handler failed: ValueError at" in caplog.text
    assert "secret@" not in caplog.text


async def test_a_store_that_blinks_is_asked_again_and_the_handler_is_not() -> None:
    calls = []
    made = bench(lambda mail, _content: calls.append(mail.name))
    assert await made.give(FakeDelivery(away=3)) == [("complete",)]
    assert calls == ["m1"]
    assert made.figure("mailslice_store_errors_total") == 3
    assert made.figure("mailslice_mails_total", outcome="completed") == 1


@pytest.mark.parametrize(
    "fault", [BadSetting("Cassandra refuses the password"), RuntimeError("a fault of ours")]
)
async def test_an_outcome_that_cannot_be_told_now_is_told_later_and_never_given_up(
    fault: Exception,
) -> None:
    made = bench(lambda _mail, _content: None)
    assert await made.give(FakeDelivery(away=2, fault=fault)) == [("complete",)]
    assert made.figure("mailslice_mails_total", outcome="completed") == 1


@pytest.mark.parametrize(
    ("fault", "stage"),
    [(StoreUnavailable("the broker blocks publishers"), "settling"), (RuntimeError(), "loaded")],
)
async def test_a_mail_whose_outcome_waits_for_a_store_says_so_and_one_by_a_fault_of_ours_does_not(
    fault: Exception, stage: str
) -> None:
    """stuck_mails leaves the first alone: its handler has ended. The other is set aside."""
    delivery = FakeDelivery(away=1, fault=fault)
    await bench(lambda _m, _c: Retry(after=SECONDS)).give(delivery)
    assert delivery.stage == stage


@pytest.mark.parametrize(("leased", "has_room"), [(True, True), (True, False), (False, True)])
async def test_a_mail_whose_mark_no_store_takes_frees_its_handler_once_a_lease_replaces_its_message(
    *, leased: bool, has_room: bool
) -> None:
    """Else eight mails of one Cassandra partition that takes no write stop a queue. Without a lease
    its message is in the window, and nothing shows that Cassandra takes any write.
    """
    may_end = asyncio.Event()

    async def handle(mail: Mail, _content: bytes) -> None:
        if mail.name in {"m3", "m4"}:
            await may_end.wait()

    made = bench(handle, concurrency=1)
    refused, other, third, fourth = (FakeDelivery(number) for number in range(1, 5))
    refused.away = 1_000_000
    await made.handling.start(refused)
    await asyncio.sleep(0.05)
    refused.lease.is_out, refused.has_room = leased, has_room
    starting = asyncio.create_task(made.handling.start(other))
    await asyncio.wait({starting}, timeout=0.3)
    assert starting.done() is (leased and has_room)
    assert refused.content == (b"" if leased else b"content")
    refused.away = 0
    for delivery in (refused, other):
        await asyncio.wait_for(delivery.settled.wait(), 5)
    await made.handling.start(third)
    starting = asyncio.create_task(made.handling.start(fourth))
    await asyncio.wait({starting}, timeout=0.1)
    assert not starting.done(), "the permit was released twice"
    may_end.set()
    await asyncio.wait_for(fourth.settled.wait(), 5)


async def test_asking_again_for_a_retry_does_not_double_its_pause() -> None:
    assert await bench(_raising(ValueError())).give(FakeDelivery(away=2)) == [
        ("retry", None, 30 * SECONDS)
    ]


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_slow_handler_does_not_hold_up_the_rest(*, is_async: bool) -> None:
    release = threading.Event()

    def plain(mail: Mail, _content: bytes) -> None:
        if mail.name == "m1":
            release.wait(5)

    async def coroutine(mail: Mail, _content: bytes) -> None:
        if mail.name == "m1":
            await asyncio.to_thread(release.wait, 5)

    made = bench(coroutine if is_async else plain, concurrency=2)
    slow = FakeDelivery(1)
    await made.handling.start(slow)
    for number in range(2, 12):
        assert await made.give(FakeDelivery(number)) == [("complete",)]
    assert (slow.told, made.handling.in_flight, made.figure("mailslice_mails_in_flight")) == (
        [],
        1,
        1,
    )
    release.set()
    await asyncio.wait_for(slow.settled.wait(), 5)


async def test_no_more_handlers_run_than_allowed() -> None:
    running, most = 0, 0

    async def handle(_mail: Mail, _content: bytes) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    made = bench(handle, concurrency=3)
    deliveries = [FakeDelivery(number) for number in range(10)]
    for delivery in deliveries:
        await made.handling.start(delivery)
    assert await made.handling.drain(5) == 0
    assert most == 3
    assert [delivery.told for delivery in deliveries] == [[("complete",)]] * 10


async def test_drain_waits_for_those_that_end_in_time_and_gives_up_on_the_rest() -> None:
    async def handle(mail: Mail, _content: bytes) -> None:
        await asyncio.sleep(0.05 if mail.name == "m1" else 60)

    made = bench(handle)
    quick, stuck = FakeDelivery(1), FakeDelivery(2)
    await made.handling.start(quick)
    await made.handling.start(stuck)
    assert await made.handling.drain(0.5) == 1
    assert (quick.told, stuck.told) == ([("complete",)], [])


async def _endless(deliveries: list[FakeDelivery]) -> AsyncIterator[FakeDelivery]:
    for delivery in deliveries:
        yield delivery
    await asyncio.Event().wait()


async def test_handing_out_ends_on_stop_while_it_waits_for_a_delivery() -> None:
    stop, delivery = asyncio.Event(), FakeDelivery()
    made = bench(lambda _m, _c: None)
    task = asyncio.create_task(hand_out(_endless([delivery]), made.handling, stop))
    await asyncio.wait_for(delivery.settled.wait(), 5)
    stop.set()
    await asyncio.wait_for(task, 1)


async def test_handing_out_ends_on_stop_while_all_places_are_taken() -> None:
    async def forever(_mail: Mail, _content: bytes) -> None:
        await asyncio.Event().wait()

    stop = asyncio.Event()
    made = bench(forever, concurrency=1)
    task = asyncio.create_task(
        hand_out(_endless([FakeDelivery(1), FakeDelivery(2)]), made.handling, stop)
    )
    await asyncio.sleep(0.05)
    stop.set()
    await asyncio.wait_for(task, 1)
    assert made.handling.in_flight == 1
    assert await made.handling.drain(0) == 1


async def test_a_delivery_is_taken_only_when_a_handler_is_free() -> None:
    """A mail that is handed out counts as begun.

    stuck_mails would close one that waits behind a handler that hangs.
    """
    taken = {number: asyncio.Event() for number in range(1, 5)}
    hanging = asyncio.Event()

    async def told() -> AsyncIterator[FakeDelivery]:
        for number, event in taken.items():
            event.set()
            yield FakeDelivery(number)
        await asyncio.Event().wait()

    async def hang(_mail: Mail, _content: bytes) -> None:
        await hanging.wait()

    made, stop = bench(hang, concurrency=2), asyncio.Event()
    task = asyncio.create_task(hand_out(told(), made.handling, stop))
    await asyncio.wait_for(taken[2].wait(), 30)
    for _ in range(100):
        await asyncio.sleep(0)
    assert made.handling.in_flight == 2
    assert not taken[3].is_set()
    hanging.set()
    await asyncio.wait_for(taken[4].wait(), 30)
    stop.set()
    await asyncio.wait_for(task, 30)


def test_all_outcomes_are_exported_from_the_start() -> None:
    registry = CollectorRegistry()
    ConsumerMetrics(QueueName("spool"), registry)
    text = generate_latest(registry).decode()
    assert [line for line in text.splitlines() if line.startswith("mailslice_mails_total")] == [
        f'mailslice_mails_total{{outcome="{outcome}",queue="spool"}} 0.0'
        for outcome in (
            "completed",
            "retried",
            "rejected",
            "bounced",
            "given_back",
            "dropped",
        )
    ]


def test_what_destinations_answer_is_counted_by_rule() -> None:
    registry = CollectorRegistry()
    metrics = ConsumerMetrics(QueueName("spool"), registry)
    statistics = WorkerStatistics()
    for asked in (("*", "granted"), ("*", "throttled"), ("*", "throttled")):
        statistics.destinations[asked] += 1
        metrics.observe(statistics)
    statistics.destinations["slow.example", "granted"] += 1
    metrics.observe(statistics)
    counted = [("*", "granted", 1), ("*", "throttled", 2), ("slow.example", "granted", 1)]
    for rule, answer, number in counted:
        assert (
            registry.get_sample_value(
                "mailslice_destinations_asked_total",
                {"queue": "spool", "rule": rule, "answer": answer},
            )
            == number
        )


async def test_a_mail_counts_as_what_became_of_it_not_as_what_was_asked() -> None:
    it = bench(lambda _mail, _content: None)
    await it.give(FakeDelivery(1))
    await it.give(FakeDelivery(2, became=Disposition.GIVEN_BACK))
    await it.give(FakeDelivery(3, became=Disposition.DROPPED))
    counted = {each: it.figure("mailslice_mails_total", outcome=each.value) for each in Disposition}
    assert {each.value: count for each, count in counted.items() if count} == {
        "completed": 1,
        "given_back": 1,
        "dropped": 1,
    }


async def test_a_suspect_begins_when_the_outcomes_of_the_others_are_stored() -> None:
    other, suspect = FakeDelivery(1, away=3), FakeDelivery(2)
    stored: list[bool] = []

    async def handle(mail: Mail, _content: bytes) -> None:
        if mail.name == "m2":
            stored.append(other.settled.is_set())
        else:
            await asyncio.sleep(0.5)

    isolation = Isolation(
        InHandlers(bytearray(InHandlers.size(2))),
        lambda: StrikeState(frozenset({suspect.item.enqueue_id})),
    )
    registry = CollectorRegistry()
    metrics = ConsumerMetrics(QueueName("spool"), registry)
    handling = HandlerPool(checked_handler(handle), 2, metrics, EXACT, isolation)
    await handling.start(other)
    await asyncio.sleep(0)  # its handler begins
    await handling.start(suspect)
    await asyncio.wait_for(suspect.settled.wait(), 5)
    assert stored == [True]
    await handling.drain(5)
    seconds = registry.get_sample_value("mailslice_handling_seconds_sum", {"queue": "spool"})
    assert seconds == pytest.approx(0.5, abs=0.3), "the suspect's own time, without its wait"
