"""Stage marks on a queue that has them: what a delivery finds, what a handler marks, what a retry
writes first.
"""

from __future__ import annotations

import asyncio
import email
import email.policy
import logging
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from mailslice.admin.quarantine import Decided, Holder, Quarantine
from mailslice.admin.queues import create
from mailslice.codec import message
from mailslice.codec.reports import Failure
from mailslice.model.errors import BadInput, BadSetting, TakenOver
from mailslice.model.mail import EnqueueId, QueuedMail
from mailslice.model.stages import MailStage, Stage, decide
from mailslice.stores.cassandra.own.quarantine import State
from mailslice.worker import Deliveries, Delivery, QueueWorker, open_queue, open_worker
from mailslice.worker.dequeue.in_doubt import InDoubt
from mailslice.worker.outcome import Disposition
from tests.services.worker.conftest import Place4Queue, at, mail

A, B, C = "a@next.example", "b@next.example", "c@next.example"
CONTENT = b"Subject: x\r\n\r\nbody"
SENDING, SENT, FAILED = Stage.SENDING, Stage.SENT, Stage.FAILED
BOUNCES = "reports"


@pytest.fixture(scope="module")
def deployment(fresh_module: Any) -> Any:
    return fresh_module.but(
        MAILSLICE_WORKER_RECORD_EVERY="300ms", MAILSLICE_WORKER_BOUNCE_QUEUE=BOUNCES
    )


@pytest.fixture
def spool(deployment: Any, request: pytest.FixtureRequest) -> Any:
    name = f"q{abs(hash(request.node.name))}"
    for world in at(deployment.but(MAILSLICE_QUEUE_STAGE_MARKS=f"other,{name}").settings, name):
        create(world.stores, BOUNCES)
        yield world


async def next_of(deliveries: Deliveries, seconds: float = 30) -> Delivery:
    return await asyncio.wait_for(anext(deliveries), seconds)


async def enqueued(worker: QueueWorker, *recipients: str) -> QueuedMail:
    return await worker.enqueue(mail(recipients=recipients or (A, B, C)), CONTENT)


def record(spool: Place4Queue, item: QueuedMail) -> MailStage | None:
    found = spool.stores.own.mail_stages.get(spool.queue, item.enqueue_id)
    return None if found is None else replace(found, updated=None)


def put(
    spool: Place4Queue,
    enqueue_id: EnqueueId,
    remaining: tuple[str, ...] = (),
    *,
    owner: str = "gone",
    **states: Stage,
) -> None:
    """A record that a worker who is gone has left."""
    named = {f"{name}@next.example": stage for name, stage in states.items()}
    assert spool.stores.own.mail_stages.advance(
        spool.queue, None, MailStage(enqueue_id, owner, 1, 1, remaining, named)
    )


async def settled(spool: Place4Queue, deliveries: Deliveries, *items: QueuedMail) -> None:
    """Nothing is delivered until all are marked, and then the broker has nothing left."""
    ids = {item.enqueue_id for item in items}
    async with asyncio.timeout(60):
        while not ids <= spool.marks():
            with pytest.raises(TimeoutError):
                await next_of(deliveries, 0.5)
        while deliveries.idle_seconds < 0.5:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.1)


def set_aside(spool: Place4Queue) -> list[tuple[EnqueueId, int, tuple[str, ...], str]]:
    """(enqueue id, attempt, recipients, whether it was finished after all) of each mail in
    quarantine.
    """
    return [
        (
            kept.enqueue_id,
            kept.attempt,
            message.decode(kept.message).mail.recipients,
            kept.finished is not None,
        )
        for kept in spool.stores.own.quarantine.list(spool.queue)
    ]


def decisions(spool: Place4Queue) -> list[tuple[EnqueueId, str]]:
    now = datetime.now(UTC)
    return [
        (row.enqueue_id, row.action)
        for row in spool.stores.own.decisions.list(
            spool.queue, now - timedelta(days=1), now + timedelta(days=1)
        )
    ]


def reports(spool: Place4Queue) -> list[tuple[tuple[str, ...], email.message.EmailMessage]]:
    found = []
    written = spool.stores.tables.written
    pages = written.rows_of(BOUNCES, written.partitions(BOUNCES))
    for row in [row for _, page in pages for row in page]:
        content = spool.stores.blobs.get(row.item.header_blob_id) + spool.stores.blobs.get(
            row.item.body_blob_id
        )
        assert row.item.mail.sender is None
        found.append(
            (
                row.item.mail.recipients,
                email.message_from_bytes(content, policy=email.policy.default),
            )
        )
    return found


def reported(spool: Place4Queue) -> list[str]:
    """The recipients that any report names as failed, of all reports in the queue of this module's
    tests.
    """
    return sorted(
        str(block["Final-Recipient"]).removeprefix("rfc822; ")
        for _, report in reports(spool)
        for block in list(report.iter_parts())[1].get_payload()
        if block["Final-Recipient"]
    )


def new_reports(spool: Place4Queue, before: list[str]) -> list[str]:
    left = reported(spool)
    for name in before:
        left.remove(name)
    return left


async def test_a_mail_that_is_only_received_and_loaded_writes_nothing(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await enqueued(worker)
        async with aclosing(worker.deliveries(3)) as deliveries:
            delivery = await next_of(deliveries)
            assert (delivery.stage, delivery.attempt) == ("loaded", 1)
            await delivery.complete()
    assert record(spool, item) is None
    assert spool.marks() == {item.enqueue_id}


async def test_each_recipient_is_marked_as_sending_and_as_sent(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await enqueued(worker)
        async with aclosing(worker.deliveries(3)) as deliveries:
            delivery = await next_of(deliveries)
            stage = delivery.stage_for_coroutine()
            await stage.sending([A, B])
            me = worker.context.worker
            assert record(spool, item) == MailStage(
                item.enqueue_id, me, 1, 1, (C,), {A: SENDING, B: SENDING}
            )
            assert delivery.stage == "sending"
            await stage.sent()
            await stage.sending()
            await stage.not_sent()
            await stage.sending([C])
            assert record(spool, item) == MailStage(
                item.enqueue_id, me, 1, 4, (), {A: SENT, B: SENT, C: SENDING}
            )
            await stage.sent([C])
            assert delivery.stage == "sent"
            await delivery.complete()
    assert record(spool, item).stage is Stage.SENT
    assert spool.marks() == {item.enqueue_id}
    assert spool.ready(spool.names.work_queue) == 0


async def test_marks_that_make_no_sense_are_refused(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        await enqueued(worker, A, B)
        async with aclosing(worker.deliveries(3)) as deliveries:
            stage = (await next_of(deliveries)).stage_for_coroutine()
            with pytest.raises(BadInput, match="not begun"):
                await stage.sent([A])
            await stage.sending([A])
            for wrong in ([A], [C]):
                with pytest.raises(BadInput, match="begun already, or are not the mail's"):
                    await stage.sending(wrong)


async def test_a_retry_writes_the_next_attempt_first_and_carries_only_who_remains(
    spool: Any,
) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await enqueued(worker)
        async with aclosing(worker.deliveries(3)) as deliveries:
            delivery = await next_of(deliveries)
            stage = delivery.stage_for_coroutine()
            await stage.sending([A])
            await stage.sent()
            await stage.sending([B])
            await stage.not_sent()
            await delivery.retry()  # says nothing of whom it served: the marks do
            assert record(spool, item) == MailStage(
                item.enqueue_id, worker.context.worker, 2, 4, (B, C), {A: SENT}
            )
            again = await next_of(deliveries)
            assert (again.attempt, again.item.mail.recipients) == (2, (B, C))
            await again.retry(recipients=[C], after=timedelta(seconds=1))
            last = await next_of(deliveries)
            assert (last.attempt, last.item.mail.recipients) == (3, (C,))
            assert [row.item.mail.recipients for row in spool.rows()] == [(C,)]
            assert last.age is not None
            assert timedelta(0) < last.age < timedelta(minutes=2)
            await last.complete()
    assert record(spool, item).recipients == {A: SENT, B: SENT, C: SENT}
    assert spool.ready(spool.names.work_queue) == 0


async def test_an_older_copy_serves_only_who_remains(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await enqueued(worker)
        put(spool, item.enqueue_id, (C,), a=SENT, b=FAILED)
        spool.publish(
            spool.names.exchange, message.encode(item)
        )  # a redrive: it does not say redelivered
        async with aclosing(worker.deliveries(3)) as deliveries:
            delivery = await next_of(deliveries)
            assert delivery.item.mail.recipients == (C,)
            await delivery.complete()
            with pytest.raises(TimeoutError):
                await next_of(deliveries, 1)
    assert record(spool, item).recipients == {A: SENT, B: FAILED, C: SENT}


async def test_a_mail_whose_recipients_all_were_served_is_completed(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await enqueued(worker, A)
        put(spool, item.enqueue_id, a=SENT)
        async with aclosing(worker.deliveries(3)) as deliveries:
            await settled(spool, deliveries, item)
    assert spool.ready(spool.names.work_queue) == 0
    assert not {item.header_blob_id, item.body_blob_id} & spool.blob_keys()


async def test_recipients_in_doubt_fail_and_are_reported_and_the_others_are_served(
    spool: Any, caplog: Any
) -> None:
    before = reported(spool)
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await enqueued(worker)
        put(spool, item.enqueue_id, (C,), a=SENT, b=SENDING)
        with caplog.at_level(logging.ERROR):
            async with aclosing(worker.deliveries(3)) as deliveries:
                delivery = await next_of(deliveries)
                assert (delivery.item.mail.recipients, delivery.attempt) == ((C,), 2)
                assert record(spool, item) == MailStage(
                    item.enqueue_id, worker.context.worker, 2, 2, (C,), {A: SENT, B: FAILED}
                )
                await delivery.complete()
    assert worker.context.statistics.in_doubt == 1
    assert set_aside(spool) == [(item.enqueue_id, 1, (B,), False)]
    assert decisions(spool) == [(item.enqueue_id, "failed")]
    assert f"mail {item.enqueue_id}: 1 recipients failed in attempt 1" in caplog.text
    assert "@" not in caplog.text
    assert new_reports(spool, before) == [B]
    assert record(spool, item).stage is FAILED


async def test_a_mail_of_which_nobody_is_left_after_a_failure_is_closed(spool: Any) -> None:
    before = reported(spool)
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await enqueued(worker, A, B)
        put(spool, item.enqueue_id, a=SENT, b=SENDING)
        async with aclosing(worker.deliveries(3)) as deliveries:
            await settled(spool, deliveries, item)
    assert record(spool, item).recipients == {A: SENT, B: FAILED}
    assert spool.ready(spool.names.work_queue) == 0
    assert new_reports(spool, before) == [B]


async def test_the_report_goes_to_the_sender_with_the_header_and_the_null_sender_gets_none(
    spool: Any,
) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        nobody = await worker.enqueue(
            mail("from nobody", sender=None, recipients=("nobody-told@next.example",)), CONTENT
        )
        told = await worker.enqueue(
            mail("told", sender="author@home.example", recipients=("told@next.example",)), CONTENT
        )
        # James' JSON may name a sender of whom no header can be made: the operator is told, and the
        # mail is held by nobody for ever.
        hopeless = await worker.enqueue(
            mail("hopeless", sender="a@[", recipients=("never-told@next.example",)), CONTENT
        )
        for item in (nobody, told, hopeless):
            states = {item.mail.recipients[0]: SENDING}
            assert spool.stores.own.mail_stages.advance(
                spool.queue, None, MailStage(item.enqueue_id, "gone", 1, 1, (), states)
            )
        async with aclosing(worker.deliveries(3)) as deliveries:
            await settled(spool, deliveries, nobody, told, hopeless)
    assert not {"nobody-told@next.example", "never-told@next.example"} & set(reported(spool))
    assert record(spool, hopeless).recipients == {"never-told@next.example": FAILED}
    ((_, report),) = [found for found in reports(spool) if found[0] == ("author@home.example",)]
    assert "Subject: x" in list(report.iter_parts())[2].get_content()
    assert "body" not in list(report.iter_parts())[2].get_content()


async def test_a_sender_who_lives_is_waited_for(spool: Any) -> None:
    """Two workers hold the same mail, as after a lost connection: the second one neither sends nor
    fails it while the first one lives.
    """
    async with (
        open_worker(spool.settings, spool.queue) as first,
        open_worker(spool.settings, spool.queue) as second,
    ):
        item = await enqueued(first, A)
        async with aclosing(first.deliveries(1)) as ours, aclosing(second.deliveries(1)) as theirs:
            delivery = await next_of(ours)
            stage = delivery.stage_for_coroutine()
            await stage.sending()
            spool.publish(spool.names.exchange, message.encode(item))
            with pytest.raises(TimeoutError):
                await next_of(theirs, 4)
            assert record(spool, item).recipients == {A: SENDING}
            marking = {
                each.worker: each.stage_marks
                for each in spool.stores.own.worker_records.list(spool.queue)
            }
            assert marking.get(first.context.worker) is True
            assert not marking.get(second.context.worker, False)  # it gave nobody a stage to mark
            await stage.sent()
            await delivery.complete()
            with pytest.raises(TimeoutError):
                await next_of(theirs, 1.5)
    assert record(spool, item).stage is Stage.SENT
    assert spool.ready(spool.names.work_queue) == 0


async def test_of_two_who_hold_a_mail_one_is_refused_and_gives_it_back(spool: Any) -> None:
    async with (
        open_worker(spool.settings, spool.queue) as first,
        open_worker(spool.settings, spool.queue) as second,
    ):
        item = await enqueued(first, A, B)
        async with aclosing(first.deliveries(1)) as ours, aclosing(second.deliveries(1)) as theirs:
            mine = await next_of(ours)
            spool.publish(spool.names.exchange, message.encode(item))
            yours = await next_of(theirs)
            await yours.stage_for_coroutine().sending([A])
            stage = mine.stage_for_coroutine()
            for _ in range(2):
                with pytest.raises(TakenOver):
                    await stage.sending()
            await mine.complete()  # a handler that swallows the refusal
            assert spool.marks() == set()
            assert record(spool, item).owner == second.context.worker
            await yours.stage_for_coroutine().sent()
            await yours.retry(recipients=[B])
            again = await next_of(ours)
            if (
                again.attempt == 1
            ):  # the copy that was given back, between the two writes of the other's retry
                with pytest.raises(TakenOver):
                    await again.stage_for_coroutine().sending([B])
                await again.complete()
                again = await next_of(ours)
            assert (again.item.mail.recipients, again.attempt) == ((B,), 2)
            await again.complete()
            for deliveries in (ours, theirs):
                with suppress(
                    TimeoutError
                ):  # one may have been looked at before the mark was there
                    left = await next_of(deliveries, 1)
                    with pytest.raises(TakenOver):
                        await left.stage_for_coroutine().sending([B])
                    await left.complete()  # gives it back: the next look finds the mark
            for deliveries in (ours, theirs):
                await settled(spool, deliveries, item)
    assert spool.ready(spool.names.work_queue) == 0
    assert spool.marks() == {item.enqueue_id}


async def test_a_handler_that_ends_in_doubt_fails_those_it_was_sending_to_and_the_rest_is_retried(
    spool: Any,
) -> None:
    before = reported(spool)
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await enqueued(worker)
        async with aclosing(worker.deliveries(3)) as deliveries:
            delivery = await next_of(deliveries)
            await delivery.stage_for_coroutine().sending([A])
            await delivery.retry()  # as for an exception
            again = await next_of(deliveries)
            assert (again.item.mail.recipients, again.attempt) == ((B, C), 2)
            await again.stage_for_coroutine().sending()
            await again.retry()
            await settled(spool, deliveries, item)
    assert record(spool, item).recipients == dict.fromkeys((A, B, C), FAILED)
    assert new_reports(spool, before) == [A, B, C]


async def test_who_failed_and_is_sent_to_after_all_is_corrected_and_nobody_else_is_touched(
    spool: Any,
) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await enqueued(worker)
        async with aclosing(worker.deliveries(3)) as deliveries:
            delivery = await next_of(deliveries)
            stage = delivery.stage_for_coroutine()
            await stage.sending([A])
            read = spool.stores.own.mail_stages.get(spool.queue, item.enqueue_id)
            decision = decide(
                read,
                item.enqueue_id,
                item.mail.recipients,
                by="run of a duty",
                now=worker.context.clock(),
            )
            assert decision.failed == (A,)
            holder = Holder(worker.context.worker, "sending", worker.context.clock(), timedelta(0))
            Quarantine(spool.stores, spool.queue, worker.context.clock).keep(
                item, holder, Decided("failed", "hangs", "duty"), State.KEPT
            )
            assert spool.stores.own.mail_stages.advance(
                spool.queue, decision.record, decision.after
            )
            await stage.sent()
            with pytest.raises(TakenOver):
                await stage.sending()
            await delivery.complete()
            assert spool.marks() == set()
            again = await next_of(deliveries)
            assert (again.item.mail.recipients, again.attempt) == ((B, C), 2)
            await again.complete()
    assert [(attempt, finished) for _, attempt, _, finished in set_aside(spool)] == [(1, True)]
    assert decisions(spool) == [(item.enqueue_id, "sent")]


async def test_nobody_is_told_of_a_doubt_in_a_mail_that_was_released_from_quarantine(
    spool: Any,
) -> None:
    """Its handler hung as it sent to A, woke after a close and a release, and raised."""
    before = reported(spool)
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await enqueued(worker, A, B)
        async with aclosing(worker.deliveries(1)) as deliveries:
            delivery = await next_of(deliveries)
            await delivery.stage_for_coroutine().sending([A])
            read = spool.stores.own.mail_stages.get(spool.queue, item.enqueue_id)
            how: Any = {"by": "release", "now": worker.context.clock()}
            after = decide(read, item.enqueue_id, item.mail.recipients, **how).after
            assert spool.stores.own.mail_stages.advance(spool.queue, read, after)
            spool.stores.tables.deleted.mark_many(spool.queue, [item.enqueue_id])
            await delivery.retry()  # as for an exception
            await settled(spool, deliveries, item)
    assert (set_aside(spool), decisions(spool), new_reports(spool, before)) == ([], [], [])
    assert record(spool, item) == replace(after, updated=None)


@pytest.mark.parametrize("became", [SENT, None, FAILED])
async def test_who_was_told_as_failed_too_early_is_corrected_and_the_next_in_doubt_is_told(
    spool: Any, became: Stage | None
) -> None:
    told: list[tuple[str, ...]] = []

    async def report(doubtful: QueuedMail, *_: object) -> bool:
        """The first time the sender, or another process, is faster than the record."""
        told.append(doubtful.mail.recipients)
        if len(told) == 1 and became is FAILED:
            assert await in_doubt.stages.advance(decision.record, decision.after)
        elif len(told) == 1:
            await (stage.sent() if became is SENT else stage.not_sent())
            await stage.sending([B])
        return True

    reporter: Any = SimpleNamespace(report=report)
    async with open_worker(spool.settings, spool.queue) as worker:
        assert worker.state.in_doubt is not None
        in_doubt = InDoubt(worker.context, worker.state.in_doubt.stages, reporter)
        worker.state.in_doubt = in_doubt
        item = await enqueued(worker)
        async with aclosing(worker.deliveries(3)) as deliveries:
            delivery = await next_of(deliveries)
            stage = delivery.stage_for_coroutine()
            await stage.sending([A])
            read = spool.stores.own.mail_stages.get(spool.queue, item.enqueue_id)
            how: Any = {"by": "another", "now": worker.context.clock()}
            decision = decide(read, item.enqueue_id, item.mail.recipients, **how)
            assert not await in_doubt.fail(item, decision)
            assert (item.enqueue_id, "sent") in decisions(spool) or became is FAILED
            assert [finished for *_, finished in set_aside(spool)] == [became is not FAILED]
            await delivery.retry()
            left = {SENT: (C,), None: (A, C), FAILED: (B, C)}[became]
            assert (await next_of(deliveries)).item.mail.recipients == left
    assert told == [(A,), *([] if became is FAILED else [(B,)])]


@pytest.mark.parametrize("action", ["failed", "released"])
async def test_those_in_doubt_have_a_row_of_their_own_whatever_a_run_was_recovering(
    spool: Any, action: str
) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await enqueued(worker, A, B)
        async with aclosing(worker.deliveries(3)) as deliveries:
            delivery = await next_of(deliveries)
            await delivery.stage_for_coroutine().sending([A])
            quarantine = Quarantine(spool.stores, spool.queue, worker.context.clock)
            holder = Holder(worker.context.worker, "sending", worker.context.clock(), timedelta(0))
            doubtful = replace(item, mail=replace(item.mail, recipients=(A,)))
            of_run = quarantine.keep(
                doubtful, holder, Decided(action, "hangs", "duty", "run-1"), State.RECOVERING
            )
            # As for an exception, between the run's row and its taking of the mail (refused then).
            await delivery.retry()
            assert not quarantine.withdraw(of_run)
            assert set_aside(spool) == [(item.enqueue_id, 1, (A,), False)]
            await (await next_of(deliveries)).complete()
    assert [kept.state for kept in quarantine.mails()] == [State.KEPT]


async def test_a_rejected_mail_names_only_who_remains_also_when_it_is_redriven(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await enqueued(worker)
        async with aclosing(worker.deliveries(3)) as deliveries:
            delivery = await next_of(deliveries)
            await delivery.stage_for_coroutine().sending([A])
            await delivery.stage_for_coroutine().sent()
            await delivery.reject("never")
            _, body = spool.take(spool.names.dead_letter_queue)
            assert message.decode(body).mail.recipients == (B, C)
            spool.publish(spool.names.exchange, message.encode(item))
            assert (await next_of(deliveries)).item.mail.recipients == (B, C)
    assert record(spool, item).attempt == 2


async def test_a_bounced_mail_is_reported_and_done_and_the_null_senders_goes_to_the_dead_letters(
    spool: Any,
) -> None:
    before = reported(spool)
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await enqueued(worker, A)
        nobody = await worker.enqueue(mail("from nobody", sender=None, recipients=(B,)), CONTENT)
        async with aclosing(worker.deliveries(3)) as deliveries:
            for _ in range(2):
                delivery = await next_of(deliveries)
                (recipient,) = delivery.item.mail.recipients
                stage = delivery.stage_for_coroutine()
                await stage.sending()
                await stage.not_sent()
                await delivery.bounce("refused", [Failure(recipient, "5.1.1", "no")])
    assert new_reports(spool, before) == [A]
    assert spool.marks() == {item.enqueue_id}
    assert record(spool, item).recipients == {A: FAILED}
    assert (
        spool.wait_for_ready(spool.names.dead_letter_queue, 1),
        spool.ready(spool.names.work_queue),
    ) == (1, 0)
    assert record(spool, nobody).recipients == {}


async def test_who_is_not_in_doubt_is_bounced_by_the_next_delivery_and_is_no_dead_letter(
    spool: Any,
) -> None:
    before = reported(spool)
    failures = [Failure(recipient, "5.1.1", "no") for recipient in (A, B)]
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await enqueued(worker, A, B)
        async with aclosing(worker.deliveries(3)) as deliveries:
            delivery = await next_of(deliveries)
            await delivery.stage_for_coroutine().sending([B])
            assert await delivery.bounce("refused", failures) is Disposition.RETRIED
            assert new_reports(spool, before) == [B]
            again = await next_of(deliveries)
            assert again.item.mail.recipients == (A,)
            assert await again.bounce("refused", failures[:1]) is Disposition.BOUNCED
            await settled(spool, deliveries, item)
    assert new_reports(spool, before) == [A, B]
    assert record(spool, item).recipients == {A: FAILED, B: FAILED}
    assert spool.ready(spool.names.dead_letter_queue) == 0


async def test_what_is_given_back_at_the_end_counts_as_no_attempt(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await enqueued(worker)
        async with aclosing(worker.deliveries(3)) as deliveries:
            waiting = asyncio.ensure_future(anext(deliveries))
            await asyncio.sleep(0.3)
            await (await waiting).requeue()
    assert record(spool, item) is None
    assert spool.wait_for_ready(spool.names.work_queue, 1) == 1


async def test_a_queue_without_marks_has_none(deployment: Any) -> None:
    for spool in at(deployment.settings, "plain"):
        create(spool.stores, BOUNCES)
        async with open_worker(spool.settings, spool.queue) as worker:
            assert worker.state.in_doubt is None
            item = await enqueued(worker)
            put(spool, item.enqueue_id, (), a=SENDING, b=SENT, c=SENT)
            async with aclosing(worker.deliveries(3)) as deliveries:
                delivery = await next_of(deliveries)
                assert delivery.item.mail.recipients == (A, B, C)
                await delivery.stage_for_coroutine().sending()
                await delivery.stage_for_coroutine().sent()
                await delivery.complete()
        assert record(spool, item).step == 1


async def test_what_stage_marks_and_reports_need_is_checked_at_the_start(deployment: Any) -> None:
    for spool in at(deployment.settings, "checked"):
        create(spool.stores, BOUNCES)
        marked = deployment.but(MAILSLICE_QUEUE_STAGE_MARKS="checked")
        with pytest.raises(BadSetting, match="MAILSLICE_WORKER_RECORD_EVERY=0s"):
            async with open_worker(
                marked.but(MAILSLICE_WORKER_RECORD_EVERY="0s").settings, spool.queue
            ):
                pass
        for wrong in ("nowhere", "a/b"):
            with pytest.raises(BadSetting, match=f"MAILSLICE_WORKER_BOUNCE_QUEUE: .*'{wrong}'"):
                async with open_worker(
                    deployment.but(MAILSLICE_WORKER_BOUNCE_QUEUE=wrong).settings, spool.queue
                ):
                    pass


async def test_an_iterator_without_an_event_loop_marks_too(spool: Any) -> None:
    def work() -> QueuedMail:
        with open_queue(spool.queue, spool.settings) as queue:
            item = queue.enqueue(mail(recipients=(A, B)), CONTENT)
            for delivery in queue.deliveries(idle=timedelta(seconds=1)):
                (first, *others) = delivery.mail.recipients
                delivery.stage.sending([first])
                delivery.stage.sent([first])
                delivery.retry(others)
            return item

    item = await asyncio.to_thread(work)
    left = record(spool, item)
    assert left is not None
    assert (left.attempt, left.recipients) == (2, {A: SENT, B: SENT})
