"""What a hold holds, until when, and for how long a mail of a held domain is set aside."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from mailslice.model.errors import BadInput
from mailslice.model.holds import ActiveHolds, Hold, parse_hold_domain
from mailslice.model.mail import QueueName

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def a_hold(domain="", until=None, since=NOW, change="c"):
    return Hold(QueueName("spool"), domain, since, until, "ada@ops", "it blocks us", change)


def test_a_hold_ends_at_its_time_and_one_without_a_time_does_not():
    assert a_hold(until=NOW + HOUR).is_active(NOW + HOUR - timedelta.resolution)
    assert not a_hold(until=NOW + HOUR).is_active(NOW + HOUR)
    assert a_hold().is_active(NOW + 100_000 * HOUR)


def test_active_are_the_whole_queue_and_domains_whose_end_is_to_come():
    whole, over, held = a_hold(), a_hold("a.example", NOW), a_hold("b.example", NOW + HOUR)
    active = ActiveHolds.at(NOW, [over, held, whole])
    assert active == ActiveHolds(whole, {"b.example": held})
    assert active.all == (whole, held)
    assert ActiveHolds.at(NOW, [over]).all == ()


@pytest.mark.parametrize(
    ("domains", "held_by"),
    [
        (["c.example"], None),
        ([], None),
        (["c.example", "B.Example."], "b.example"),
        (["sub.b.example"], None),
        (["BÜCHER.example"], "xn--bcher-kva.example"),
        (["b.example", "xn--bcher-kva.example"], "xn--bcher-kva.example"),
    ],
)
def test_a_mail_is_held_by_any_of_its_domains_and_by_the_hold_that_lasts_longest(domains, held_by):
    holds = [a_hold("b.example", NOW + HOUR), a_hold("xn--bcher-kva.example")]
    found = ActiveHolds.at(NOW, holds).of(domains)
    assert (found and found.domain) == held_by


@pytest.mark.parametrize(
    ("lasted", "ends_in", "seconds"),
    [
        (0, None, 5),
        (60, None, 5),
        (120, None, 30),
        (600, None, 120),
        (86400, None, 240),
        (86400, 90, 90),
        (86400, 0.2, 1),
        (86400, 3600, 240),
    ],
)
def test_a_mail_is_set_aside_for_longer_the_longer_the_hold_lasts(lasted, ends_in, seconds):
    until = None if ends_in is None else NOW + timedelta(seconds=ends_in)
    held = a_hold("b.example", until, since=NOW - timedelta(seconds=lasted))
    assert held.pause(NOW) == timedelta(seconds=seconds)


def test_a_hold_says_what_until_when_why_and_for_whom():
    assert a_hold("b.example", NOW + HOUR).sentence == (
        "domain b.example since 2026-11-23T12:00:00Z by ada@ops until 2026-11-23T13:00:00Z: "
        "it blocks us (James' consumers are not affected)"
    )
    assert "the whole queue since" in a_hold().sentence
    assert "until it is released: " in a_hold().sentence
    assert a_hold().release == "mailslice queue release spool"
    assert replace(a_hold(), queue="a b").release == "mailslice queue release 'a b'"
    assert a_hold("b.example").release == "mailslice queue release spool --domain b.example"


@pytest.mark.parametrize(
    "text", ["", " ", "a@b", "*.b", "b?", "a,b", "a b", "a/b", "x" * 256, "a\tb", "\x1b[1m", "b`c"]
)
def test_what_is_no_domain_is_refused(text):
    with pytest.raises(BadInput, match=r"--domain: .* is not allowed"):
        parse_hold_domain(text)


def test_a_domain_has_one_form():
    assert {parse_hold_domain(one) for one in ("B.example", "b.EXAMPLE.", " b.example ")} == {
        "b.example"
    }
    assert parse_hold_domain("bücher.example") == "xn--bcher-kva.example"
    assert parse_hold_domain("[192.0.2.1]") == "[192.0.2.1]"
