"""Which letter gets what: rules by hand, and what must hold whatever is given."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailslice.admin.dead_letters import (
    ClassifiedLetter,
    Letter,
    cause_of,
    content_exists,
    letter_of,
)
from mailslice.duties.dead_letters.actions import redrive_headers
from mailslice.duties.dead_letters.decide import (
    CONTENT_UNKNOWN,
    DELETED,
    DUPLICATE,
    FILTERED,
    LIMITED,
    NO_CONTENT,
    NOT_ASKED,
    TOO_OFTEN,
    LetterAction,
    RedriveFacts,
    decide,
)
from mailslice.duties.dead_letters.params import Params
from mailslice.model.dead_letters import Cause
from mailslice.model.errors import BadInput
from mailslice.model.mail import EnqueueId, Partition
from mailslice.model.settings import Settings
from mailslice.stores.blobs.async_store import AsyncBlobStore
from mailslice.stores.rabbitmq.checkout import CheckedOutMessage

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
SOMEWHERE = Partition(datetime(1970, 1, 1, microsecond=1000, tzinfo=UTC), 7)


def classified(
    position=0,
    number=None,
    cause=Cause.REJECTED,
    *,
    marked=False,
    redrives=0,
    age=HOUR,
    sender="a@b.example",
    name="m",
):
    enqueue_id = (
        None
        if cause is Cause.BAD_JSON
        else EnqueueId(UUID(int=position + 1 if number is None else number))
    )
    died = None if age is None else NOW - age
    letter = Letter(
        position,
        f"k{position}",
        died,
        "rejected",
        None,
        redrives,
        10,
        enqueue_id=enqueue_id,
        name=name,
        sender=sender,
    )
    return ClassifiedLetter(letter, cause, redrives, marked, True)


def all_there(found):
    return RedriveFacts(
        {each.letter.enqueue_id: SOMEWHERE for each in found},
        frozenset(),
        {each.letter.key: True for each in found},
    )


def decided(found, standing=all_there, **params):
    return [(each.action, each.why) for each in decide(found, Params(**params), NOW, standing)]


def test_without_redrive_only_what_is_deleted_or_no_mail_leaves():
    found = [
        classified(0),
        classified(1, marked=True),
        classified(2, cause=Cause.BAD_JSON),
        classified(3, cause=Cause.EXPIRED),
    ]
    assert [action for action, _ in decided(found)] == [
        LetterAction.KEEP,
        LetterAction.DROP,
        LetterAction.EXPORT,
        LetterAction.KEEP,
    ]
    assert decided(found)[1] == (LetterAction.DROP, DELETED)
    assert decided(found)[0] == (LetterAction.KEEP, NOT_ASKED)


def test_a_marked_mail_is_dropped_whatever_the_filter_says_and_never_redriven():
    assert decided([classified(0, marked=True, name="other")], redrive=True, name="m") == [
        (LetterAction.DROP, DELETED)
    ]


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"cause": "expired"}, True),
        ({"cause": "rejected"}, False),
        ({"name": "M"}, True),
        ({"sender": "A@B.EXAMPLE"}, False),
        ({"sender": "<>"}, True),
        ({"older_than": "61m"}, True),
        ({"older_than": "60m"}, False),
    ],
)
def test_the_filter(params, kept):
    assert decided([classified()], redrive=True, **params)[0][0] is (
        LetterAction.KEEP if kept else LetterAction.REDRIVE
    )


def test_a_letter_of_unknown_age_is_older_than_nothing_and_one_without_sender_has_the_null_sender():
    assert decided([classified(age=None)], redrive=True, older_than="1s") == [
        (LetterAction.KEEP, FILTERED)
    ]
    assert decided([classified(sender=None)], redrive=True, sender="")[0][0] is LetterAction.REDRIVE


def test_rounds_limit_and_doubles():
    found = [
        classified(0, redrives=3),
        classified(1),
        classified(2, number=2),
        classified(3),
        classified(4),
    ]
    assert decided(found, redrive=True, limit=2) == [
        (LetterAction.KEEP, TOO_OFTEN),
        (LetterAction.REDRIVE, "asked for"),
        (LetterAction.KEEP, DUPLICATE),
        (LetterAction.REDRIVE, "asked for"),
        (LetterAction.KEEP, LIMITED),
    ]


def test_content_without_an_answer_is_unknown_and_its_letter_stays():
    content = {"k0": None, "k1": False, "k2": True}

    def standing(found):
        return replace(all_there(found), content=content)

    assert decided([classified(at) for at in range(3)], standing, redrive=True) == [
        (LetterAction.KEEP, CONTENT_UNKNOWN),
        (LetterAction.KEEP, NO_CONTENT),
        (LetterAction.REDRIVE, "asked for"),
    ]


def test_a_part_that_is_missing_decides_whatever_the_other_part_answers(monkeypatch):
    async def some_silent(_, ids, unanswered):
        unanswered |= {blob_id for blob_id in ids if blob_id.startswith("silent")}
        return {blob_id for blob_id in ids if blob_id.startswith("missing")}

    monkeypatch.setattr(AsyncBlobStore, "missing", some_silent)
    blobs = [("h", "b"), ("silent1", "b"), ("missing1", "silent2"), ("h", "missing2")]
    letters = [replace(classified(at).letter, blobs=parts) for at, parts in enumerate(blobs)]
    there = content_exists(SimpleNamespace(settings=Settings()), letters)
    assert there == {"k0": True, "k1": None, "k2": False, "k3": False}


def test_no_more_is_looked_up_than_the_limit_needs():
    asked = []

    def standing(found):
        asked.append(len(found))
        return all_there(found)

    decided([classified(position) for position in range(2000)], standing, redrive=True, limit=600)
    assert asked == [500, 500]


@given(
    st.lists(
        st.tuples(
            st.integers(1, 4),
            st.sampled_from(list(Cause)),
            st.booleans(),
            st.integers(0, 4),
            st.booleans(),
            st.booleans(),
            st.booleans(),
        )
    ),
    st.integers(1, 5),
    st.booleans(),
    st.booleans(),
)
def test_whatever_is_given_nothing_marked_bare_cleaned_or_doubled_goes_back(
    letters, limit, redrive, force
):
    found = [
        classified(at, number, cause, marked=marked, redrives=redrives)
        for at, (number, cause, marked, redrives, *_) in enumerate(letters)
    ]
    facts = {f"k{at}": each[4:] for at, each in enumerate(letters)}

    def standing(some):
        has = lambda index: [each for each in some if facts[each.letter.key][index]]
        ids = lambda some: frozenset(each.letter.enqueue_id for each in some)
        return RedriveFacts(
            dict.fromkeys(ids(has(0)), SOMEWHERE),
            ids(has(1)),
            {each.letter.key: facts[each.letter.key][2] for each in some},
        )

    given_force = force and redrive
    made = decide(
        found, Params(redrive=redrive, limit=limit, force_cleaned=given_force), NOW, standing
    )
    assert [each.classified for each in made] == found
    back = [each.classified for each in made if each.action is LetterAction.REDRIVE]
    assert len(back) <= (limit if redrive else 0)
    assert len({each.letter.enqueue_id for each in back}) == len(back)
    assert all(
        not each.marked
        and each.redrives < 3
        and each.cause is not Cause.BAD_JSON
        and facts[each.letter.key][2]
        for each in back
    )
    assert {each.classified.cause for each in made if each.action is LetterAction.EXPORT} <= {
        Cause.BAD_JSON
    }
    assert all(each.classified.marked for each in made if each.action is LetterAction.DROP)


@pytest.mark.parametrize(
    ("death", "reason", "content", "cause"),
    [
        ("rejected", None, True, Cause.REJECTED),
        ("rejected", None, None, Cause.REJECTED),
        ("rejected", None, False, Cause.MISSING_BLOB),
        ("rejected", "content missing: S3 bucket", True, Cause.MISSING_BLOB),
        ("rejected", "cleaned: its slice was cleaned", False, Cause.CLEANED),
        ("rejected", "no such user", True, Cause.REJECTED),
        (None, "no such user", True, Cause.REJECTED),
        (None, "", True, Cause.REJECTED),
        ("expired", "content missing: header", False, Cause.EXPIRED),
        ("delivery_limit", None, None, Cause.DELIVERY_LIMIT),
        ("maxlen", None, True, Cause.OTHER),
        ("maxlen", None, False, Cause.MISSING_BLOB),
        (None, None, True, Cause.OTHER),
    ],
)
def test_the_cause(death, reason, content, cause):
    letter = Letter(0, "k", None, death, reason, 0, 1, enqueue_id=EnqueueId(UUID(int=1)))
    assert cause_of(letter, content) is cause


def test_what_is_no_mail_is_bad_json_however_it_died():
    letter = letter_of(
        CheckedOutMessage(1, b"{", {"x-death": [{"reason": "expired", "queue": "q"}]}, None), 0, "q"
    )
    assert (letter.enqueue_id, letter.death) == (None, "expired")
    assert cause_of(letter, None) is Cause.BAD_JSON


def test_the_newest_death_in_the_work_queue_counts_and_the_broker_s_counts_change_no_key():
    deaths = [
        {"queue": "delay", "reason": "expired", "time": NOW},
        {"queue": "work", "reason": "rejected", "time": NOW.replace(tzinfo=None), "count": 2},
    ]
    one = letter_of(
        CheckedOutMessage(1, b"x", {"x-death": deaths, "x-delivery-count": 1}, NOW), 0, "work"
    )
    again = letter_of(
        CheckedOutMessage(9, b"x", {"x-death": deaths, "x-delivery-count": 2}, NOW), 5, "work"
    )
    assert (one.death, one.died_at, one.key) == ("rejected", NOW, again.key)
    for headers, body in (
        ({"x-death": deaths[:1]}, b"x"),
        ({"x-death": deaths, "x-redrive-count": 1}, b"x"),
        ({"x-death": deaths}, b"y"),
    ):
        assert letter_of(CheckedOutMessage(1, body, headers, NOW), 0, "work").key != one.key


def test_a_redrive_keeps_headers_but_those_of_the_broker():
    headers = {
        "x-dead-letter-routing-key": "",
        "x-death": [],
        "x-first-death-queue": "q",
        "x-last-death-reason": "rejected",
        "x-delivery-count": 3,
        "x-mailslice-reason": "r",
        "x-mailslice-token": "t",
        "x-mailslice-slice": 5,
        "x-redrive-count": 1,
        "theirs": b"kept",
        "CC": ["elsewhere"],
        "x-mailslice-failures": 150,
        "x-mailslice-throttled": 1,
        "x-mailslice-parked": 3,
        "x-mailslice-faults": 4,
        "x-mailslice-doubt": "1:sending:w",
    }
    kept = {
        "x-dead-letter-routing-key": "",
        "x-mailslice-slice": 5,
        "theirs": b"kept",
        "x-redrive-count": 2,
    }
    assert redrive_headers(headers, 2) == kept
    assert redrive_headers(headers, 2, SOMEWHERE) == {
        **kept,
        "x-mailslice-slice": 1,
        "x-mailslice-bucket": 7,
    }


@pytest.mark.parametrize(
    ("given_params", "message"),
    [
        ({"cause": "expired"}, "give redrive, too"),
        ({"force_cleaned": True}, "give redrive, too"),
        ({"redrive": True, "cause": "bad JSON"}, "it is exported"),
        ({"redrive": True, "cause": "no cause"}, "'missing blob'"),
        ({"redrive": True, "sender": "no address"}, "is not a mail address"),
        ({"limit": 0}, "greater than or equal to 1"),
        ({"limit": 10**9}, "less than or equal to"),
        ({"redrive": True, "older_than": "-1h"}, "older_than"),
        ({"redrive": True, "older_than": "9999999d"}, "older_than"),
        ({"most_redrives": 0}, "most_redrives"),
        ({"rate": -1}, "rate"),
        ({"unknown": 1}, "not a param"),
    ],
)
def test_params_that_are_wrong_name_themselves(given_params, message):
    with pytest.raises(BadInput, match=message):
        Params.parse(given_params)


def test_causes_as_people_write_them():
    words = {
        "Missing-Blob": Cause.MISSING_BLOB,
        "rejected": Cause.REJECTED,
        "rejected_by_a_handler": Cause.REJECTED,
        "OTHER": Cause.OTHER,
    }
    assert {word: Params.parse({"redrive": True, "cause": word}).cause for word in words} == words


def test_a_blob_id_that_no_bucket_can_hold_makes_a_letter_undecodable():
    """S3 answers 400 to a key of more than 1,024 bytes.

    That would look like a store which is away, for ever.
    """
    body = {
        "enqueueId": str(UUID(int=1)),
        "recipients": ["a@b.example"],
        "name": "m",
        "headerBlobId": "é" * 513,
        "bodyBlobId": "b",
    }
    letter = letter_of(
        CheckedOutMessage(1, json.dumps(body, ensure_ascii=False).encode(), {}, None), 0, "w"
    )
    assert letter.problem == "field headerBlobId is longer than S3 allows"
    assert (
        letter_of(
            CheckedOutMessage(
                1, json.dumps({**body, "headerBlobId": "é" * 512}).encode(), {}, None
            ),
            0,
            "w",
        ).problem
        is None
    )
