"""Which drifts may be applied: the table of what two reads can see (I9)."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid1

import pytest

from mailslice.duties.counter_repair import decide
from mailslice.duties.counter_repair.fingerprints import MessageDigest, ticks
from mailslice.duties.counter_repair.planned import Drift
from mailslice.stores.cassandra.mailboxes import Counters
from mailslice.stores.cassandra.own import CounterClaim

FIRST_READ = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
SEEN = MessageDigest(
    count=10,
    unseen=4,
    modseq=30,
    newest=ticks(FIRST_READ - timedelta(hours=1)),
    first=11,
    second=-7,
)
DRIFT = Drift.of(UUID(int=1), Counters(12, 4), SEEN)


def test_two_reads_that_agree_allow_the_difference():
    assert decide.refused(DRIFT, Counters(12, 4), SEEN, 0, FIRST_READ) is None
    assert DRIFT.add == Counters(-2, 0)


@pytest.mark.parametrize(
    ("stored", "seen", "why"),
    [
        (Counters(10, 4), SEEN, decide.RIGHT_NOW),
        (Counters(11, 4), SEEN, decide.MOVED),
        (Counters(12, 5), SEEN, decide.MOVED),
        (Counters(12, 4), replace(SEEN, count=11), decide.MOVED),
        (Counters(12, 4), replace(SEEN, unseen=3), decide.MOVED),
        (Counters(12, 4), replace(SEEN, first=12), decide.MOVED),
        (Counters(12, 4), replace(SEEN, second=12), decide.MOVED),
        (Counters(12, 4), replace(SEEN, modseq=31, first=12), decide.NEWER),
        (Counters(12, 4), replace(SEEN, newest=ticks(FIRST_READ) + 10, first=12), decide.NEWER),
        (Counters(11, 4), replace(SEEN, count=11), decide.RIGHT_NOW),
    ],
)
def test_whatever_moved_is_left_alone_and_said(stored, seen, why):
    assert decide.refused(DRIFT, stored, seen, 0, FIRST_READ) == why


def test_a_modseq_that_james_gave_out_since_tells_of_what_cannot_be_seen():
    drift = replace(DRIFT, given_modseq=30)
    assert decide.refused(drift, Counters(12, 4), SEEN, 31, FIRST_READ) == decide.NEWER
    assert decide.refused(drift, Counters(12, 4), SEEN, 30, FIRST_READ) is None


def test_a_message_of_the_first_reads_own_time_is_too_new_even_when_both_reads_saw_it():
    fresh = replace(SEEN, newest=ticks(FIRST_READ) + 10)
    drift = Drift.of(DRIFT.mailbox, DRIFT.stored, fresh)
    assert decide.refused(drift, Counters(12, 4), fresh, 0, FIRST_READ) == decide.NEWER


def test_the_time_of_a_timeuuid_is_read_as_it_was_written():
    before = datetime.now(UTC)
    assert (
        ticks(before) - 10_000
        <= uuid1().time
        <= ticks(datetime.now(UTC) + timedelta(milliseconds=1))
    )


def claim(outcome=None):
    return CounterClaim("r1", FIRST_READ, 12, 4, -2, 1, outcome)


def test_only_the_sum_of_both_counters_proves_that_a_claimed_update_was_done():
    assert decide.was_done(claim(), Counters(10, 5))
    assert not decide.was_done(claim(), Counters(12, 4))
    assert not decide.was_done(claim(), Counters(10, 4))


@pytest.mark.parametrize(
    ("outcome", "is_open"),
    [
        (None, True),
        (decide.UNKNOWN, True),
        (decide.APPLIED, False),
        (decide.WITHDRAWN, False),
        (decide.OVER, False),
    ],
)
def test_a_claim_is_open_until_somebody_wrote_how_it_ended(outcome, is_open):
    assert decide.is_open(claim(outcome)) == is_open
