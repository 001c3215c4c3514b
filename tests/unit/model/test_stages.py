from __future__ import annotations

import time
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailslice.model.mail import EnqueueId
from mailslice.model.stages import Decision, DeliveryVerdict, MailStage, Stage, decide, next_attempt

ID = EnqueueId(UUID(int=1))
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
A, B, C = "a@x", "b@x", "c@x"
SENDING, SENT, FAILED = Stage.SENDING, Stage.SENT, Stage.FAILED


def record(remaining: tuple[str, ...] = (), **states: Stage) -> MailStage:
    return MailStage(
        ID, "w1", 3, 7, remaining, {f"{name}@x": stage for name, stage in states.items()}, NOW
    )


def decided(read: MailStage | None, *recipients: str, lives: bool = False) -> Decision:
    return decide(read, ID, recipients or (A, B, C), by="w2", now=NOW, holder_lives=lives)


@pytest.mark.parametrize(
    ("read", "verdict", "left", "failed"),
    [
        (None, DeliveryVerdict.HANDLE, (A, B, C), ()),
        (record((A, B, C)), DeliveryVerdict.HANDLE, (A, B, C), ()),
        (record((C,), a=SENT, b=SENT), DeliveryVerdict.HANDLE, (C,), ()),
        (record((C,), a=FAILED, b=SENT), DeliveryVerdict.HANDLE, (C,), ()),
        (record((), a=SENDING, b=SENDING, c=SENDING), DeliveryVerdict.FAIL, (), (A, B, C)),
        (record((C,), a=SENT, b=SENDING), DeliveryVerdict.FAIL, (C,), (B,)),
        (record((), a=SENT, b=SENT, c=SENT), DeliveryVerdict.COMPLETE, (), ()),
        (record((), a=SENT, b=SENT, c=FAILED), DeliveryVerdict.COMPLETE, (), ()),
    ],
)
def test_the_stage_of_each_recipient_decides(
    read: MailStage | None, verdict: DeliveryVerdict, left: tuple[str, ...], failed: tuple[str, ...]
) -> None:
    found = decided(read)
    assert (found.verdict, found.left, found.failed) == (verdict, left, failed)


def test_a_sender_who_may_be_alive_is_waited_for_and_only_then() -> None:
    assert decided(record((), a=SENDING), A, lives=True).verdict is DeliveryVerdict.WAIT
    assert decided(record((A,)), A, lives=True).verdict is DeliveryVerdict.HANDLE
    assert decided(None, A, lives=True).verdict is DeliveryVerdict.HANDLE


def test_an_older_copy_does_not_bring_back_who_was_served() -> None:
    assert decided(record((C,), a=SENT, b=FAILED), A, B, C).left == (C,)


def test_a_younger_copy_leaves_out_who_was_served_while_nothing_was_recorded() -> None:
    found = decided(record((B, C), a=SENT), C)
    assert (found.left, found.record.recipients) == ((C,), {A: SENT, B: SENT})


def test_a_recipient_that_no_record_knows_is_served_not_forgotten() -> None:
    assert decided(record((), a=SENT), A, "new@x").left == ("new@x",)


def test_a_recipient_named_twice_is_one() -> None:
    assert decided(None, A, A).left == (A,)


def test_a_mail_of_very_many_recipients_is_decided_at_once() -> None:
    """On the event loop."""
    every = [f"r{number}@x.example" for number in range(20_000)]
    read = MailStage(EnqueueId(UUID(int=1)), "w", 2, 3, tuple(every))
    began = time.thread_time()
    found = decide(read, read.enqueue_id, reversed(every), by="me", now=datetime.now(UTC))
    assert time.thread_time() - began < 0.5
    assert len(found.left) == 20_000


def test_a_mail_without_recipients_is_for_the_handler_that_rejects_it() -> None:
    assert decide(None, ID, (), by="w2", now=NOW).verdict is DeliveryVerdict.HANDLE
    assert decide(record(()), ID, (), by="w2", now=NOW).verdict is DeliveryVerdict.HANDLE
    assert record(()).stage is Stage.RECEIVED


def test_what_is_written_after_a_failure_is_a_new_attempt_for_those_who_were_not_begun() -> None:
    after = decided(record((C,), a=SENT, b=SENDING)).after
    assert after == MailStage(ID, "w2", 4, 8, (C,), {A: SENT, B: FAILED}, NOW)
    assert after.stage is Stage.RECEIVED
    assert decided(record((), a=SENT, b=SENDING), A, B).after.stage is Stage.FAILED


def test_a_retry_serves_whom_its_handler_names_and_counts_the_rest_as_served() -> None:
    after = next_attempt(record((B, C), a=SENT), [C], by="w1", now=NOW)
    assert (after.attempt, after.step, after.remaining, after.recipients) == (
        4,
        8,
        (C,),
        {A: SENT, B: SENT},
    )
    assert next_attempt(record((), a=SENDING, b=FAILED), [A], by="w1", now=NOW).recipients == {
        B: FAILED
    }


def test_a_record_moves_a_step_at_a_time() -> None:
    began = MailStage(ID, "", 1, 0, (A, B)).moved([A], SENDING, by="w1", now=NOW)
    assert (
        began.owner,
        began.attempt,
        began.step,
        began.remaining,
        began.recipients,
        began.stage,
    ) == ("w1", 1, 1, (B,), {A: SENDING}, SENDING)
    between = began.moved([A], SENT, by="w1", now=NOW)
    assert (between.step, between.stage, between.closed) == (2, Stage.RECEIVED, False)
    ended = between.moved([B], SENDING, by="w1", now=NOW).moved([B], SENT, by="w1", now=NOW)
    assert (ended.step, ended.stage, ended.closed) == (4, SENT, True)


STATES = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from([SENDING, SENT, FAILED]))


@given(
    STATES,
    st.lists(st.sampled_from("abcdef"), unique=True),
    st.lists(st.sampled_from("abcdefgh")),
    st.booleans(),
)
def test_nobody_is_forgotten_and_nobody_who_was_begun_is_served_again(
    states: dict[str, Stage], remaining: list[str], wanted: list[str], lives: bool
) -> None:
    read = MailStage(
        ID, "w1", 1, 5, tuple(name for name in remaining if name not in states), states, NOW
    )
    found = decide(read, ID, wanted, by="w2", now=NOW, holder_lives=lives)
    assert set(found.left) == set(wanted) - set(states)
    assert set(found.failed) == {name for name, stage in states.items() if stage is SENDING}
    assert set(found.after.recipients) | set(found.after.remaining) >= set(states) | set(wanted)
    assert SENDING not in found.after.recipients.values()
    assert all(
        found.after.recipients[name] is stage
        for name, stage in states.items()
        if stage is not SENDING
    )
    assert (found.verdict is DeliveryVerdict.COMPLETE) == (
        bool(found.record.recipients) and not found.left and not found.failed
    )
