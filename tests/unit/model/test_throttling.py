"""What a destination is given: rules, and the arithmetic of its book, also as a whole in simulated
time.
"""

from __future__ import annotations

import heapq
import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailslice.model.errors import BadSetting
from mailslice.model.settings import Settings, load_settings
from mailslice.model.throttling import (
    LEASE,
    LONGEST_LINE,
    Claim,
    Freed,
    Limit,
    Limits,
    Load,
    decide,
    destination,
)

SECOND = 1_000_000
NOW = 1_750_000_000 * SECOND


@pytest.mark.parametrize(
    ("domain", "limit"),
    [
        ("example.com", Limit("example.com", 60, 20)),
        ("mx.example.com", Limit("*.example.com", 600, 20)),
        ("a.b.example.com", Limit("*.b.example.com", 7, 20)),
        ("b.example.com", Limit("*.example.com", 600, 20)),
        ("notexample.com", Limit("*", None, 20)),
        ("free.example", None),
        ("one.example", Limit("one.example", None, 1)),
        ("(none)", Limit("*", None, 20)),
    ],
)
def test_the_closest_rule_holds(domain: str, limit: Limit | None) -> None:
    environ = {
        "MAILSLICE_RELAY_RATES": "example.com=60, *.Example.com=600,*.b.example.com=7,",
        "MAILSLICE_RELAY_CONNECTIONS": "*=20,free.example=0,one.example=1",
    }
    assert load_settings(environ).relay.limits.of(domain) == limit


@pytest.mark.parametrize(
    "domain",
    ["bücher.example", "BÜCHER.example.", "xn--bcher-kva.example", "XN--Bcher-KVA.Example."],
)
@pytest.mark.parametrize("pattern", ["bücher.example", "xn--bcher-kva.EXAMPLE", "Bücher.example."])
def test_a_domain_is_one_in_all_its_forms(domain: str, pattern: str) -> None:
    limits = load_settings({"MAILSLICE_RELAY_RATES": f"{pattern}=60,*.{pattern}=5"}).relay.limits
    assert destination(domain) == "xn--bcher-kva.example"
    assert (limits.of(domain), limits.of(f"mx.{domain}")) == (
        Limit("xn--bcher-kva.example", 60),
        Limit("*.xn--bcher-kva.example", 5),
    )


@pytest.mark.parametrize(
    ("domain", "book"),
    [
        ("(none)", "(none)"),
        (".", "."),
        ("a..b", "a..b"),
        ("ü" * 80 + ".Example", "ü" * 80 + ".example"),
        ("ü..x", "ü..x"),
    ],
)
def test_what_is_no_domain_has_a_book_of_its_own(domain: str, book: str) -> None:
    assert destination(domain) == book


@pytest.mark.parametrize(
    "text",
    [
        "bücher.example=1,xn--bcher-kva.example=2",
        "a.example=1,A.example.=2",
        "*.a.=1,*.A=1",
        "example..=1",
        ".=5",
        "example.com",
        "example.com=",
        "=5",
        "example.com=-1",
        "a=1,a=2",
        "a=1,A=2",
        "ex*.com=5",
        "*.=5",
        "a@b=5",
        "x=1.5",
        "**=1",
    ],
)
def test_a_bad_rule_is_named(text: str) -> None:
    with pytest.raises(BadSetting, match=r"MAILSLICE_RELAY_RATES=.*allowed: DOMAIN=NUMBER"):
        load_settings({"MAILSLICE_RELAY_RATES": text})


def test_there_is_no_throttle_without_a_limit() -> None:
    assert not Settings().relay.limits
    assert not Limits((("*", 0),), ())
    assert Limits((("*", 0),), (("a", 1),))


def test_a_new_destination_takes_three_seconds_of_its_pace_and_then_one_message_a_pace() -> None:
    book, answers = decide(Load(), Limit("*", 60), NOW, [Claim(str(n)) for n in range(10)])
    assert answers[:4] == [None] * 4
    assert answers[4:] == [n * SECOND + SECOND for n in range(1, 7)]
    assert (book.turn, book.line_us) == (1, NOW + 7 * SECOND)


def test_what_a_clock_far_ahead_wrote_holds_nobody_up_for_long() -> None:
    day = 86_400 * SECOND
    book = Load(1, NOW + day, NOW + day, SECOND, {"theirs": NOW + day})
    limit = Limit("*", 60, 1)
    _, (answer,) = decide(book, limit, NOW, [Claim("mine")])
    assert answer is not None
    assert answer <= (LONGEST_LINE + LEASE).total_seconds() * SECOND
    later = NOW + int((LONGEST_LINE + 2 * LEASE).total_seconds()) * SECOND
    after, _ = decide(book, limit, NOW, [])
    assert decide(after, limit, later, [Claim("mine", waited=True)])[1] == [None]


def test_who_comes_anew_stands_behind_those_who_wait() -> None:
    book = Load(1, line_us=NOW + 5 * SECOND)
    assert decide(book, Limit("*", 60), NOW, [Claim("new")])[1] == [6 * SECOND]
    assert decide(book, Limit("*", 60), NOW, [Claim("back", waited=True)])[1] == [None]


def test_a_line_that_is_too_long_gives_no_place() -> None:
    full = Load(1, line_us=NOW + int(LONGEST_LINE.total_seconds()) * SECOND)
    for chance, seconds in ((0.0, 450), (1.0, 900)):
        book, answers = decide(full, Limit("*", 60), NOW, [Claim("a")] * 3, chance=chance)
        assert (answers, book.line_us) == ([seconds * SECOND] * 3, full.line_us)


def test_connections_are_taken_given_back_kept_and_lapse() -> None:
    limit = Limit("*", connections=2)
    book, answers = decide(Load(), limit, NOW, [Claim("a"), Claim("b"), Claim("c")])
    assert answers[:2] == [None, None]
    assert answers[2] == SECOND // 2
    book, answers = decide(
        book,
        limit,
        NOW + 1,
        [Claim("d", waited=True)],
        freed=[Freed("a", 4 * SECOND)],
    )
    assert (answers, set(book.holders), book.hold_us) == ([None], {"b", "d"}, 4 * SECOND)
    later = NOW + int(LEASE.total_seconds()) * SECOND
    kept, _ = decide(book, limit, later - 1, [], kept=["d"])
    book, answers = decide(
        kept, limit, later + 1, [Claim("e", waited=True), Claim("f", waited=True)]
    )
    assert (set(book.holders), answers) == ({"d", "e"}, [None, 2 * SECOND])


@given(
    st.integers(1, 100_000),
    st.lists(st.tuples(st.integers(0, 2 * SECOND), st.booleans()), max_size=200),
)
def test_no_minute_has_more_than_its_number_a_twentieth_and_one(
    rate: int, asks: list[tuple[int, bool]]
) -> None:
    book, now, granted = Load(), NOW, []
    for gap, waited in asks:
        now += gap
        book, (answer,) = decide(book, Limit("*", rate), now, [Claim("a", waited)])
        if answer is None:
            granted.append(now)
        else:
            assert answer > 0
    for at, first in enumerate(granted):
        assert (
            sum(1 for each in granted[at:] if each < first + 60 * SECOND)
            <= rate * (1 + 3.25 / 60) + 1
        )


@pytest.mark.parametrize(("rate", "at_once"), [(6, 8), (60, 8), (600, 8), (60, 40), (600, 40)])
@pytest.mark.parametrize("late", [0.05, 1.5])
def test_ten_minutes_of_more_mail_than_it_takes_are_used_to_within_a_twentieth(
    rate: int, at_once: int, late: float
) -> None:
    """`at_once` minutes of mail come first: eight find a place in the line, forty do not. More
    comes all the time, half as much as the destination takes.

    Mails that are put off come back up to `late` seconds after their place.
    """
    chance, order = random.Random(rate), itertools.count()
    waiting = [(NOW, next(order), False) for _ in range(rate * at_once)]
    waiting += [(NOW + int(n * 120 / rate * SECOND), next(order), False) for n in range(rate * 5)]
    heapq.heapify(waiting)
    book, granted, rounds, end = Load(), 0, 0, NOW + 600 * SECOND
    while waiting and waiting[0][0] < end:
        now, _, waited = heapq.heappop(waiting)
        book, (answer,) = decide(
            book, Limit("*", rate), now, [Claim("a", waited)], chance=chance.random()
        )
        rounds += 1
        granted += answer is None
        if answer is not None:
            heapq.heappush(
                waiting, (now + answer + int(chance.uniform(0, late) * SECOND), next(order), True)
            )
    assert rate * 9.5 - 1 <= granted <= rate * 10.5 + 1
    assert rounds <= 3 * rate * (at_once + 5)
