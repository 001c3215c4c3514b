"""One mail that a handler has, and its settlement."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property

from mailslice.codec import message as codec
from mailslice.codec.headers import count_in
from mailslice.codec.reports import Failure
from mailslice.model import crash
from mailslice.model.errors import BadInput, StoreUnavailable, TakenOver, TryAgain
from mailslice.model.mail import EnqueueId, QueuedMail
from mailslice.model.names import HEADER_FAILURES, HEADER_THROTTLED, PARK_SECONDS
from mailslice.model.stages import MailStage, Stage
from mailslice.stores.rabbitmq.consumer import Message
from mailslice.worker.dequeue.dead_letters import dead_letter
from mailslice.worker.dequeue.in_doubt import InDoubt
from mailslice.worker.dequeue.lease import Lease
from mailslice.worker.dequeue.park import RETRY_SECONDS, Park
from mailslice.worker.dequeue.retry_message import narrowed, publish_retry
from mailslice.worker.enqueue.bounce_reports import Reporter
from mailslice.worker.enqueue.delayed_mails import Delays, checked_delay
from mailslice.worker.events import message_id_of, redacted
from mailslice.worker.io.content_loader import Reservation
from mailslice.worker.io.context import QueueContext
from mailslice.worker.io.destination_throttle import BlockingThrottle, DestinationThrottle
from mailslice.worker.io.hold_watch import HoldWatch
from mailslice.worker.io.message_copy import own_headers
from mailslice.worker.logs import about
from mailslice.worker.outcome import Disposition
from mailslice.worker.stages.handler_stage import AsyncStage, BlockingStage
from mailslice.worker.stages.stage_log import StageMarks

log = logging.getLogger(__name__)
_LATER = timedelta(seconds=PARK_SECONDS)
UNSTORED_SECONDS, _MAX_UNSTORED = 5.0, 500
"""An outcome that no store took for so long gets a lease, with fewer mails handed out (ADR 50)."""


@dataclass(slots=True)
class WorkerState:
    """The state that the deliveries of one queue share in one worker."""

    context: QueueContext
    delays: Delays
    in_doubt: InDoubt | None = None
    """Only where the queue has stage marks."""
    throttle: DestinationThrottle | None = None
    """Only where destinations have limits."""
    reporter: Reporter | None = None
    """Only where senders get reports of recipients that fail."""
    in_hand: "dict[EnqueueId, Delivery]" = field(default_factory=dict)
    """Mails of this worker that are ready or in a handler, and not settled."""
    holds: HoldWatch | None = None
    """None in a worker that takes no mail."""
    handler_marks: bool = False
    """Whether the handler takes a `stage`. One that does not may have sent without a record."""
    is_condemned: Callable[[EnqueueId], bool] = lambda _enqueue_id: False
    """Whether worker processes died at the mail too often (`strikes`)."""
    on_buried: Callable[[EnqueueId], None] = lambda _enqueue_id: None
    """Called when a condemned mail has become a dead letter."""
    settled_at: float = 0.0
    """When the last delivery was released, by the event loop's clock."""


class Delivery:
    """A mail with its content, to be settled once.

    `complete`, `retry`, `reject` and `bounce` settle it and return what became of it. The broker
    retains the mail until then. Each may raise StoreUnavailable: call it again then.

    With stage marks `item` names only recipients that no attempt has begun. A mail that another
    worker has taken goes back to the broker, whichever call settles it. After a lost connection the
    broker delivers the mail again; the deleted check drops a completed one.
    """

    def __init__(
        self,
        state: WorkerState,
        message: Message,
        item: QueuedMail,
        *,
        content: bytes,
        reservation: Reservation,
        record: MailStage | None = None,
        remaining: tuple[str, ...] | None = None,
    ) -> None:
        """`remaining`: the message's recipients without those served since it was published."""
        self._state = state
        self._context = state.context
        self._delays = state.delays
        self.lease = Lease(state.context, state.delays, message, item.enqueue_id)
        self._reservation = reservation
        self._message_recipients = item.mail.recipients
        self._marks: StageMarks | None = None
        if (in_doubt := state.in_doubt) is not None and record is not None:
            self._marks = StageMarks(
                in_doubt.stages,
                record,
                self._set_stage,
                lambda known, failed: in_doubt.notify(self.item, known, failed, self.content),
                lambda known, sent: in_doubt.sent_after_all(self.item, known, sent),
            )
            item = narrowed(item, record.remaining)
        elif remaining is not None:
            item = narrowed(item, remaining)
        self.item = item
        """The mail, its enqueue id, its blob ids."""
        self.content = content
        """Header and body, byte for byte as they were enqueued. Empty after `drop_content`."""
        self.settled = asyncio.Event()
        """Set when this worker has released the mail."""
        self.handed_at: float | None = None
        """When it was handed out, by the event loop's clock."""
        self.stage = "received"
        self.failures = count_in(message.headers, HEADER_FAILURES)
        """Attempts that failed so far. Every counted retry writes the number into its message."""
        self.attempt = self.failures + 1 if record is None else record.attempt
        self._bounce_sent = False
        self._no_report_reason: str | None = None  # if no report is possible
        self._refused_since = 0.0  # when a store first refused it, or parking was last tried
        self._explanation: dict[str, str] = {}
        self._message_id: str | None = None
        self._disposition: Disposition | None = None
        state.in_hand[item.enqueue_id] = self

    @property
    def redelivered(self) -> bool:
        """Whether the broker delivered it before. A restarted broker may say so of any mail."""
        return self.message.redelivered

    @property
    def message(self) -> Message:
        """The message that the broker delivered last for this mail."""
        return self.lease.message

    @cached_property
    def encoded(self) -> bytes:
        """The body of its message. Cached: the worker writes a record every few seconds."""
        return codec.encode(self.item)

    def extend_when_due(self) -> None:
        """Begins to replace the message by a lease when that is due (`lease`)."""
        if self.handed_at is not None:
            self.lease.extend_when_due()

    def hand_out(self) -> None:
        self.handed_at = asyncio.get_running_loop().time()
        self.stage = "loaded"
        if self._context.events.enabled:
            self._message_id = message_id_of(self.content)
            self._emit("attempt", redelivered=self.redelivered)

    def explain(self, why: str, answer: str) -> None:
        """Keeps the handler's reason and the remote answer for the mail event of the outcome."""
        self._explanation = {"why": why, "answer": answer}

    @property
    def age(self) -> timedelta | None:
        """Time since the enqueue or the end of its delay. None: a mail of James, never retried."""
        enqueued = self.message.timestamp
        return None if enqueued is None else self._context.clock() - enqueued

    def stage_for_thread(self) -> BlockingStage:
        self._state.handler_marks = True
        attempt, loop = max(self.attempt, self.failures + 1), asyncio.get_running_loop()
        return BlockingStage(self._marks, attempt, self.age, loop)

    def stage_for_coroutine(self) -> AsyncStage:
        self._state.handler_marks = True
        return AsyncStage(self._marks, max(self.attempt, self.failures + 1), self.age)

    def throttle_for_thread(self) -> BlockingThrottle:
        """The throttle that a plain handler asks before it sends."""
        loop = asyncio.get_running_loop()
        return BlockingThrottle(self._state.throttle, waited=self.throttled, loop=loop)

    async def complete(self) -> Disposition:
        """Writes the deleted mark, acknowledges, then deletes the blobs if their ids are random."""
        return await self._settle_once(lambda: self._finish(Stage.SENT, Disposition.COMPLETED))

    @property
    def throttled(self) -> bool:
        """Whether its last retry waited because a destination took no more mail."""
        return bool(self.message.headers.get(HEADER_THROTTLED))

    async def retry(
        self,
        recipients: Sequence[str] | None = None,
        after: timedelta | None = None,
        *,
        counted: bool = True,
        throttled: bool = False,
    ) -> Disposition:
        """Hands it out again, at once or `after` up to 30 days, to the `recipients` that remain.

        `recipients` None means all of them; an empty sequence completes the mail. A delayed retry
        is a failed attempt, unless `counted` is False or it is `throttled` (waits for a
        destination). A retry at once for the same recipients is a requeue, as in James. Any other
        retry publishes a new message, then acknowledges the old one. A mail that was deleted
        meanwhile is dropped. With stage marks recipients in doubt (begun, no answer) fail.
        """
        delay = checked_delay(after)
        remaining = self.item.mail.recipients if recipients is None else tuple(recipients)
        if recipients is not None and not remaining:
            return await self.complete()
        if unknown := set(remaining) - set(self.item.mail.recipients):
            what = f"{len(unknown)} recipients that mail {self.item.enqueue_id} does not have"
            raise BadInput(f"retry names {what}")
        flags = {"counted": counted, "throttled": throttled}
        return await self._settle_once(lambda: self._retry(remaining, delay, **flags))

    async def _retry(
        self, remaining: tuple[str, ...], delay: timedelta | None, *, counted: bool, throttled: bool
    ) -> Disposition:
        to_serve = await self._begin_next_attempt(remaining)
        if isinstance(to_serve, Disposition):
            return to_serve
        if to_serve == self._message_recipients and delay is None and not self.lease.is_closed:
            disposition = await self._requeue(Disposition.RETRIED)
            self._emit_retry(to_serve, None)
            return disposition
        if await self.lease.is_over():
            return await self._drop()
        counts = counted and delay is not None and not throttled
        last_answer = self._explanation.get("why") or self._explanation.get("answer") or ""
        try:
            await publish_retry(
                self._context,
                self._delays,
                self.message,
                narrowed(self.item, to_serve),
                after=delay,
                headers=self._retry_headers(counted=counts, throttled=throttled),
                fewer_recipients=to_serve != self._message_recipients,
                has_message=self.lease.has_message,
                answer=redacted(last_answer) if counts else "",
            )
        except StoreUnavailable as error:
            if not await self._try_to_park(to_serve, error):
                raise
            self._emit_retry(to_serve, _LATER)
            return await self._settle_flushed(lambda: True, Disposition.RETRIED, put_off=throttled)
        self._emit_retry(to_serve, delay)
        if delay is None:
            await self.lease.end()
        return await self._settle_flushed(self.lease.ack, Disposition.RETRIED, put_off=throttled)

    async def _try_to_park(self, to_serve: tuple[str, ...], why: StoreUnavailable) -> bool:
        """Parks the mail, to free its handler, if a store has refused its retry for half a minute.
        Not with an open row in delayed_mails, whose copy may exist. A parked mail is handed out as
        soon as its rows can be read (`Preparer`), so it loses its pause. Returns whether it parked.
        """
        if self._refused_seconds() < RETRY_SECONDS or not self.lease.has_message:
            return False
        self._refused_since = asyncio.get_running_loop().time()
        with suppress(TryAgain):
            row = await self._delays.rows.load(self.item.enqueue_id)
            if row is not None and not row.published:
                return False
        message, body = self.message, codec.encode(narrowed(self.item, to_serve))
        parked = await Park(self._context, self._delays).put(replace(message, body=body), why)
        if parked and self.message is not message:  # another message was adopted meanwhile
            self.message.ack()
        return parked

    def _refused_seconds(self) -> float:
        """Seconds for which stores have refused the settlement."""
        now = asyncio.get_running_loop().time()
        self._refused_since = self._refused_since or now
        return now - self._refused_since

    async def reject(self, reason: str) -> Disposition:
        """Sends it to the dead letter queue with its remaining recipients. Logs the reason."""
        return await self._settle_once(lambda: self._reject(reason))

    async def _reject(self, reason: str) -> Disposition:
        if await self.lease.is_over():
            return await self._drop()
        remaining = await self._begin_next_attempt(self.item.mail.recipients)
        if isinstance(remaining, Disposition):
            return remaining
        message = self.message
        if remaining != self._message_recipients:
            message = replace(message, body=codec.encode(narrowed(self.item, remaining)))
        try:
            await dead_letter(
                self._context,
                message,
                reason,
                narrowed(self.item, remaining),
                settle=lambda: self._settle(self.lease.ack, Disposition.REJECTED),
                attempt=self.attempt,
                messageId=self._message_id,
                seconds=self._event_seconds(),
                answer=self._explanation.get("answer"),
            )
        except StoreUnavailable:
            if self._refused_seconds() < RETRY_SECONDS:
                raise
            return await self._retry(remaining, _LATER, counted=False, throttled=False)
        # Only now: the row may be that of a worker to which RabbitMQ gave the message.
        await self.lease.end(only_lease=not (message.redelivered and self.lease.has_message))
        return Disposition.REJECTED

    async def bounce(self, reason: str, failures: Sequence[Failure]) -> Disposition:
        """Reports to the sender that these recipients (all that remain) failed, and completes.

        Rejects where no report is possible: null sender, no MAILSLICE_WORKER_BOUNCE_QUEUE, a mail
        of which none can be made. If some recipients are in doubt, the others are tried once more.
        """
        return await self._settle_once(lambda: self._bounce(reason, failures))

    async def _bounce(self, reason: str, failures: Sequence[Failure]) -> Disposition:
        marks, reporter, remaining = self._marks, self._state.reporter, self.item.mail.recipients
        if reporter is None or self._no_report_reason is not None or (marks and marks.taken):
            return await self._reject(reason + (self._no_report_reason or ""))
        if marks is not None and (marks.doubtful or marks.next_record is not None):
            # The retry fails recipients in doubt and tries the others. It may have begun already.
            return await self._retry(remaining, None, counted=False, throttled=False)
        if not self._bounce_sent and await self.lease.is_over():
            return await self._drop()
        try:
            sent = self._bounce_sent or await reporter.report(self.item, failures, self.content)
        except StoreUnavailable:
            if self._refused_seconds() < RETRY_SECONDS:
                raise
            return await self._retry(remaining, _LATER, counted=False, throttled=False)
        if not sent:
            self._no_report_reason = "; no report could be made" if self.item.mail.sender else ""
            return await self._reject(reason + self._no_report_reason)
        self._bounce_sent = True
        text = "mail %s bounced: %s"
        log.info(text, self.item.enqueue_id, reason, extra=about("bounced", self.item.enqueue_id))
        self._explanation["why"] = reason
        return await self._finish(Stage.FAILED, Disposition.BOUNCED)

    async def requeue(self) -> Disposition:
        """Returns it to the broker at once and unchanged."""
        return await self._settle_once(lambda: self._requeue(Disposition.GIVEN_BACK))

    give_back = requeue  # its name before

    async def _requeue(self, disposition: Disposition) -> Disposition:
        await self.lease.republish()
        return await self._settle_flushed(self.lease.requeue, disposition)

    async def _settle_once(self, settle: Callable[[], Awaitable[Disposition]]) -> Disposition:
        """Settles once. Concurrent and later callers get the same result."""
        async with self.lease.settling():
            try:
                return self._disposition or await settle()
            except StoreUnavailable:
                if self._refused_seconds() >= UNSTORED_SECONDS and self.has_room:
                    await self.lease.replace_message()
                raise

    @property
    def has_room(self) -> bool:
        """Whether its handler may take another mail before its outcome is stored."""
        return sum(d.handed_at is not None for d in self._state.in_hand.values()) < _MAX_UNSTORED

    def drop_content(self) -> None:
        """Frees the memory of the content. A report is made of the stored header then."""
        self.content = b""
        self._reservation.release()

    def abandon(self) -> None:
        """Releases a delivery that was not handed out and whose message is gone."""
        self._disposition = Disposition.GIVEN_BACK
        self._release()

    async def _finish(self, stage: Stage, disposition: Disposition) -> Disposition:
        try:
            if self._marks is not None:
                await self._marks.finish(stage)
            return await self._mark_and_settle(disposition)
        except TakenOver:
            return await self._requeue(Disposition.GIVEN_BACK)

    async def _drop(self) -> Disposition:
        self._explanation = {"why": "it was deleted, or closed, while a handler had it"}
        return await self._settle_flushed(self.lease.ack, Disposition.DROPPED)

    async def _mark_and_settle(self, disposition: Disposition) -> Disposition:
        self.lease.is_done = True
        await self._context.mark(self.item.enqueue_id)
        crash.point("complete:marked")
        await self.lease.end()
        if disposition is Disposition.DROPPED:  # `_settle` logs those that failed
            self.item = narrowed(self.item, self._emit_served())
        else:
            event = "bounced" if disposition is Disposition.BOUNCED else "delivered"
            self._emit(event, seconds=self._event_seconds(), **self._explanation)
        self._context.statistics.done(self.item.enqueue_id, self._seconds())
        self._context.statistics.failed += disposition is not Disposition.COMPLETED
        await self._settle_flushed(self.lease.ack, disposition)
        await self._context.discarder.add((self.item.header_blob_id, self.item.body_blob_id))
        return disposition

    async def _begin_next_attempt(
        self, remaining: tuple[str, ...]
    ) -> tuple[str, ...] | Disposition:
        """Writes the next attempt's record. Returns the recipients of `remaining` that it tries, or
        what became of the mail if there is no next attempt.
        """
        marks = self._marks
        if marks is None:
            return remaining
        if marks.known.closed and marks.next_record is None:  # every recipient was sent to
            self._explanation = {}
            return await self._finish(Stage.SENT, Disposition.COMPLETED)
        try:
            to_serve = (await marks.begin_next_attempt(remaining)).remaining
        except TakenOver:
            return await self._requeue(Disposition.GIVEN_BACK)
        if remaining and not to_serve:
            self._explanation = {"why": "every recipient that was left is in doubt"}
            return await self._mark_and_settle(Disposition.DROPPED)
        return to_serve if set(to_serve) != set(remaining) else remaining

    def _set_stage(self, stage: Stage) -> None:
        self.stage = stage.value

    def _retry_headers(self, *, counted: bool, throttled: bool) -> dict[str, object]:
        headers = own_headers(self.message.headers) | {HEADER_FAILURES: self.failures + counted}
        headers.pop(HEADER_THROTTLED, None)
        return headers | ({HEADER_THROTTLED: 1} if throttled else {})

    def _emit_retry(self, remaining: tuple[str, ...], delay: timedelta | None) -> None:
        """Emits `deferred`, and before it `delivered` if some recipients were served."""
        if not self._context.events.enabled:
            return
        self._emit_served(remaining)
        due, seconds = self._context.clock() + (delay or timedelta(0)), self._event_seconds()
        why, deferred = self._explanation.get("why"), narrowed(self.item, remaining)
        self._emit("deferred", deferred, why=why, next=due, seconds=seconds)

    def _emit_served(self, remaining: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Emits `delivered` if some recipients were served. Returns the others."""
        after = None if self._marks is None else self._marks.next_record
        others = frozenset((*remaining, *(after.recipients_at(Stage.FAILED) if after else ())))
        served = tuple(r for r in self.item.mail.recipients if r not in others)
        if served:
            answer, seconds = self._explanation.get("answer"), self._event_seconds()
            self._emit("delivered", narrowed(self.item, served), answer=answer, seconds=seconds)
        return tuple(r for r in self.item.mail.recipients if r in others)

    def _emit(self, event: str, item: QueuedMail | None = None, /, **fields: object) -> None:
        facts = {"messageId": self._message_id, "attempt": self.attempt, **fields}
        self._context.events.emit(event, item or self.item, **facts)

    def _event_seconds(self) -> float:
        return round(self._seconds(), 3)

    def _seconds(self) -> float:
        began = self.handed_at
        return 0.0 if began is None else asyncio.get_running_loop().time() - began

    async def _settle_flushed(
        self, settle: Callable[[], bool], disposition: Disposition, *, put_off: bool = False
    ) -> Disposition:
        self._settle(settle, disposition, put_off=put_off)
        await self.message.link.flushed()
        crash.point("delivery:settled")
        return disposition

    def _settle(
        self, settle: Callable[[], bool], disposition: Disposition, *, put_off: bool = False
    ) -> None:
        """`put_off`: a throttled retry, whose time does not count as a processing time."""
        self._disposition = disposition
        was_handed = self.handed_at is not None
        if was_handed and disposition in {Disposition.GIVEN_BACK, Disposition.DROPPED}:
            self._emit(disposition.value, **self._explanation)
        if was_handed and not put_off:
            self._context.statistics.ended(self._seconds())
        if not settle():
            text = "the broker hands a settled mail out again: its connection is gone"
            log.info(text, extra=about("stale_tag", self.item.enqueue_id))
        self._release()

    def _release(self) -> None:
        self._reservation.release()
        if self._marks is not None:
            self._marks.taken = True  # a handler that goes on can begin no recipient
        self._marks = None  # a reference cycle would keep the content until garbage collection
        if self._state.in_hand.get(self.item.enqueue_id) is self:
            del self._state.in_hand[self.item.enqueue_id]
        self._state.settled_at = asyncio.get_running_loop().time()
        self.settled.set()
