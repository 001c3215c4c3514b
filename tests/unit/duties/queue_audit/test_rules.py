"""The verdict on one mail: a table of what is known and what follows."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from mailslice.admin.evidence import is_overdue
from mailslice.duties.queue_audit.params import Params
from mailslice.duties.queue_audit.rules import (
    CONTENT_MATTERS,
    BrokerCounts,
    Evidence,
    MailFacts,
    classify,
)
from mailslice.model.errors import BadInput
from mailslice.model.mail import EnqueueId
from mailslice.model.verdicts import Verdict

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
ONE, OTHER = EnqueueId(uuid4()), EnqueueId(uuid4())
HOUR = timedelta(hours=1)
COUNTS = BrokerCounts(ready=3, unacknowledged=2, consumers=1, delayed=1, dead_letters=0, head=None)
EMPTY = BrokerCounts(ready=0, unacknowledged=0, consumers=0, delayed=0, dead_letters=0, head=None)
FACTS = MailFacts(ONE, NOW - 3 * HOUR)
BLIND = Evidence(NOW, shared=False, counts=COUNTS)
CENSUS = replace(BLIND, census=frozenset({OTHER}))
FOUND = replace(BLIND, census=frozenset({ONE}))
IN_FLIGHT, DONE, HELD = {ONE: "worker w has it"}, {ONE: "worker w did it"}, {ONE: "in quarantine"}


@pytest.mark.parametrize(
    ("facts", "evidence", "verdict", "words"),
    [
        (FACTS, CENSUS, Verdict.LOST, "in no queue and with no consumer"),
        (FACTS, replace(CENSUS, shared=True), Verdict.LOST_OR_GHOST, "James may have delivered it"),
        (FACTS, FOUND, Verdict.WAITING, "in the work queue"),
        (FACTS, replace(FOUND, shared=True), Verdict.WAITING, "in the work queue"),
        (
            FACTS,
            replace(CENSUS, unproved="consumers hold 3 messages"),
            Verdict.UNKNOWN,
            "in no queue, but consumers hold 3 messages",
        ),
        (
            FACTS,
            replace(FOUND, unproved="consumers hold 3 messages"),
            Verdict.WAITING,
            "in the work queue",
        ),
        (FACTS, replace(CENSUS, dead_letters=None), Verdict.UNKNOWN, "could not be looked through"),
        (
            FACTS,
            replace(CENSUS, dead_letters=frozenset({ONE})),
            Verdict.DEAD_LETTERED,
            "dead letter queue",
        ),
        (
            FACTS,
            replace(BLIND, dead_letters=frozenset({ONE})),
            Verdict.DEAD_LETTERED,
            "dead letter queue",
        ),
        (
            FACTS,
            replace(FOUND, dead_letters=frozenset({ONE})),
            Verdict.WAITING,
            "in the work queue",
        ),
        (FACTS, replace(CENSUS, in_flight=IN_FLIGHT), Verdict.IN_FLIGHT, "worker w has it"),
        (FACTS, replace(FOUND, in_flight=IN_FLIGHT), Verdict.WAITING, "in the work queue"),
        (
            FACTS,
            replace(BLIND, in_flight=IN_FLIGHT, done=DONE),
            Verdict.IN_FLIGHT,
            "worker w has it",
        ),
        (
            FACTS,
            replace(CENSUS, done=DONE),
            Verdict.GHOST,
            "worker w did it, and its deleted mark is missing",
        ),
        (FACTS, replace(BLIND, done=DONE, shared=True), Verdict.GHOST, "worker w did it"),
        (FACTS, replace(FOUND, done=DONE), Verdict.GHOST, "in the work queue once more"),
        (
            FACTS,
            replace(FOUND, quarantined=HELD, done=DONE, in_flight=IN_FLIGHT),
            Verdict.HELD,
            "in quarantine",
        ),
        (replace(FACTS, due=NOW + HOUR), CENSUS, Verdict.DELAYED, "due at 2026-11-21T13:00:00Z"),
        (replace(FACTS, due=NOW + HOUR), FOUND, Verdict.WAITING, "in the work queue"),
        (replace(FACTS, due=NOW - HOUR / 120), CENSUS, Verdict.DELAYED, "due at"),
        (
            replace(FACTS, due=NOW - HOUR),
            CENSUS,
            Verdict.UNKNOWN,
            "was due at 2026-11-21T11:00:00Z and has not come; 1 messages wait in delay levels",
        ),
        (
            replace(FACTS, due=NOW - HOUR),
            replace(CENSUS, counts=BrokerCounts()),
            Verdict.UNKNOWN,
            "an unknown number of messages wait in delay levels; `mailslice queue flush` delivers",
        ),
        (
            replace(FACTS, due=NOW - HOUR),
            replace(CENSUS, counts=EMPTY),
            Verdict.LOST,
            "it was delayed until 2026-11-21T11:00:00Z",
        ),
        (replace(FACTS, due=NOW + HOUR), replace(CENSUS, counts=EMPTY), Verdict.DELAYED, "due at"),
        (
            replace(FACTS, was_delayed=True),
            CENSUS,
            Verdict.UNKNOWN,
            "its delay ended while the audit looked",
        ),
        (replace(FACTS, was_delayed=True), FOUND, Verdict.WAITING, "in the work queue"),
        (
            FACTS,
            BLIND,
            Verdict.UNKNOWN,
            "3 messages are ready and 2 are unacknowledged at 1 consumers; a census (--census)",
        ),
        (
            FACTS,
            replace(BLIND, counts=EMPTY),
            Verdict.UNKNOWN,
            "no message at all: lost, or a ghost",
        ),
        (
            FACTS,
            replace(BLIND, counts=COUNTS.model_copy(update={"ready": None})),
            Verdict.UNKNOWN,
            "gives no figures",
        ),
        (
            FACTS,
            replace(BLIND, counts=COUNTS.model_copy(update={"head": NOW - HOUR})),
            Verdict.UNKNOWN,
            "later than this mail: unless it was delayed or redriven it may be lost",
        ),
        (
            FACTS,
            replace(BLIND, counts=COUNTS.model_copy(update={"head": NOW - 5 * HOUR})),
            Verdict.UNKNOWN,
            "shows whether this mail is among them",
        ),
    ],
)
def test_what_is_known_decides(facts, evidence, verdict, words):
    found, why = classify(facts, evidence)
    assert found is verdict
    assert words in why


def test_nothing_is_lost_without_a_census_or_without_the_dead_letters():
    for counts in (COUNTS, EMPTY):
        for shared in (True, False):
            assert classify(FACTS, Evidence(NOW, shared, counts))[0] is Verdict.UNKNOWN
            assert (
                classify(
                    FACTS, Evidence(NOW, shared, counts, dead_letters=None, census=frozenset())
                )[0]
                is Verdict.UNKNOWN
            )


def test_content_matters_only_where_somebody_would_still_deliver_the_mail():
    assert {
        Verdict.WAITING,
        Verdict.DELAYED,
        Verdict.LOST,
        Verdict.LOST_OR_GHOST,
        Verdict.UNKNOWN,
    } == CONTENT_MATTERS


def test_a_delay_is_over_only_when_it_is_long_due_and_no_delay_queue_holds_anything():
    minute = timedelta(minutes=1)
    assert is_overdue(NOW - 2 * minute, NOW, 0)
    assert not is_overdue(NOW - minute / 2, NOW, 0)
    assert not is_overdue(NOW - 2 * minute, NOW, 1)
    assert not is_overdue(NOW - 2 * minute, NOW, None)


def test_absurd_ages_are_refused_by_name():
    assert Params.parse({"older_than": "0s"}).older_than == timedelta(0)
    for value in ("5000000d", "99999999999999999999d", "-1s", "soon"):
        with pytest.raises(BadInput, match="older_than"):
            Params.parse({"older_than": value})
