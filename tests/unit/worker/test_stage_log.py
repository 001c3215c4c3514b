"""The marks of one delivery, over a table whose answers get lost."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import product
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailslice.model.errors import BadInput, StoreUnavailable, TakenOver
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.model.stages import MailStage, Stage, decide, next_attempt
from mailslice.testing.memory import MemoryMailStages
from mailslice.worker.stages.stage_log import StageMarks

ID = EnqueueId(UUID(int=1))
QUEUE = QueueName("spool")
A, B, C = "a@x", "b@x", "c@x"
SENDING, SENT, FAILED = Stage.SENDING, Stage.SENT, Stage.FAILED


def now() -> datetime:
    return datetime(2026, 11, 21, 12, tzinfo=UTC)


@dataclass
class Table:
    """As `worker.stages.stage_log.Stages`, for one worker.

    `faults`, one a write: "lost" arrives but its answer does not, "down" does not arrive.
    """

    worker: str = "me"
    table: MemoryMailStages = field(default_factory=MemoryMailStages)
    faults: list[str] = field(default_factory=list)

    def clock(self) -> datetime:
        return now()

    async def fetch(self, enqueue_id: EnqueueId) -> MailStage | None:
        return self.table.get(QUEUE, enqueue_id)

    async def advance(self, before: MailStage, after: MailStage) -> bool:
        fault = self.faults.pop(0) if self.faults else "none"
        if fault == "down":
            raise StoreUnavailable("down")
        applied = self.table.advance(QUEUE, before, after)
        if fault == "lost":
            raise StoreUnavailable("no answer")
        return applied

    @property
    def record(self) -> MailStage | None:
        return self.table.get(QUEUE, ID)


Told = list[tuple[str, ...]]


def marks(
    table: Table, *recipients: str, told: Told | None = None, failed: Told | None = None
) -> StageMarks:
    async def late(_record: MailStage, those: tuple[str, ...]) -> None:
        assert told is not None
        told.append(those)

    async def doubt(_record: MailStage, those: tuple[str, ...]) -> None:
        if failed is not None:
            failed.append(those)

    record = decide(table.record, ID, recipients or (A, B, C), by=table.worker, now=now()).record
    return StageMarks(table, record, lambda _stage: None, doubt, late)  # type: ignore[arg-type]


@pytest.mark.parametrize("fault", ["lost", "down"])
async def test_a_sending_that_was_not_confirmed_may_be_asked_again(fault: str) -> None:
    table = Table(faults=[fault])
    made = marks(table)
    with pytest.raises(StoreUnavailable):
        await made.sending([A])
    assert made.doubtful == ()  # whoever was refused the mark has sent nothing
    await made.sending([A])
    assert made.doubtful == (A,)
    assert table.record is not None
    assert (table.record.recipients, table.record.owner) == ({A: SENDING}, "me")


@pytest.mark.parametrize("fault", ["lost", "down"])
async def test_a_sending_that_was_not_confirmed_leaves_nobody_in_doubt_after_the_retry(
    fault: str,
) -> None:
    table = Table(faults=[fault])
    made = marks(table)
    with pytest.raises(StoreUnavailable):
        await made.sending([A])
    again = await made.begin_next_attempt([A, B, C])
    assert (again.attempt, again.remaining, again.recipients) == (2, (A, B, C), {})
    assert table.record == again


@pytest.mark.parametrize("fault", ["lost", "down"])
async def test_a_sent_that_was_not_confirmed_is_written_by_what_comes_next(fault: str) -> None:
    for end in ("sending", "finish", "again"):
        table = Table()
        made = marks(table)
        await made.sending([A])
        table.faults = [fault]
        await made.sent()
        if end == "sending":
            await made.sending([B])
            assert table.record.recipients == {A: SENT, B: SENDING}  # type: ignore[union-attr]
        elif end == "finish":
            await made.finish()
            recipients = {A: SENT, B: SENT, C: SENT}
            assert table.record.recipients == recipients  # type: ignore[union-attr]
        else:
            await made.begin_next_attempt([A, B, C])
            record = table.record
            assert record is not None
            assert (record.recipients, record.remaining) == ({A: SENT}, (B, C))


async def test_a_sent_of_nobody_writes_who_was_not_sent_to() -> None:
    table = Table()
    made = marks(table)
    await made.sending([A])
    await made.not_sent()
    await made.sent()
    assert table.record is not None
    assert (table.record.recipients, set(table.record.remaining)) == ({}, {A, B, C})


@pytest.mark.parametrize("fault", ["lost", "down"])
async def test_a_retry_whose_record_was_not_confirmed_counts_one_attempt(fault: str) -> None:
    table = Table(faults=[fault, fault])
    made = marks(table)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await made.begin_next_attempt([B])
    assert made.next_record is None
    assert (await made.begin_next_attempt([B])).attempt == 2
    assert (await made.begin_next_attempt([B])).attempt == 2
    assert table.record is not None
    assert (table.record.attempt, table.record.remaining, table.record.recipients) == (
        2,
        (B,),
        {A: SENT, C: SENT},
    )


async def test_whoever_lost_the_mail_is_refused_at_every_turn() -> None:
    table = Table()
    mine = marks(table)
    yours = marks(Table("you", table.table))
    await yours.sending([A])
    with pytest.raises(TakenOver):
        await mine.sending([B])
    for refused in (mine.sending([B]), mine.finish(), mine.begin_next_attempt([B])):
        with pytest.raises(TakenOver):
            await refused
    assert table.record.owner == "you"  # type: ignore[union-attr]


@pytest.mark.parametrize("how", ["taken", "lost", "down", "none"])
async def test_nobody_is_told_of_a_doubt_in_a_mail_that_was_taken(how: str) -> None:
    table, failed = Table(), Told()
    made = marks(table, failed=failed)
    await made.sending([A])
    if how == "taken":
        decision = decide(table.record, ID, (A, B, C), by="release", now=now())
        assert table.table.advance(QUEUE, decision.record, decision.after)
        with pytest.raises(TakenOver):
            await made.begin_next_attempt([A, B, C])
        assert (failed, made.taken, table.record) == ([], True, decision.after)
        return
    table.faults = [how]
    if how != "none":
        with pytest.raises(StoreUnavailable):
            await made.begin_next_attempt([A, B, C])
        assert failed == []
    ended = await made.begin_next_attempt([A, B, C])
    assert (failed, ended.recipients, table.record) == ([(A,)], {A: FAILED}, ended)


async def test_a_doubt_is_told_with_the_step_that_the_table_has() -> None:
    """The next delivery of the mail, by the same worker, does not tell of it again."""
    table, steps = Table(), list[tuple[int, int]]()
    made = marks(table)
    await made.sending([A])
    table.faults = ["lost"]
    await made.sent([A])
    await made.sending([B])

    async def doubt(record: MailStage, _those: tuple[str, ...]) -> None:
        assert table.record is not None
        steps.append((record.step, table.record.step))

    made.on_doubt = doubt
    await made.begin_next_attempt([B, C])
    ((told, stored),) = steps
    assert told == stored


async def test_a_second_holder_is_refused_although_owner_and_attempt_have_come_back() -> None:
    """Only the step and the served recipients tell the record from that before a transaction."""
    table = Table()
    mine = marks(table)
    await mine.sending([A])
    await mine.sent()
    yours = marks(Table("you", table.table))
    await mine.sending([B])
    await mine.sent()
    with pytest.raises(TakenOver):
        await yours.sending([B])


async def test_a_record_that_another_one_moved_while_the_answer_was_lost_is_not_taken_for_ours():
    table = Table(faults=["lost"])
    mine = marks(table)
    with pytest.raises(StoreUnavailable):
        await mine.sending([A])
    decision = decide(table.record, ID, (A, B, C), by="duty", now=now())
    assert table.table.advance(QUEUE, decision.record, decision.after)
    with pytest.raises(TakenOver):
        await mine.sending([A])


@pytest.mark.parametrize("by", ["duty", "me"])
async def test_what_was_failed_and_sent_after_all_is_told(by: str) -> None:
    """By a duty, or by this worker: a handler may outlive its delivery, which was given back."""
    told: list[tuple[str, ...]] = []
    table = Table()
    mine = marks(table, told=told)
    await mine.sending([A])
    decision = decide(table.record, ID, (A, B, C), by=by, now=now())
    assert table.table.advance(QUEUE, decision.record, decision.after)
    await mine.sent()
    assert (told, mine.taken) == ([(A,)], True)
    assert table.record.recipients == {A: FAILED}  # type: ignore[union-attr]


async def test_a_handler_that_goes_on_after_its_delivery_was_ended_changes_nothing() -> None:
    told: list[tuple[str, ...]] = []
    table = Table()
    made = marks(table, told=told)
    await made.sending([A])
    ended = await made.begin_next_attempt([A, B, C])
    assert (ended.recipients, ended.remaining) == ({A: FAILED}, (B, C))
    with pytest.raises(TakenOver):
        await made.sending([B])
    await made.sent([A])
    assert (table.record, told) == (ended, [(A,)])


OPERATIONS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sampled_from(["sending", "sent", "not sent"]),
        st.sampled_from([A, B, C]),
    ),
    max_size=14,
)


@given(OPERATIONS, st.lists(st.sampled_from(["none", "none", "lost", "down"]), max_size=14))
async def test_of_two_holders_at_most_one_sends_to_a_recipient(
    operations: list[tuple[int, str, str]], faults: list[str]
) -> None:
    """In any order, with any lost answers: no recipient is allowed to both workers."""
    told: list[tuple[str, ...]] = []
    table = Table(faults=faults)
    holders = [marks(table, told=told), marks(Table("you", table.table, faults), told=told)]
    allowed: dict[str, set[int]] = {}
    for number, operation, recipient in operations:
        holder = holders[number]
        try:
            if operation == "sending" and recipient not in holder.known.recipients:
                await holder.sending([recipient])
                allowed.setdefault(recipient, set()).add(number)
            elif operation == "sent" and recipient in holder.doubtful:
                await holder.sent([recipient])
            elif operation == "not sent" and recipient in holder.doubtful:
                await holder.not_sent([recipient])
        except (StoreUnavailable, TakenOver):
            continue
    assert all(len(numbers) == 1 for numbers in allowed.values())
    assert len(set().union(*allowed.values())) <= 1


async def test_a_lone_holder_is_never_refused_and_what_it_takes_for_written_is_there() -> None:
    """With any lost answers: a record that it takes for its own write says what it would write."""
    for operations in product(("sending", "sent", "not sent"), repeat=3):
        for faults in product(("none", "lost", "down"), repeat=4):
            table = Table(faults=[*faults])
            holder = marks(table, A, B)
            for operation in (*operations, "again", "again", "again"):
                with suppress(StoreUnavailable):
                    expected = await _moved(holder, operation)
                    record = table.record
                    if expected is not None and record is not None:
                        assert record == replace(expected, step=record.step, updated=record.updated)


async def _moved(holder: StageMarks, operation: str) -> MailStage | None:
    """What the table has to have now; None when nothing may have been written."""
    known = holder.known
    if operation == "again":
        if holder.next_record is not None:
            return None
        expected = next_attempt(known, known.remaining, by="me", now=now())
        await holder.begin_next_attempt(known.remaining)
        return expected
    if operation == "sending" and known.remaining:
        await holder.sending(known.remaining[:1])
        return holder.known
    if operation == "sent":
        await holder.sent()
    elif operation == "not sent":
        await holder.not_sent()
    return None


async def test_very_many_recipients_are_not_sent_to_at_once() -> None:
    every = [f"r{number}@x.example" for number in range(20_000)]
    made = marks(Table(), *every)
    await made.sending()
    began = time.thread_time()
    await made.not_sent(reversed(every))
    assert time.thread_time() - began < 0.5
    assert made.doubtful == ()


class Slow(Table):
    """A write takes a turn of the loop to arrive; its answer one, or three for one recipient's."""

    late = A

    async def advance(self, before: MailStage, after: MailStage) -> bool:
        await asyncio.sleep(0)
        applied = await super().advance(before, after)
        for _ in range(3 if self.late in after.recipients else 1):
            await asyncio.sleep(0)
        return applied

    @property
    def stages(self) -> dict[str, Stage]:
        return {} if self.record is None else dict(self.record.recipients)


@pytest.mark.parametrize("late", [A, B])
async def test_a_handler_may_mark_several_recipients_at_once(late: str) -> None:
    table = Slow()
    table.late = late
    made = marks(table)
    await asyncio.gather(made.sending([A]), made.sending([B]))
    assert (table.stages, made.taken) == ({A: SENDING, B: SENDING}, False)
    assert made.known.recipients == table.stages
    await asyncio.gather(made.sent([A]), made.sending([C]), made.not_sent([B]))
    assert made.known.recipients == {A: SENT, C: SENDING}
    await made.sending([B])
    assert table.stages == {A: SENT, B: SENDING, C: SENDING}
    await asyncio.gather(made.sent(), made.finish())
    assert (table.stages, made.taken) == ({A: SENT, B: SENT, C: SENT}, False)


async def test_a_recipient_that_is_begun_twice_at_once_is_sent_to_once() -> None:
    made = marks(Slow())
    begun = await asyncio.gather(made.sending([A]), made.sending([A]), return_exceptions=True)
    assert [type(one) for one in begun] == [type(None), BadInput]


async def test_what_a_handler_marks_as_its_attempt_ends_is_told_or_refused() -> None:
    told: list[tuple[str, ...]] = []
    table = Slow()
    made = marks(table, told=told)
    await made.sending([A])
    ended, _, refused = await asyncio.gather(
        made.begin_next_attempt([A, B, C]),
        made.sent([A]),
        made.sending([B]),
        return_exceptions=True,
    )
    assert isinstance(refused, TakenOver)
    assert table.record == ended
    assert (table.stages, told) == ({A: SENT}, []) or (table.stages, told) == ({A: FAILED}, [(A,)])


async def test_a_mark_that_is_cancelled_keeps_no_other_one_waiting() -> None:
    table = Slow()
    made = marks(table)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await made.sending([A])
    async with asyncio.timeout(5):
        await made.sending([B])
    assert made.doubtful == (B,)
