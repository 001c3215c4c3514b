"""When a queued message is stuck, and what Postal's own rows prove of it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from mailslice.duties.stuck_mails_postal.planned import PlannedRow, PostalAction, PostalPlan
from mailslice.duties.stuck_mails_postal.rules import (
    PostalStage,
    PostalState,
    age_of,
    group_sizes,
    is_old,
    is_stuck,
    limit_of,
    lock_timeout_of,
    p99_of,
    stage_of,
)
from mailslice.model.settings import PostalMode
from mailslice.stores.postal.messages import PostalDelivery, PostalMessage
from mailslice.stores.postal.rows import QueuedMessage

NOW = datetime(2026, 11, 23, 12, 0, 0, 250_000)  # noqa: DTZ001 - as Postal's: naive, in UTC
LOCKED = NOW - timedelta(hours=1)
LOCKED_SECONDS = Decimal("1795431600.250000")
ROW = QueuedMessage(
    *(1, 1, 7, "example.org", "host:a pid:1 thread:1", LOCKED, None, LOCKED, LOCKED),
    *(None, 0, None, 0, None),
)
OUTGOING = PostalMessage(7, "outgoing", "a@x", "b@y", 0, "raw-2026-11-23", 1, 2)
INCOMING = replace(OUTGOING, scope="incoming")
MICROSECOND = Decimal("0.000001")


def record(status, timestamp=LOCKED_SECONDS + 1):
    return PostalDelivery(1, status, timestamp, None)


@pytest.mark.parametrize(
    ("times", "p99"),
    [
        ({}, None),
        ({Decimal("2.5"): 1}, 2.5),
        ({Decimal(1): 99, Decimal(60): 1}, 1),
        ({Decimal(1): 98, Decimal(60): 2}, 60),
        ({Decimal(-5): 3}, 0),
    ],
)
def test_the_p99_is_by_nearest_rank(times, p99):
    assert p99_of(times) == (None if p99 is None else timedelta(seconds=p99))


@pytest.mark.parametrize(
    ("p99", "timeout"), [(None, 600), (timedelta(seconds=59), 600), (timedelta(seconds=61), 610)]
)
def test_the_lock_time_out_is_ten_times_the_p99_and_at_least_ten_minutes(p99, timeout):
    assert lock_timeout_of(p99) == timedelta(seconds=timeout)


def test_a_batch_may_last_as_long_as_its_sendings_one_after_the_other():
    ten, second = timedelta(minutes=10), timedelta(seconds=1)
    assert limit_of(ten, second, 1) == ten
    assert limit_of(ten, second, 101) == ten + 100 * second
    assert limit_of(ten, None, 101) == ten


def test_a_batch_is_one_name_and_one_time():
    friends = [replace(ROW, id=number) for number in range(3)]
    leader = replace(ROW, id=9, locked_by=f"{ROW.locked_by} 0123456789abcdef")
    later = replace(ROW, id=10, locked_at=LOCKED + timedelta(microseconds=1))
    free = replace(ROW, id=11, locked_by=None, locked_at=None)
    assert sorted(group_sizes([*friends, leader, later, free]).values()) == [1, 1, 3]


def test_a_lock_from_the_future_is_young_and_none_has_no_age():
    ten = timedelta(minutes=10)
    future = replace(ROW, locked_at=NOW + timedelta(days=9))
    assert not is_stuck(age_of(future, NOW), ten)
    assert not is_stuck(age_of(replace(ROW, locked_at=None), NOW), ten)
    assert not is_stuck(ten, ten)
    assert is_stuck(age_of(ROW, NOW), ten)


def test_a_row_without_a_lock_is_old_by_when_it_was_made():
    free = replace(ROW, locked_by=None, locked_at=None)
    assert is_old(free, NOW, timedelta(minutes=10))
    assert not is_old(free, NOW, timedelta(hours=2))
    assert not is_old(replace(free, created_at=None), NOW, timedelta(0))
    assert not is_old(ROW, NOW, timedelta(minutes=10))


@pytest.mark.parametrize(
    ("message", "records", "has_own_header", "stage"),
    [
        (OUTGOING, [], False, PostalStage.BEFORE_SENDING),
        (OUTGOING, [], True, PostalStage.MAYBE_SENT),
        (INCOMING, [], False, PostalStage.BEFORE_SENDING),
        (INCOMING, [], True, PostalStage.BEFORE_SENDING),
        (replace(INCOMING, inspected=1), [], False, PostalStage.MAYBE_SENT),
        (replace(INCOMING, inspected=None), [], False, PostalStage.MAYBE_SENT),
        (replace(OUTGOING, scope=None), [], False, PostalStage.MAYBE_SENT),
        (OUTGOING, [record("Sent")], False, PostalStage.ANSWERED),
        (OUTGOING, [record("HardFail")], True, PostalStage.ANSWERED),
        (OUTGOING, [record("Held")], True, PostalStage.ANSWERED),
        (INCOMING, [record("Processed")], True, PostalStage.ANSWERED),
        (OUTGOING, [record("SoftFail")], True, PostalStage.DEFERRED),
        (OUTGOING, [record("Error")], True, PostalStage.DEFERRED),
        (OUTGOING, [record("SoftFail"), record("Sent")], True, PostalStage.ANSWERED),
        (OUTGOING, [record("Bounced")], True, PostalStage.MAYBE_SENT),
        (OUTGOING, [record("HoldCancelled")], True, PostalStage.MAYBE_SENT),
        (OUTGOING, [record("Sent", LOCKED_SECONDS)], True, PostalStage.ANSWERED),
        (OUTGOING, [record("Sent", LOCKED_SECONDS - MICROSECOND)], True, PostalStage.MAYBE_SENT),
        (OUTGOING, [record("Sent", None)], True, PostalStage.MAYBE_SENT),
    ],
)
def test_how_far_the_worker_had_come(message, records, has_own_header, stage):
    assert stage_of(ROW, message, records, has_own_header=has_own_header) is stage


@pytest.mark.parametrize(
    ("created_at", "stage"),
    [
        (LOCKED + timedelta(seconds=2), PostalStage.MAYBE_SENT),
        (LOCKED + timedelta(seconds=1), PostalStage.ANSWERED),
        (LOCKED, PostalStage.ANSWERED),
        (None, PostalStage.ANSWERED),
    ],
)
def test_our_hold_of_the_row_before_answers_no_lock_of_a_host_whose_clock_is_behind(
    created_at, stage
):
    """Released after our record, and locked by a clock that says before it."""
    row = replace(ROW, created_at=created_at)
    held = PostalDelivery(1, "Held", LOCKED_SECONDS + 1, "mailslice-1")
    assert stage_of(row, OUTGOING, [held], has_own_header=True) is stage
    by_postal = replace(held, log_id="1f3a9c")
    assert stage_of(row, OUTGOING, [by_postal], has_own_header=True) is PostalStage.ANSWERED


ACTIONS = {
    (PostalState.UNKNOWN, None): ("server unreadable",) * 4,
    (PostalState.MESSAGE_GONE, None): (PostalAction.LOST,) * 4,
    (PostalState.CONTENT_LOST, None): (PostalAction.LOST,) * 4,
    (PostalState.STUCK, PostalStage.ANSWERED): (PostalAction.COMPLETED,) * 4,
    (PostalState.STUCK, PostalStage.BEFORE_SENDING): (
        *(PostalAction.CLOSED, "holder may live"),
        *(PostalAction.RETRIED, PostalAction.RETRIED),
    ),
    (PostalState.STUCK, PostalStage.DEFERRED): (
        *(PostalAction.CLOSED, "holder may live"),
        *(PostalAction.RETRIED, PostalAction.RETRIED),
    ),
    (PostalState.STUCK, PostalStage.MAYBE_SENT): (
        *(PostalAction.CLOSED, PostalAction.CLOSED),
        *(PostalAction.CLOSED, PostalAction.RETRIED),
    ),
}
"""In mode close; retry; retry where the holder is dead; retry with --accept-duplicates."""


@pytest.mark.parametrize(("state", "stage"), ACTIONS)
def test_what_each_mode_does(state, stage):
    at = LOCKED.replace(tzinfo=UTC)
    row = PlannedRow(*(1, 1, 7, "host:a", at, at), state, stage, 3600.0)

    def action(mode, *, holder_is_dead=False, accept=False):
        restarted = at + timedelta(minutes=1) if holder_is_dead else None
        plan = PostalPlan.model_construct(restarted=restarted, accept_duplicates=accept)
        return plan.action(row, mode)

    assert ACTIONS[state, stage] == (
        action(PostalMode.CLOSE, holder_is_dead=True, accept=True),
        action(PostalMode.RETRY),
        action(PostalMode.RETRY, holder_is_dead=True),
        action(PostalMode.RETRY, accept=True),
    )
