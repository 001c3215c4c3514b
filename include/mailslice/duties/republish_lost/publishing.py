"""Publishes what a plan lists: proved again, claimed before the publish, recorded after it.

A mail whose process died between claim and record stays `claimed`: nobody knows whether its message
is out. The next run reports it and leaves it, unless `repeat_unknown` is set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from uuid import uuid4

from mailslice.codec import message
from mailslice.codec.headers import headers_of
from mailslice.duties.republish_lost.proof import Proved, Prover, SkipReason
from mailslice.maintenance.progress import Progress
from mailslice.maintenance.run import Run
from mailslice.model import crash
from mailslice.model.errors import MailsliceError, StoreUnavailable, Undecodable
from mailslice.model.names import RabbitNames
from mailslice.model.verdicts import MailVerdict
from mailslice.stores.cassandra.own import PublishState, Republished
from mailslice.stores.rabbitmq.publisher import Publisher

CONCURRENCY = 16
MAX_NAMED = 100


class Publication:
    """One apply. `outcome_unknown`: mails whose publish, now or earlier, nobody saw confirmed."""

    def __init__(self, run: Run, progress: Progress, concurrency: int = CONCURRENCY) -> None:
        self.concurrency = concurrency
        self.run, self.progress = run, progress
        self.prover = Prover(run, self._skip)
        self.unconfirmed = 0
        self.outcome_unknown: list[str] = []
        run.report(outcomeUnknown=self.outcome_unknown)  # the list grows

    def publish_all(self, mails: Iterable[MailVerdict]) -> None:
        """Until the time is over. Raises StoreUnavailable at the first store that fails."""
        throttle = self.run.throttle("rabbitmq")
        publisher = Publisher(self.run.settings.rabbitmq)
        with asyncio.Runner() as runner:
            try:
                for proved in self.prover.prove(self._in_time(mails)):
                    for at in range(0, len(proved), self.concurrency):
                        if self.run.out_of_time():
                            return
                        batch = proved[at : at + self.concurrency]
                        throttle.take(len(batch))
                        self.run.require_lock()
                        runner.run(self._publish_batch(publisher, batch))
            finally:
                runner.run(publisher.close())

    def _in_time(self, mails: Iterable[MailVerdict]) -> Iterator[MailVerdict]:
        for mail in mails:
            if self.run.out_of_time():
                return
            yield mail

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
        """All of them end before the first error is raised."""
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
        # Last: a mail that is deleted from now on has its mark when the message is delivered. The
        # row counts, too: a cleanup may have dropped both since the mail was proved.
        if not await asyncio.to_thread(self.prover.is_live, proved):
            self._skip(enqueue_id, SkipReason.DONE)
            return
        exchange = RabbitNames(queue).exchange
        try:
            await publisher.publish(exchange, body, headers_of(row.partition), row.enqueued_time)
        except MailsliceError as error:
            # An error of the broker is not "not sent".
            self.unconfirmed += 1
            self._name_unknown(enqueue_id)
            self.progress.fail(enqueue_id, str(error))
            with suppress(MailsliceError):
                await asyncio.to_thread(self._settle, decision, PublishState.UNKNOWN)
            raise
        crash.point("apply:published")
        self.progress.done()
        await asyncio.to_thread(self._settle, decision, PublishState.PUBLISHED)
        crash.point("apply:recorded")
        if proved.due is not None:
            await asyncio.to_thread(self._close_delay, proved)

    def _claim(self, proved: Proved) -> Republished | SkipReason:
        """The decision to publish it, written before; why not, where an earlier one stands."""
        run, table = self.run, self.run.stores.own.republished_mails
        claim = Republished(
            proved.row.enqueue_id,
            f"{run.request.run}#{uuid4().hex[:12]}",
            run.request.run,
            PublishState.CLAIMED,
            run.request.who,
            run.clock(),
        )
        retention = run.settings.duty.retention
        current = table.claim(run.queue, claim, proved.mail.decision, retention)
        if current.decision == claim.decision:
            return claim
        why = self.prover.earlier_decision(current)
        if why is not None:
            return why
        repeated = table.claim(run.queue, claim, current.decision, retention)
        return claim if repeated.decision == claim.decision else SkipReason.OUTCOME_UNKNOWN

    def _settle(self, decision: Republished, state: PublishState) -> None:
        run = self.run
        run.stores.own.republished_mails.settle(
            run.queue, decision, state, run.clock(), run.settings.duty.retention
        )

    def _close_delay(self, proved: Proved) -> None:
        """Its copy was gone, and it is published now: the row must not say that it will come."""
        table = self.run.stores.own.delayed_mails
        row = table.get(self.run.queue, proved.row.enqueue_id)
        if row is not None and not row.published:
            table.close(self.run.queue, row.enqueue_id, uuid4(), row.written_us)
