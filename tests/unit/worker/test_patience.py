"""Pauses of a mail that waits for a store: they grow, and never so far that a mail waits long after the store is back."""

from __future__ import annotations

from mailslice.stores.cassandra import session
from mailslice.stores.rabbitmq import consumer, publisher
from mailslice.worker.patience import FIRST_PAUSE, LONGEST_PAUSE, Patience


def test_pauses_double_with_jitter_up_to_five_seconds() -> None:
    patience = Patience()
    pauses = [patience.pause()[0] for _ in range(400)]
    for pause, most in zip(pauses, [0.5, 1, 2, 4, *[5] * 396], strict=True):
        assert 0.7 * most <= pause <= most
    assert len(set(pauses)) > 390


def test_the_log_hears_of_it_while_they_grow_and_then_twice_a_minute() -> None:
    patience = Patience()
    told = [patience.pause() for _ in range(1000)]
    assert [aloud for _, aloud in told[:4]] == [True] * 4
    later = told[4:]
    lines, seconds = sum(aloud for _, aloud in later), sum(pause for pause, _ in later)
    assert seconds / 36 <= lines <= seconds / 30 + 1


def test_a_mail_is_looked_at_within_ten_seconds_of_the_return_of_a_store_however_long_that_was_away() -> (
    None
):
    """Each store's client connects again first; then the mail's own pause ends."""
    assert FIRST_PAUSE < LONGEST_PAUSE
    for connecting in (session.LONGEST_PAUSE, consumer.LONGEST_PAUSE, publisher.LONGEST_PAUSE):
        assert connecting + LONGEST_PAUSE <= 10
