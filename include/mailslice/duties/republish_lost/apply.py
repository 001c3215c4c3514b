"""Step 3: publish what the plan lists, each mail proved once more, claimed before its publish, and recorded after its confirm.

Killed between publish and record a mail stays `claimed`: nobody knows whether its message is out, so the next run says so and leaves it,
unless it is asked to repeat such mails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from mailslice.codec import message
from mailslice.codec.headers import headers_of
from mailslice.duties.republish_lost.plan_file import Plan, read_plan
from mailslice.duties.republish_lost.proof import Proved, Prover, Skipped
from mailslice.duty.audits import CENSUS_PATIENCE, lock_name
from mailslice.duty.clocks import require_clock
from mailslice.duty.context import StepContext
from mailslice.duty.lock import Lock, locked
from mailslice.duty.plans import require_gate
from mailslice.model import crash
from mailslice.model.errors import MailsliceError, StoreUnavailable, Undecodable
from mailslice.model.names import RabbitNames
from mailslice.spark.verdict_files import Judged
from mailslice.stores.cassandra.own import PublishState, Republished
from mailslice.stores.rabbitmq.publisher import Publisher

_AT_ONCE = 16
_MOST_NAMED = 100


def run(context: StepContext) -> dict[str, Any]:
    """What was published. Raises PlanRefused for a plan that was changed, is old, or did not pass the gate; StoreUnavailable: run it again, it goes on."""
    plan = read_plan(context.need("plan"), context.request.run, context.queue)
    require_gate(context, plan)
    require_clock(context)
    with locked(
        context.stores.own.locks,
        lock_name(context.queue),
        context.request.run,
        patience=CENSUS_PATIENCE,
    ) as lock:
        crash.point("apply:locked")
        return _Republishing(context, plan, Prover.of(context), lock).run(
            plan.mails(context.folder)
        )


@dataclass
class _Republishing:
    """The publishing of one plan, and what came of it so far. `trouble` is the store that failed: nothing new is begun then."""

    context: StepContext
    plan: Plan
    prover: Prover
    lock: Lock
    published: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    unconfirmed: list[str] = field(default_factory=list)
    trouble: MailsliceError | None = None

    def run(self, mails: Iterable[Judged]) -> dict[str, Any]:
        """Publish them all, a hundred at a time, until the time limit, or until a store fails."""
        throttle = self.context.throttle("rabbitmq")
        with asyncio.Runner() as runner:
            publisher = Publisher(self.context.settings.rabbitmq)
            for some in self.prover.prove(self._in_time(mails)):
                self.lock.check()
                for at in range(0, len(some), _AT_ONCE):
                    if self.trouble is not None or self.context.out_of_time():
                        break
                    batch = some[at : at + _AT_ONCE]
                    throttle.take(len(batch))
                    runner.run(self._publish(publisher, batch))
                    self._keep()
                if self.trouble is not None:
                    break
            runner.run(publisher.close())
        summary = self._keep()
        if self.trouble is not None:
            far = f"{summary['applied']} mails were published, {len(self.unconfirmed)} without a confirm, {summary['left']} are left to the next run"
            raise StoreUnavailable(f"{self.trouble}; {far}") from self.trouble
        return summary

    def _in_time(self, mails: Iterable[Judged]) -> Iterable[Judged]:
        for mail in mails:
            if self.context.out_of_time():
                return
            yield mail

    async def _publish(self, publisher: Publisher, batch: Sequence[Proved]) -> None:
        for outcome in await asyncio.gather(
            *(self._one(publisher, mail) for mail in batch), return_exceptions=True
        ):
            if isinstance(outcome, MailsliceError):
                self.trouble = outcome
            elif isinstance(outcome, BaseException):
                raise outcome

    async def _one(self, publisher: Publisher, mail: Proved) -> None:
        row, stores, queue = mail.row, self.context.stores, self.context.queue
        try:
            body = message.encode(row.item)
        except Undecodable as error:
            self.failures[str(row.enqueue_id)] = str(error)
            return
        if await asyncio.to_thread(stores.tables.deleted.is_marked, queue, row.enqueue_id):
            self.prover.skipped[Skipped.DONE.value] += 1
            return
        decision = await asyncio.to_thread(self._claimed, mail)
        if decision is None:
            return
        crash.point("apply:claimed")
        try:
            await publisher.publish(
                RabbitNames(queue).exchange, body, headers_of(row.place), row.enqueued_time
            )
        except MailsliceError:
            # An error of the broker is not "not sent".
            self.unconfirmed.append(str(row.enqueue_id))
            with suppress(MailsliceError):
                await asyncio.to_thread(self._settle, decision, PublishState.UNKNOWN)
            raise
        crash.point("apply:published")
        self.published += 1
        await asyncio.to_thread(self._settle, decision, PublishState.PUBLISHED)
        crash.point("apply:recorded")
        if mail.due is not None:
            await asyncio.to_thread(self._close_delay, mail)

    def _claimed(self, mail: Proved) -> Republished | None:
        """The decision to publish it, written before the publish; None when an earlier one stands, which is counted."""
        table, queue, request = (
            self.context.stores.own.republished_mails,
            self.context.queue,
            self.context.request,
        )
        wanted = Republished(
            mail.row.enqueue_id,
            f"{request.run}#{uuid4().hex[:12]}",
            request.run,
            PublishState.CLAIMED,
            request.who,
            self.context.clock(),
        )
        ttl = self.context.settings.duty.retention
        standing = table.claim(queue, wanted, mail.judged.decision, ttl)
        if standing.decision == wanted.decision:
            return wanted
        why = self.prover.standing(standing)
        if why is None:
            if table.claim(queue, wanted, standing.decision, ttl).decision == wanted.decision:
                return wanted
            why = Skipped.OUTCOME_UNKNOWN
        self.prover.skipped[why.value] += 1
        return None

    def _settle(self, decision: Republished, state: PublishState) -> None:
        table, ttl = self.context.stores.own.republished_mails, self.context.settings.duty.retention
        table.settle(self.context.queue, decision, state, self.context.clock(), ttl)

    def _close_delay(self, mail: Proved) -> None:
        """Its copy was gone, and it is published now: the row must not say that it is still to come."""
        table, queue = self.context.stores.own.delayed_mails, self.context.queue
        row = table.read(queue, mail.row.enqueue_id)
        if row is not None and not row.published:
            table.close(queue, row.enqueue_id, uuid4(), row.written_us)

    def _keep(self) -> dict[str, Any]:
        """The summary so far, kept in the run's folder for the report of a run that ends early."""
        applied = self.published + self.prover.published_before
        skipped = self.prover.skipped.total()
        failed = len(self.failures) + len(self.unconfirmed)
        summary = {
            "planDigest": self.plan.digest,
            "planned": self.plan.rows.count,
            "applied": applied,
            "skipped": skipped,
            "failed": failed,
            "left": self.plan.rows.count - applied - skipped - failed,
            "skippedBy": dict(self.prover.skipped),
            "failures": dict(list(self.failures.items())[:_MOST_NAMED]),
            "outcomeUnknown": [*self.prover.unknown, *self.unconfirmed][:_MOST_NAMED],
        }
        self.context.folder.write_json("progress.json", summary)
        return summary
