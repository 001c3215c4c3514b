"""Advice in words: each sentence has its cause, and a healthy queue gets none."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from mailslice.duties.queue_size.advice import QueueFacts, advice

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
HEALTHY = QueueFacts(
    now=NOW,
    window=timedelta(hours=1),
    buckets=1,
    nodes=1,
    fullest=9_000,
    fullest_slice=NOW,
    live=9_000,
    dead=0,
    unproven=0,
    browse_start=NOW,
    aligned=True,
    dead_letters=0,
)


def test_a_healthy_queue_gets_no_advice():
    assert advice(HEALTHY) == []


def test_unknown_dead_letters_are_no_dead_letters_to_speak_of():
    assert advice(replace(HEALTHY, dead_letters=None)) == []


def test_a_full_partition_names_a_window_that_divides_and_the_buckets_that_would_do():
    (sentence,) = advice(replace(HEALTHY, fullest=53_000))
    assert sentence == (
        "the slice of 2026-11-21 12:00:00 holds 53,000 mails in one bucket, advised are 10,000: "
        "a slice window of 10m, or 6 buckets, would keep partitions small (mailslice config apply)"
    )


def test_fewer_buckets_than_nodes_is_told_with_what_it_costs():
    (sentence,) = advice(replace(HEALTHY, nodes=3))
    assert sentence.startswith("1 bucket on 3 Cassandra nodes: ")
    assert "3 buckets would use all" in sentence


def test_an_unaligned_browse_start_comes_first():
    first, *rest = advice(replace(HEALTHY, aligned=False, dead_letters=4))
    assert first.startswith("browseStart 2026-11-21 12:00:00 is no multiple of the slice window")
    assert rest == ["4 messages are in the dead letter queue: somebody should look at them"]


def test_a_browse_start_of_eight_days_is_what_james_calls_degraded():
    (sentence,) = advice(replace(HEALTHY, browse_start=NOW - timedelta(days=8), live=0))
    assert (
        sentence == "browseStart is 8 days old, and James calls a queue degraded from 7 days on: "
        "run queue_cleanup"
    )
    assert advice(replace(HEALTHY, browse_start=NOW - timedelta(days=7))) == []


def test_many_dead_rows_ask_for_a_cleanup_and_few_do_not():
    assert advice(replace(HEALTHY, live=5, dead=10_000)) == []
    (sentence,) = advice(replace(HEALTHY, live=5, dead=10_001))
    assert (
        sentence
        == "10,001 dead rows for 5 live mails: every browse and size reads them; run queue_cleanup"
    )


def test_rows_without_a_mark_behind_browse_start_are_reported_not_judged():
    (sentence,) = advice(replace(HEALTHY, unproven=2))
    assert sentence.startswith("2 rows without a mark lie behind browseStart")
