"""Publishes the mails of a plan: proves each again, claims it before and records it afterwards.

A mail whose process died between claim and record stays `claimed`: its message was published or
not. The next run reports it and leaves it, unless `repeat_unknown` is set.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from uuid import UUID, uuid4

from mailslice.admin import evidence
from mailslice.codec import message
from mailslice.codec.headers import headers_of
from mailslice.codec.row import instant
from mailslice.duties.republish_lost.params import Params
from mailslice.maintenance.progress import Progress
from mailslice.maintenance.run import Run
from mailslice.model import crash
from mailslice.model.batches import batches
from mailslice.model.errors import MailsliceError, StoreUnavailable, Undecodable
from mailslice.model.mail import EnqueueId, Partition, ViewRow
from mailslice.model.names import RabbitNames
from mailslice.model.verdicts import MailVerdict, Verdict
from mailslice.stores.cassandra.own import DelayState, PublishState, Republished
from mailslice.stores.rabbitmq.checkout import dead_letter_ids
from mailslice.stores.rabbitmq.publisher import Publisher
from mailslice.stores.rabbitmq.traffic import in_delay_queues, traffic
from mailslice.view.configuration import view_shape

CONCURRENCY = 16
MAX_NAMED = 100
_BATCH = 100


class SkipReason(StrEnum):
    """Why a mail is not published."""

    DOUBTFUL = Verdict.LOST_OR_GHOST.value
    """James may have delivered it; only with accept_duplicates."""
    YOUNGER = "younger"
    DONE = "done or gone"
    """It has a mark, or no row, or lies behind browseStart."""
    DELAYED = Verdict.DELAYED.value
    HELD = Verdict.HELD.value
    IN_FLIGHT = Verdict.IN_FLIGHT.value
    DEAD_LETTERED = Verdict.DEAD_LETTERED.value
    WAITING = Verdict.WAITING.value
    """Its delay has changed since the audit, for example by a flush: the verdict is outdated."""
    BARE = Verdict.BARE.value
    UNANSWERED = "content unknown"
    """The content store gives no answer for it."""
    GHOST = Verdict.GHOST.value
    """Since the audit a worker's record, or the mail's stage marks, say that it is done."""
    ALREADY = "already republished"
    BY_THIS_RUN = "already republished by this run"
    """An earlier try of this run published it. It counts as applied, not as skipped."""
    OUTCOME_UNKNOWN = "outcome unknown"
    """An earlier publish was not confirmed; only with repeat_unknown."""


_PUBLISHED = (SkipReason.ALREADY, SkipReason.BY_THIS_RUN)
OnSkip = Callable[[str, SkipReason], None]
"""Called with the enqueue id of each mail that is not published, and with the reason."""


@dataclass(frozen=True, slots=True)
class Proved:
    """A mail that may be published, its row, and its delay, whose copy no longer exists."""

    mail: MailVerdict
    row: ViewRow
    delay: DelayState


class Prover:
    """Proves that mails of one queue are still lost. It reads facts of the queue when it is built.

    Raises StoreUnavailable when the dead letters cannot be read: a mail among them is not lost.
    """

    def __init__(self, run: Run, on_skip: OnSkip) -> None:
        stores, queue = run.stores, run.queue
        self._run, self._on_skip = run, on_skip
        self._params = run.params(Params)
        self._window = view_shape(stores).window
        self._dead_letters = dead_letter_ids(run.settings, queue)
        records = stores.own.worker_records.list(queue)
        self._in_flight = {
            mail.enqueue_id for record in records if record.is_alive for mail in record.in_flight
        }
        self._done = {enqueue_id for record in records for enqueue_id in record.done}
        self._quarantined = evidence.quarantine_reasons(stores, queue)
        self.in_delay_queues = in_delay_queues(traffic(stores.management), RabbitNames(queue))

    def prove(self, mails: Iterable[MailVerdict]) -> Iterator[list[Proved]]:
        """The mails that may be published; a list for every hundred of `mails`."""
        return map(self._prove, batches(mails, _BATCH))

    def changed(self, proved: Proved) -> SkipReason | None:
        """Why a mail may no longer be published; None if it is live and its delay is unchanged."""
        id_, run = proved.row.enqueue_id, self._run
        states = run.stores.own.delayed_mails.states(run.queue, [id_])
        if states.get(id_, DelayState()) != proved.delay:
            return SkipReason.WAITING
        return None if self._live_rows({id_: proved.mail}) else SkipReason.DONE

    def earlier_decision(self, decision: Republished) -> SkipReason | None:
        """Why a decision that the audit did not know forbids a publish; None if it allows one."""
        if decision.state is PublishState.PUBLISHED:
            by_this_run = decision.run == self._run.request.run
            return SkipReason.BY_THIS_RUN if by_this_run else SkipReason.ALREADY
        return None if self._params.repeat_unknown else SkipReason.OUTCOME_UNKNOWN

    def _prove(self, mails: Sequence[MailVerdict]) -> list[Proved]:
        queue, stores = self._run.queue, self._run.stores
        by_id = {
            EnqueueId(UUID(mail.enqueue_id)): mail
            for mail in mails
            if not self._skips(mail, self._by_audit(mail))
        }
        rows = self._live_rows(by_id)
        delays = stores.own.delayed_mails.states(queue, rows)
        decisions = stores.own.republished_mails.by_ids(queue, by_id)
        done = self._done | evidence.done_by_stages(stores, queue, rows).keys()
        bare, unanswered = evidence.missing_content(self._run.settings, list(rows.values()))
        proved = []
        for enqueue_id, mail in by_id.items():
            row, delay = rows.get(enqueue_id), delays.get(enqueue_id, DelayState())
            due, now = delay.due, self._run.clock()
            overdue = due is None or evidence.is_overdue(due, now, self.in_delay_queues)
            reasons = (
                (row is None, SkipReason.DONE),
                (enqueue_id in self._quarantined, SkipReason.HELD),
                (enqueue_id in self._in_flight, SkipReason.IN_FLIGHT),
                (enqueue_id in self._dead_letters, SkipReason.DEAD_LETTERED),
                (not overdue, SkipReason.DELAYED),
                (delay.written_us != mail.delayed_us, SkipReason.WAITING),
                (enqueue_id in done, SkipReason.GHOST),
                (enqueue_id in bare, SkipReason.BARE),
                (enqueue_id in unanswered, SkipReason.UNANSWERED),
            )
            why = self._unknown_to_audit(mail, decisions.get(enqueue_id))
            if why not in _PUBLISHED:
                why = next((reason for applies, reason in reasons if applies), why)
            if not self._skips(mail, why) and row is not None:
                proved.append(Proved(mail, row, delay))
        return proved

    def _skips(self, mail: MailVerdict, why: SkipReason | None) -> bool:
        if why is not None:
            self._on_skip(mail.enqueue_id, why)
        return why is not None

    def _by_audit(self, mail: MailVerdict) -> SkipReason | None:
        """Why the verdict forbids it. On a queue that James shares by now, lost is doubtful."""
        if mail.verdict == Verdict.BARE:
            return SkipReason.BARE
        older_than = self._params.older_than
        if older_than is not None and instant(mail.enqueued_ms) > self._run.clock() - older_than:
            return SkipReason.YOUNGER
        doubtful = mail.verdict == Verdict.LOST_OR_GHOST or self._run.settings.queue.shared
        return SkipReason.DOUBTFUL if doubtful and not self._params.accept_duplicates else None

    def _unknown_to_audit(
        self, mail: MailVerdict, decision: Republished | None
    ) -> SkipReason | None:
        """As `earlier_decision`; None if the audit knew it, whose census did not find the mail."""
        if decision is None or decision.decision == mail.decision:
            return None
        return self.earlier_decision(decision)

    def _live_rows(self, by_id: Mapping[EnqueueId, MailVerdict]) -> dict[EnqueueId, ViewRow]:
        where = {id_: Partition(instant(mail.slice_ms), mail.bucket) for id_, mail in by_id.items()}
        return evidence.still_live(self._run.stores.tables, self._run.queue, self._window, where)


class Publication:
    """One apply. `outcome_unknown`: mails whose publish, now or earlier, was not confirmed."""

    def __init__(self, run: Run, progress: Progress, concurrency: int = CONCURRENCY) -> None:
        self.concurrency = concurrency
        self.run, self.progress = run, progress
        self.prover = Prover(run, self._skip)
        self.unconfirmed = 0
        self.outcome_unknown: list[str] = []
        run.report(outcomeUnknown=self.outcome_unknown)  # the list grows

    def publish_all(self, mails: Iterable[MailVerdict]) -> None:
        """Publish until the time limit. Raises StoreUnavailable at the first store that fails."""
        throttle = self.run.throttle("rabbitmq")
        publisher = Publisher(self.run.settings.rabbitmq)
        with asyncio.Runner() as runner:
            try:
                in_time = takewhile(lambda _: not self.run.out_of_time(), mails)
                for proved in self.prover.prove(in_time):
                    for at in range(0, len(proved), self.concurrency):
                        if self.run.out_of_time():
                            return
                        batch = proved[at : at + self.concurrency]
                        throttle.take(len(batch))
                        self.run.require_lock()
                        runner.run(self._publish_batch(publisher, batch))
            finally:
                runner.run(publisher.close())

    def _skip(self, enqueue_id: str, why: SkipReason) -> None:
        if why is SkipReason.BY_THIS_RUN:
            self.progress.done()
            return
        if why is SkipReason.OUTCOME_UNKNOWN:
            self._name_unknown(enqueue_id)
        self.progress.skip(why.value)

    def _name_unknown(self, enqueue_id: str) -> None:
        if len(self.outcome_unknown) < MAX_NAMED:
            self.outcome_unknown.append(enqueue_id)

    async def _publish_batch(self, publisher: Publisher, batch: Sequence[Proved]) -> None:
        """All publishes of the batch end before the first error is raised."""
        attempts = (self._publish(publisher, proved) for proved in batch)
        outcomes = await asyncio.gather(*attempts, return_exceptions=True)
        errors = [outcome for outcome in outcomes if outcome is not None]
        for error in errors:
            if not isinstance(error, MailsliceError):
                raise error
        if errors:
            result = self.progress.result()
            raise StoreUnavailable(
                f"{errors[0]}; {result.applied} mails were published, {self.unconfirmed} without "
                f"a confirm, {result.remaining} are left to the next run"
            ) from errors[0]

    async def _publish(self, publisher: Publisher, proved: Proved) -> None:
        row, queue, enqueue_id = proved.row, self.run.queue, str(proved.row.enqueue_id)
        try:
            body = message.encode(row.item)
        except Undecodable as error:
            self.progress.fail(enqueue_id, str(error))
            return
        decision = await asyncio.to_thread(self._claim, proved)
        if isinstance(decision, SkipReason):
            self._skip(enqueue_id, decision)
            return
        crash.point("apply:claimed")
        # Checked last: a mail that is deleted from now on has its mark when the message comes. The
        # row counts, too: a cleanup may have dropped row and mark since the mail was proved.
        if (reason := await asyncio.to_thread(self.prover.changed, proved)) is not None:
            self._skip(enqueue_id, reason)
            return
        exchange = RabbitNames(queue).exchange
        try:
            await publisher.publish(exchange, body, headers_of(row.partition), row.enqueued_time)
        except MailsliceError as error:
            # An error of the broker does not prove that nothing was sent.
            self.unconfirmed += 1
            self._name_unknown(enqueue_id)
            self.progress.fail(enqueue_id, str(error))
            with suppress(MailsliceError):
                await asyncio.to_thread(self._settle, decision, PublishState.UNKNOWN)
            raise
        crash.point("apply:published")
        if proved.delay.due is not None:
            # Its row must not say that a copy will come: a flush would publish it. The write comes
            # 1 µs after the row that was read: if the mail was delayed anew, that row must win.
            closing = (queue, row.enqueue_id, uuid4(), proved.delay.written_us)
            await asyncio.to_thread(self.run.stores.own.delayed_mails.close, *closing)
        await asyncio.to_thread(self._settle, decision, PublishState.PUBLISHED)
        crash.point("apply:recorded")
        self.progress.done()  # last: it writes a file, which may fail

    def _claim(self, proved: Proved) -> Republished | SkipReason:
        """Write and return the decision to publish; or why not, if an earlier one forbids it."""
        run, table = self.run, self.run.stores.own.republished_mails
        decision = f"{run.request.run}#{uuid4().hex[:12]}"
        ids = proved.row.enqueue_id, decision, run.request.run
        claim = Republished(*ids, PublishState.CLAIMED, run.request.who, run.clock())
        ttl = run.settings.duty.claim_ttl
        current = table.claim(run.queue, claim, proved.mail.decision, ttl)
        if current.decision == claim.decision:
            return claim
        why = self.prover.earlier_decision(current)
        if why is not None:
            return why
        repeated = table.claim(run.queue, claim, current.decision, ttl)
        return claim if repeated.decision == claim.decision else SkipReason.OUTCOME_UNKNOWN

    def _settle(self, decision: Republished, state: PublishState) -> None:
        run = self.run
        run.stores.own.republished_mails.settle(
            run.queue, decision, state, run.clock(), run.settings.duty.claim_ttl
        )
