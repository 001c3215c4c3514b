"""Stage marks: read at each delivery, written conditionally by the worker that has the mail.

`sending` is durable before the first irreversible step; `sent` follows it. If a `sent` cannot be
written, the next mark, or the end of the delivery, writes it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from mailslice.codec.row import epoch_ms, instant
from mailslice.model import crash
from mailslice.model.errors import BadInput, TakenOver, TryAgain
from mailslice.model.mail import EnqueueId, QueuedMail
from mailslice.model.stages import Decision, DeliveryVerdict, MailStage, Stage, decide, next_attempt
from mailslice.worker.io.cassandra_bridge import Rows
from mailslice.worker.io.context import QueueContext
from mailslice.worker.logs import about

log = logging.getLogger(__name__)
_Listener = Callable[[MailStage, tuple[str, ...]], Awaitable[None]]


@dataclass(slots=True, eq=False, repr=False)
class StageMarks:
    """The marks of one delivery. `taken`: a write was refused, or the delivery is over. Called:
    `on_stage` with each new stage, `on_doubt` with recipients that are about to fail, `on_late`
    with recipients that were sent to after they had failed.
    """

    stages: "Stages"
    known: MailStage
    """The stage of each recipient. It changes at once; one call at a time writes it."""
    on_stage: Callable[[Stage], None]
    on_doubt: _Listener
    on_late: _Listener
    next_record: MailStage | None = field(init=False, default=None)
    """The record of the next attempt, once it is written."""
    taken: bool = field(init=False, default=False)
    _written: MailStage = field(init=False)
    _writing: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)
    _reported: MailStage | None = field(init=False, default=None)
    """The record whose recipients in doubt were reported."""

    def __post_init__(self) -> None:
        self._written = self.known

    @property
    def doubtful(self) -> tuple[str, ...]:
        """Recipients that were begun and never answered for."""
        return self.known.recipients_at(Stage.SENDING)

    async def sending(self, recipients: Iterable[str] | None = None) -> None:
        """Marks these (None: all left) durably. Send nothing if it raises (TakenOver, a store)."""
        async with self._writing:
            left = self.known.remaining
            requested = tuple(dict.fromkeys(left if recipients is None else recipients))
            if self.taken or self.next_record is not None:
                raise _taken_over(self.known.enqueue_id)
            if unknown := set(requested) - set(left):
                why = f"{len(unknown)} recipients are begun already, or are not the mail's"
                raise BadInput(f"mail {self.known.enqueue_id}: {why}")
            await self._write(self._record_at(requested, Stage.SENDING))
            crash.point("stage:sending-written")
            self.known = self._record_at(requested, Stage.SENDING)  # it may have changed meanwhile
        self.on_stage(Stage.SENDING)

    async def sent(self, recipients: Iterable[str] | None = None) -> None:
        """Marks these (None: all in stage sending) as sent. Raises nothing if a store is away."""
        requested = self._require_begun(recipients)
        before, self.known = self.known, self._record_at(requested, Stage.SENT)
        self.on_stage(self.known.stage)
        try:
            async with self._writing:
                if requested and set(requested) <= set(self._written.recipients_at(Stage.SENT)):
                    return  # another mark wrote it
                reported = self._reported.recipients_at(Stage.SENDING) if self._reported else ()
                if self.next_record is not None or not set(requested).isdisjoint(reported):
                    # The delivery was settled under its handler: these were reported as failed.
                    raise _taken_over(self.known.enqueue_id)
                await self._write(self.known)
                crash.point("stage:sent-written")
        except TryAgain as error:
            text = "'sent' is not stored yet: %s"
            log.warning(text, error, extra=about("sent_unstored", self.known.enqueue_id))
        except TakenOver:
            # The operator was notified that they failed, and they did not.
            with suppress(TryAgain):
                await self.on_late(before, requested)

    async def not_sent(self, recipients: Iterable[str] | None = None) -> None:
        """These surely do not have the mail: they are left to try. The next mark writes that."""
        back, known = dict.fromkeys(self._require_begun(recipients)), self.known
        states = {r: stage for r, stage in known.recipients.items() if r not in back}
        self.known = replace(known, remaining=(*known.remaining, *back), recipients=states)
        self.on_stage(self.known.stage)

    async def finish(self, stage: Stage = Stage.SENT) -> None:
        """Moves all recipients, left or begun, to `stage`. Raises TakenOver."""
        async with self._writing:
            if self.taken:
                raise _taken_over(self.known.enqueue_id)
            if self._written.step and not self._written.closed:
                await self._write(self._record_at((*self.known.remaining, *self.doubtful), stage))
                crash.point("stage:finished")

    async def begin_next_attempt(self, remaining: Iterable[str]) -> MailStage:
        """Writes the next attempt's record: recipients of `remaining` that were not begun.
        Recipients in doubt fail. Raises TakenOver.
        """
        async with self._writing:
            if self.taken:
                raise _taken_over(self.known.enqueue_id)
            if self.next_record is None:
                if self._reported is None:
                    if self.doubtful:  # a mail that was taken is refused before anybody is notified
                        await self._write(self.known)
                        self.known = replace(self.known, step=self._written.step)
                    reported = self.known  # as of now: a `sent` may come
                    await self.on_doubt(reported, self.doubtful)
                    self._reported = reported
                known, by, now = self._reported, self.stages.worker, self.stages.clock()
                untouched = [r for r in remaining if r not in known.recipients]
                await self._write(next_attempt(known, untouched, by=by, now=now))
                crash.point("stage:again-written")
                self.next_record = self._written
            return self.next_record

    def _require_begun(self, recipients: Iterable[str] | None) -> tuple[str, ...]:
        requested = tuple(dict.fromkeys(self.doubtful if recipients is None else recipients))
        if unknown := set(requested) - set(self.doubtful):
            raise BadInput(f"mail {self.known.enqueue_id}: {len(unknown)} recipients are not begun")
        return requested

    def _record_at(self, recipients: Iterable[str], stage: Stage) -> MailStage:
        by, now = self.stages.worker, self.stages.clock()
        return self.known.moved(recipients, stage, by=by, now=now)

    async def _write(self, after: MailStage) -> None:
        """Writes it. If an answer was lost the table may be ahead, with our name and attempt."""
        after = replace(after, step=self._written.step + 1)
        while not await self.stages.advance(self._written, after):
            existing = await self.stages.fetch(after.enqueue_id)
            if (
                existing is None
                or existing.owner != self.stages.worker
                or existing.attempt > after.attempt
                or existing.step <= self._written.step
            ):
                self.taken = True
                raise _taken_over(after.enqueue_id)
            self._written = existing
            after = replace(after, step=existing.step + 1)
        self._written = after


def _taken_over(enqueue_id: EnqueueId) -> TakenOver:
    return TakenOver(f"mail {enqueue_id}: another worker or duty has it now")


WAIT_SECONDS = 1.0
"""Pause between two checks of a mail whose sender may be alive."""
_LONGEST_WAIT = 15 * 60.0
"""Seconds for which a living sender is waited for. After that its recipients fail as in doubt."""


@dataclass(slots=True)
class Doubt:
    """Since when a mail waits for an unchanged record in stage sending, by the event loop's clock.
    The header of a parked mail has the wall clock's time: only while it is parked is that used.
    """

    owner: str
    step: int
    since: float

    def header(self, now: datetime) -> str:
        began = now - timedelta(seconds=asyncio.get_running_loop().time() - self.since)
        return f"{epoch_ms(began)} {self.step} {self.owner}"

    @classmethod
    def of(cls, header: object, now: datetime) -> "Doubt | None":
        """By a message's header; None if it is missing or malformed."""
        parts = header.split(" ", 2) if isinstance(header, str) else []
        try:
            began, step, owner = parts
            waited = max(0.0, (now - instant(int(began))).total_seconds())
            return cls(owner, int(step), asyncio.get_running_loop().time() - waited)
        except (ValueError, OverflowError):
            return None


class Stages:
    """The stage marks of one queue, for one worker on one event loop."""

    def __init__(self, context: QueueContext) -> None:
        self.worker = context.worker
        self.clock = context.clock
        self._table = context.stores.own.mail_stages
        self._records = context.stores.own.worker_records
        self._queue = context.queue
        self._bridge = context.bridge
        # A worker that was idle writes its record a tick after it got a mail.
        every = context.settings.worker.record_every.total_seconds()
        self._first_check_seconds = 1.0 + 2 * min(1.0, every)

    def ask(self, enqueue_id: EnqueueId) -> asyncio.Future[Rows]:
        """Reads the mail's record, for `record_of`: after a lost race it is the winner's."""
        return self._bridge.rows(self._table.read_future(self._queue, enqueue_id))

    def record_of(self, enqueue_id: EnqueueId, rows: Rows) -> MailStage | None:
        """The record, None when no attempt has begun."""
        return self._table.record(rows[0], enqueue_id) if rows else None

    async def fetch(self, enqueue_id: EnqueueId) -> MailStage | None:
        return self.record_of(enqueue_id, await self.ask(enqueue_id))

    async def advance(self, before: MailStage, after: MailStage) -> bool:
        """Writes `after` if the record is still `before`. StoreUnavailable: unknown, fetch."""
        writing = self._table.advance_future(self._queue, before, after)
        return self._table.applied(await self._bridge.rows(writing))

    async def decide(
        self, item: QueuedMail, record: MailStage | None, doubt: Doubt | None
    ) -> tuple[Decision, Doubt | None]:
        """What becomes of a delivery; with WAIT, the doubt to pass to the next call."""
        lives = False
        if record is not None and record.stage is Stage.SENDING and record.owner != self.worker:
            if doubt is None or (doubt.owner, doubt.step) != (record.owner, record.step):
                doubt = Doubt(record.owner, record.step, asyncio.get_running_loop().time())
                text = "mail %s waits: %s may be sending it"
                extra = about("stage_wait", item.enqueue_id)
                log.info(text, item.enqueue_id, record.owner, extra=extra)
            lives = await self._may_live(doubt)
        recipients, by, now = item.mail.recipients, self.worker, self.clock()
        decision = decide(record, item.enqueue_id, recipients, by=by, now=now, holder_lives=lives)
        return decision, doubt if decision.verdict is DeliveryVerdict.WAIT else None

    async def _may_live(self, doubt: Doubt) -> bool:
        """Whether the sender may be alive. Never asked of this worker: it has its mails in hand."""
        waited = asyncio.get_running_loop().time() - doubt.since
        if waited < self._first_check_seconds:
            return True
        alive = self._records.alive
        return waited < _LONGEST_WAIT and await asyncio.to_thread(alive, self._queue, doubt.owner)
