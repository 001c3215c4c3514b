"""The table facts -> health, and that an unknown fact never makes a queue look well."""

import shlex
from datetime import timedelta

import pytest

from mailslice.maintenance.health import Health, HealthFacts, verdict_of
from mailslice.model.errors import StoreUnavailable
from tests.unit.docs.test_commands import wrong

SILENT = StoreUnavailable("Cassandra at db:9042 does not answer")
WELL = {
    "waiting": 10,
    "counted_ago": timedelta(seconds=2),
    "in_broker": 10,
    "ready": 8,
    "delayed": 0,
    "consumers": 2,
    "oldest": timedelta(minutes=3),
}


def verdict(**facts):
    return verdict_of(HealthFacts("spool", **{**WELL, **facts}))


@pytest.mark.parametrize(
    ("facts", "health", "why", "next_"),
    [
        ({}, Health.OK, "10 mails wait; the oldest for 3 min", None),
        ({"waiting": 0, "in_broker": 0, "ready": 0, "oldest": None}, Health.OK, "empty", None),
        (
            {"waiting": 105, "in_broker": 0, "ready": 0},
            Health.LOST,
            "105 mails wait; the broker has 0 of them",
            "mailslice duty run queue_audit --queue spool",
        ),
        (
            {"lost": 3},
            Health.LOST,
            "the audit found 3 mails in no queue of the broker",
            "mailslice queue audit spool",
        ),
        (
            {"stuck": 2},
            Health.STUCK,
            "2 mails are in flight far too long",
            "mailslice duty run stuck_mails --queue spool --dry-run",
        ),
        (
            {"silent": 4},
            Health.STUCK,
            "workers without a heartbeat hold 4 mails",
            "mailslice duty run stuck_mails --queue spool --dry-run",
        ),
        (
            {"consumers": 0},
            Health.NO_WORKERS,
            "8 messages are ready, and nobody consumes the queue",
            "mailslice worker run --queue spool --handler MODULE:FUNCTION",
        ),
        (
            {"oldest": timedelta(hours=49)},
            Health.LATE,
            "the oldest mail waits for 2 days, more than 1d",
            "mailslice queue shape spool",
        ),
        (
            {"unanswered": {"Cassandra": SILENT}},
            Health.UNKNOWN,
            "Cassandra did not answer",
            "mailslice config check",
        ),
        (
            {"waiting": None, "oldest": None},
            Health.UNKNOWN,
            "its mails were never counted",
            "mailslice duty run queue_size --queue spool",
        ),
        (
            {"ready": None},
            Health.UNKNOWN,
            "RabbitMQ has no figures of the work queue yet",
            "mailslice queue show spool",
        ),
        (
            {"held": "ada until 12:00, a storm of bounces"},
            Health.HELD,
            "held: ada until 12:00, a storm of bounces",
            "mailslice queue release spool",
        ),
        (
            {
                "held": "domain b.example, it blocks us",
                "release": "mailslice queue release spool --domain b.example",
            },
            Health.HELD,
            "held: domain b.example, it blocks us",
            "mailslice queue release spool --domain b.example",
        ),
        (
            {"held": "the whole queue", "is_held_whole": True, "ready": 3, "consumers": 0},
            Health.HELD,
            "held: the whole queue",
            "mailslice queue release spool",
        ),
        (
            {"held": "domain b.example", "ready": 3, "consumers": 0},
            Health.NO_WORKERS,
            "3 messages are ready, and nobody consumes the queue; held: domain b.example",
            "mailslice worker run --queue spool --handler MODULE:FUNCTION",
        ),
    ],
)
def test_word_reason_and_next_step(facts, health, why, next_):
    found = verdict(**facts)
    assert (found.health, found.why, found.next) == (health, why, next_)
    assert next_ is None or wrong(next_) is None


@pytest.mark.parametrize("queue", ["two words", "$(reboot)", "a;b", "it's"])
@pytest.mark.parametrize("facts", [{"lost": 1}, {"stuck": 1}, {"oldest": timedelta(days=9)}])
def test_the_next_step_is_a_command_whatever_the_queue_is_called(queue, facts):
    next_ = verdict_of(HealthFacts(queue, **{**WELL, **facts})).next
    assert queue in shlex.split(next_)


def test_a_count_says_its_age_once_it_is_older_than_the_other_figures():
    lost = {"waiting": 1, "in_broker": 0, "ready": 0}
    young, old = (verdict(**lost, counted_ago=timedelta(seconds=ago)).why for ago in (9, 300))
    assert young == "1 mail waits; the broker has 0 of them"
    assert old == "1 mail waits; the broker has 0 of them (counted 5 min ago)"


def test_a_queue_that_was_empty_a_while_ago_is_not_empty_now():
    nothing = {"waiting": 0, "in_broker": 0, "oldest": None, "ready": 10_000}
    assert verdict(**nothing, counted_ago=timedelta(minutes=12)).why == "empty (counted 12 min ago)"


def test_the_worst_word_counts():
    everything = {
        "waiting": 105,
        "in_broker": 0,
        "stuck": 1,
        "consumers": 0,
        "oldest": timedelta(days=3),
        "held": "ada",
    }
    words = []
    for gone, harmless in (
        ("in_broker", 105),
        ("stuck", 0),
        ("consumers", 1),
        ("oldest", None),
        ("held", None),
    ):
        words.append(verdict(**everything).health)
        everything[gone] = harmless
    words.append(verdict(**everything).health)
    assert words == [
        Health.LOST,
        Health.STUCK,
        Health.NO_WORKERS,
        Health.LATE,
        Health.HELD,
        Health.OK,
    ]
    assert sorted(words, key=lambda word: word.severity) == words


def test_delayed_mails_are_not_late():
    waiting = {"oldest": timedelta(days=3), "waiting": 10, "in_broker": 10}
    assert verdict(**waiting, delayed=10).health is Health.OK
    assert verdict(**waiting, delayed=9).health is Health.LATE


def test_what_moves_while_it_is_counted_is_not_lost():
    assert verdict(waiting=110, in_broker=10, moving=10.0).health is Health.OK
    assert verdict(waiting=110, in_broker=10, moving=1.0).health is Health.LOST


def test_a_count_that_took_long_missed_what_moved_all_the_while():
    counted = {"waiting": 4000, "in_broker": 100, "moving": 50.0}
    assert verdict(**counted, counting=63.0).health is Health.OK
    assert verdict(**counted, counting=62.0).health is Health.LOST


def test_mails_of_an_unknown_broker_are_not_lost():
    assert verdict(in_broker=None).health is Health.OK
    assert verdict(in_broker=None, unanswered={"Cassandra": SILENT}).health is Health.UNKNOWN
