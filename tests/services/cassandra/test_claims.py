"""counter_claims on a real Cassandra: one claim a run and mailbox, also of a repeated request."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest

from mailslice.stores import open_stores
from mailslice.stores.cassandra.own import CounterClaim

HOUR = timedelta(hours=1)
AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


@pytest.fixture(scope="module")
def claims(fresh_module):
    with open_stores(fresh_module.settings) as stores:
        yield stores.own.counter_claims


def test_a_run_claims_a_mailbox_once_and_the_first_claim_stands(claims):
    mailbox = uuid.uuid1()
    first = CounterClaim("r1", AT, 7, 4, -2, -1)
    assert claims.claim(mailbox, first, HOUR)
    assert not claims.claim(mailbox, CounterClaim("r1", AT + HOUR, 9, 9, 1, 1), HOUR)
    assert claims.list(mailbox) == [first]


def test_how_a_claim_ended_is_written_beside_it_and_other_runs_have_their_own(claims):
    mailbox = uuid.uuid1()
    later = CounterClaim("r0", AT + HOUR, 5, 3, 1, 1)
    claims.claim(mailbox, later, timedelta(days=9000))
    claims.claim(mailbox, CounterClaim("r1", AT, 7, 4, -2, -1), HOUR)
    claims.settle(mailbox, "r1", "applied", HOUR)
    assert claims.list(mailbox) == [CounterClaim("r1", AT, 7, 4, -2, -1, "applied"), later]
    assert claims.list(uuid.uuid1()) == []


def test_an_outcome_without_a_claim_is_none(claims):
    mailbox = uuid.uuid1()
    claims.settle(mailbox, "r1", "applied", HOUR)
    assert claims.list(mailbox) == []
