"""What the cockpit shows while a store is away, and why a mail waits."""

import json
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from uuid import UUID

import pytest
from fastapi.testclient import TestClient

from mailslice.cockpit.app import cockpit
from mailslice.cockpit.facts import FRESH, STALE, Facts
from mailslice.cockpit.rights import Right
from mailslice.cockpit.wait_reasons import why_it_waits
from mailslice.maintenance.health import Health, HealthVerdict
from mailslice.maintenance.liveness import Stuck
from mailslice.maintenance.overview import QueueOverview
from mailslice.model.errors import BadSetting, PlanRefused, StoreUnavailable
from mailslice.model.holds import Hold
from mailslice.model.mail import EnqueueId
from mailslice.model.settings import Settings, load_settings
from mailslice.stores.cassandra.own import DelayState, InFlightMail, WorkerRecord

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
WELL = QueueOverview(
    "spool",
    HealthVerdict(Health.OK, "empty"),
    size=7,
    size_at=NOW,
    oldest=None,
    ready=7,
    unacknowledged=0,
    delayed=0,
    parked=0,
    dead_letters=0,
    consumers=1,
    enqueue_rate=0.0,
    deliver_rate=0.0,
    workers=1,
    reports={"queue_size": {"size": 7}},
)
RABBIT = "RabbitMQ at 127.0.0.1:5672 does not answer"
CASSANDRA = "Cassandra at 127.0.0.1:9042 does not answer"
ERRORS = [StoreUnavailable(RABBIT), BadSetting("RabbitMQ refuses user 'ada'")]


class Stores:
    closed, settings = 0, Settings()

    def close(self):
        self.closed += 1

    def existing_runs(self):
        return None


class World:
    """Time, and what a look at the stores gives: overviews, an error, or nothing for a while."""

    def __init__(self):
        self.now, self.gives, self.going_on = NOW, [WELL], threading.Event()
        self.going_on.set()

    def look(self, _stores, _clock):
        self.going_on.wait(20)
        if isinstance(self.gives, Exception):
            raise self.gives
        return self.gives

    def later(self, gives):
        self.now += 2 * STALE
        self.gives = gives


@pytest.fixture
def world():
    world = World()
    yield world
    world.going_on.set()


@pytest.fixture
def facts(world):
    patience = timedelta(seconds=0.05)
    return Facts(
        Settings, lambda: world.now, world.look, lambda _settings: Stores(), patience=patience
    )


@pytest.fixture
def client(facts):
    return TestClient(cockpit(facts, dict.fromkeys(Right, lambda: None)))


@pytest.mark.parametrize("error", ERRORS)
def test_nothing_looks_well_while_rabbitmq_is_away(world, facts, client, error):
    late = replace(WELL, queue="late", verdict=HealthVerdict(Health.LATE, "old"))
    world.gives = [late, WELL]
    facts.snapshot()
    world.later(error)
    snapshot = facts.snapshot()
    assert [one.verdict.health for one in snapshot.queues] == [Health.LATE, Health.UNKNOWN]
    assert (snapshot.at, snapshot.problem) == (NOW, str(error))
    why = "RabbitMQ did not answer" if error is ERRORS[0] else str(error)
    assert snapshot.queues[1].verdict.why == why
    assert client.get("/").status_code == 200


BOTH = {"MAILSLICE_POSTAL_URL": "mysql://u@db/postal"}
BOTH |= {"MAILSLICE_CASSANDRA_CONTACT_POINTS": "127.0.0.1"}


class Ledger:
    """The newest report of a Postal; the ledger of James' queues is empty."""

    def __init__(self, world):
        self.world = world

    def newest(self, _each, duties=None, *_):
        report = {"finished": self.world.now.isoformat(), "lockTimeoutSeconds": 600, "byState": {}}
        row = {"finished": self.world.now, "report": json.dumps(report), "queue": ""}
        return (
            [[SimpleNamespace(**row, duty=duties[0])]] if duties == ["stuck_mails_postal"] else []
        )

    def queues(self, *_):
        return []


@pytest.mark.parametrize("is_known", [True, False])
def test_postal_is_shown_as_it_is_while_rabbitmq_is_away(world, is_known, tmp_path):
    stores = Stores()
    stores.existing_runs = lambda: Ledger(world)
    facts = Facts(
        lambda: load_settings(BOTH, state_file=tmp_path / "none"),
        lambda: world.now,
        world.look,
        lambda _settings: stores,
    )
    if is_known:
        assert facts.snapshot().postal.looked_at == NOW
    world.later(StoreUnavailable(RABBIT))
    snapshot = facts.snapshot()
    assert (snapshot.problem, snapshot.postal.looked_at) == (RABBIT, NOW + 2 * STALE)
    assert snapshot.postal.verdict.health is Health.OK


@pytest.mark.parametrize("error", [StoreUnavailable(CASSANDRA), BadSetting(CASSANDRA)])
def test_a_ledger_that_gives_no_answer_is_that_of_postal_alone(world, error, tmp_path):
    def no_runs():
        raise error

    stores = Stores()
    stores.existing_runs = no_runs
    facts = Facts(
        lambda: load_settings(BOTH, state_file=tmp_path / "none"),
        lambda: world.now,
        world.look,
        lambda _settings: stores,
    )
    snapshot = facts.snapshot()
    assert (snapshot.queues, snapshot.problem) == ((WELL,), None)
    assert (snapshot.postal.unanswered, stores.closed) == (error, isinstance(error, BadSetting))
    page = TestClient(cockpit(facts, dict.fromkeys(Right, lambda: None))).get("/").text
    assert 'data-label="Last look">?<' in page


@pytest.mark.parametrize("error", [StoreUnavailable(CASSANDRA), BadSetting(CASSANDRA)])
def test_without_cassandra_the_sizes_of_before_stand_beside_the_brokers_figures(
    world, facts, error
):
    """Settings that were mended count at the next look."""
    facts.snapshot()
    with facts.stores() as stores:
        unanswered = {"Cassandra": error}
    world.later(
        [replace(WELL, ready=9, size=None, size_at=None, reports={}, unanswered=unanswered)]
    )
    snapshot = facts.snapshot()
    (one,) = snapshot.queues
    assert (one.size, one.size_at, one.ready, one.reports) == (7, NOW, 9, WELL.reports)
    assert snapshot.problem == CASSANDRA
    assert stores.closed == isinstance(error, BadSetting)


@pytest.mark.parametrize(
    ("tab", "says", "unknown"),
    [
        ("slices", "Nothing was measured yet.", "What was measured is unknown."),
        ("domains", "Nothing was measured yet.", "What was measured is unknown."),
        ("domains", "waiting, counted never", "waiting, counted at an unknown time"),
    ],
)
def test_a_store_that_gives_no_answer_is_not_said_to_have_nothing(
    world, client, tab, says, unknown
):
    """Nothing is known from before: the page was opened while Cassandra was away."""
    never = replace(WELL, size=None, size_at=None, reports={})
    world.gives = [replace(never, unanswered={"Cassandra": StoreUnavailable(CASSANDRA)})]
    text = client.get(f"/queue?name=spool&tab={tab}").text
    assert (says in text, unknown in text) == (False, True)
    world.later([never])
    text = client.get(f"/queue?name=spool&tab={tab}").text
    assert (says in text, unknown in text) == (True, False)


def test_a_page_waits_for_a_silent_store_only_so_long(world, facts):
    facts.snapshot()
    world.later([WELL])
    world.going_on.clear()
    snapshot = facts.snapshot()
    assert (snapshot.at, snapshot.queues) == (NOW, (WELL,))
    assert snapshot.problem == "The stores have not answered for 0.05 s"


def test_the_page_of_a_queue_waits_once_for_a_silent_store(world, facts, client):
    client.get("/queue?name=spool&tab=domains")
    facts.patience = timedelta(seconds=0.5)
    world.later([WELL])
    world.going_on.clear()
    began = time.monotonic()
    text = client.get("/queue?name=spool&tab=domains").text
    assert time.monotonic() - began < 2 * 0.5
    assert "The stores have not answered for 0.5 s" in text


def test_a_queue_that_is_not_known_may_be_there_while_rabbitmq_is_away(world, client):
    assert client.get("/queue?name=new").status_code == 404
    world.later(StoreUnavailable(RABBIT))
    answer = client.get("/queue?name=new")
    assert (answer.status_code, RABBIT in answer.json()["detail"]) == (503, True)


@pytest.mark.parametrize(("error", "status"), zip(ERRORS, (503, 500), strict=True))
def test_an_error_page_looks_again_where_the_visitor_can_do_nothing(world, client, error, status):
    world.gives = error
    answer = client.get("/", headers={"accept": "text/html"})
    assert (answer.status_code, 'data-refresh="10"' in answer.text) == (status, True)
    world.gives = [WELL]
    answer = client.get("/queue?name=none", headers={"accept": "text/html"})
    assert (answer.status_code, 'data-refresh="0"' in answer.text) == (404, True)


def test_a_silent_store_of_which_nothing_is_known_is_said(world, facts):
    world.going_on.clear()
    with pytest.raises(StoreUnavailable, match="have not answered"):
        facts.snapshot()


@pytest.mark.parametrize("error", ERRORS)
def test_what_was_known_comes_with_its_time_and_the_reason(world, facts, error):
    assert facts.cached("runs", lambda _stores: [1]).value == [1]
    world.now += timedelta(minutes=5)

    def fail(_stores):
        raise error

    last = facts.cached("runs", fail)
    assert (last.value, last.at, last.problem) == ([1], NOW, str(error))
    nothing = facts.cached("others", fail)
    assert (nothing.value, nothing.at, nothing.problem) == (None, None, str(error))


def holder(attempt: int, stage: str, silence: timedelta) -> Stuck:
    """A worker that got the mail 40 minutes ago, and is silent since."""
    mail = InFlightMail(
        EnqueueId(UUID(int=1)), "m", timedelta(minutes=40) - silence, stage, attempt, begun=True
    )
    record = WorkerRecord("w1", "h", 1, NOW, timedelta(seconds=5), 1, (mail,))
    return Stuck(replace(record, heartbeat=NOW - silence, read_at=NOW), mail)


LOST = HealthVerdict(Health.LOST, "100 mails are in no queue")


def hold(domain: str = "") -> Hold:
    return Hold("spool", domain, NOW, None, "ada", "their relay moves", "c1")


THROTTLED = "It is delayed until its destination takes more, and due in 30 min"
HELD = (
    "Held: {} since 2026-11-23T12:00:00Z by ada until it is released: their relay moves "
    "(James' consumers are not affected)."
)


@pytest.mark.parametrize(
    ("state", "queue", "worker", "sentences"),
    [
        ({}, {"consumers": 2}, None, ["It waits for a worker that is free."]),
        ({}, {"consumers": 0}, None, ["Nobody consumes the queue."]),
        (
            {},
            {"consumers": 2, "dead_letters": 1},
            None,
            ["The queue has one dead letter; this mail may be among them."],
        ),
        (
            {},
            {"consumers": 2, "verdict": LOST},
            None,
            ["The broker may have lost its message: the duty queue_audit says so for each mail."],
        ),
        (
            {"due": NOW + timedelta(minutes=30), "failures": 2, "answer": "451 later"},
            {"consumers": None},
            None,
            [
                "It is delayed, and due in 30 min (2026-11-23 12:30 UTC).",
                "It was tried 2 times without success.",
                "The last answer: 451 later",
            ],
        ),
        ({"due": NOW}, {"consumers": 1}, None, ["It waits for a worker that is free."]),
        (
            {},
            {"consumers": 0},
            holder(1, "DATA", timedelta(seconds=9)),
            ["The worker w1 holds it for 40 min (attempt 1, stage DATA)."],
        ),
        (
            {},
            {"consumers": None},
            holder(3, "", timedelta(minutes=9)),
            [
                "The worker w1 holds it for 40 min (attempt 3).",
                "That worker has no heartbeat for 9 min: it died, or hangs.",
            ],
        ),
        ({}, {"consumers": None}, None, []),
        ({}, {"consumers": 0, "holds": (hold(),)}, None, [HELD.format("the whole queue")]),
        (
            {"due": NOW + timedelta(minutes=4)},
            {"consumers": 1, "holds": (hold("example.net"), hold("example.org"))},
            None,
            [
                HELD.format("domain example.net"),
                "It is delayed, and due in 4 min (2026-11-23 12:04 UTC).",
            ],
        ),
        (
            {},
            {"consumers": 0, "holds": (hold("example.org"),)},
            None,
            ["Nobody consumes the queue."],
        ),
        (
            {"due": NOW + timedelta(minutes=30), "throttled": True},
            {"consumers": 1},
            None,
            [f"{THROTTLED} (2026-11-23 12:30 UTC)."],
        ),
    ],
)
def test_why_a_mail_waits(state, queue, worker, sentences):
    one = replace(WELL, **{"dead_letters": None, **queue})
    assert why_it_waits(NOW, DelayState(**state), one, worker, ["bob@Example.NET"]) == sentences


def test_a_queue_that_is_new_is_looked_for_before_it_is_said_to_be_none(world):
    facts = Facts(Settings, lambda: world.now, world.look, lambda _settings: Stores())
    assert facts.queue("spool")[0] == WELL
    new = replace(WELL, queue="new")
    world.gives = [WELL, new]
    assert facts.queue("new") == (new, facts.snapshot())
    assert facts.queue("none")[0] is None


def test_a_clock_that_was_set_back_keeps_no_figures_for_ever(world, facts):
    facts.snapshot()
    facts.cached("key", lambda _stores: 7, FRESH)
    world.now -= timedelta(hours=1)
    world.gives = [replace(WELL, size=3)]
    assert [one.size for one in facts.snapshot().queues] == [3]
    assert facts.cached("key", lambda _stores: 3, FRESH).value == 3


def test_after_an_act_the_next_page_has_the_figures_of_now(world, facts):
    facts.snapshot()
    world.gives = [replace(WELL, size=3)]
    assert [one.size for one in facts.snapshot().queues] == [7], "one look is for several viewers"
    facts.expire()
    assert [one.size for one in facts.snapshot().queues] == [3]


def test_a_look_that_began_before_an_act_has_no_figures_of_after_it(world):
    began = threading.Event()

    def look(_stores, _clock):
        gives = world.gives
        began.set()
        world.going_on.wait(20)
        return gives

    facts = Facts(Settings, lambda: world.now, look, lambda _settings: Stores())
    facts.snapshot()
    world.now += FRESH
    world.going_on.clear()
    began.clear()
    facts.snapshot()
    assert began.wait(20)
    world.gives = [replace(WELL, size=3)]
    facts.expire()
    world.going_on.set()
    for _ in range(2):
        assert [one.size for one in facts.snapshot().queues] == [3]


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_closes_the_stores_that_it_came_from_when_nobody_asks_them_any_more(facts, error):
    """Stores that are closed under a question open themselves again, and nobody closes those."""
    slow = facts.stores()
    first = slow.__enter__()
    with pytest.raises(type(error)), facts.stores() as failing:
        raise error
    assert (failing is first, first.closed) == (True, 0)
    with facts.stores() as others:
        assert others is not first
    assert not slow.__exit__(type(error), error, None)
    assert (first.closed, others.closed) == (1, 0)
    with facts.stores() as again:
        facts.close()
        assert (again is others, others.closed) == (True, 0)
    facts.close()
    assert others.closed == 1


@pytest.mark.parametrize("answers", [True, False])
def test_a_ledger_that_does_not_answer_is_not_an_empty_one(world, answers):
    class Ledger(Stores):
        settings = Settings()

        def existing_runs(self):
            if not answers:
                raise StoreUnavailable(CASSANDRA)

    facts = Facts(Settings, lambda: world.now, world.look, lambda _settings: Ledger())
    client = TestClient(cockpit(facts, dict.fromkeys(Right, lambda: None)))
    maintenance = client.get("/maintenance", headers={"Accept": "text/html"}).text
    assert (CASSANDRA in maintenance) is not answers
    assert ("never" in maintenance) is answers
    assert ("No run yet." in maintenance) is answers
    spark = client.get("/spark?name=spool").text
    assert ("not measured" in spark) is answers
    assert ('title="unknown"' in spark) is not answers


def test_slices_of_which_no_cleanup_is_known_are_not_said_to_be_uncleaned(world):
    class Silent(Stores):
        settings = Settings()

        def existing_runs(self):
            raise StoreUnavailable(CASSANDRA)

    row = {"start": "2026-11-23T11:00:00Z", "live": 7, "dead": 1, "survivors": 0}
    reports = {"queue_size": {"slices": [row], "window": 3600, "measuredAt": NOW.isoformat()}}
    world.gives = [replace(WELL, reports=reports)]
    facts = Facts(Settings, lambda: world.now, world.look, lambda _settings: Silent())
    client = TestClient(cockpit(facts, dict.fromkeys(Right, lambda: None)))
    text = client.get("/queue?name=spool&tab=slices").text
    assert (CASSANDRA in text, text.count('title="unknown">?')) == (True, 1)


def test_an_audit_whose_files_are_damaged_is_said_above_the_filters(world):
    class Damaged(Facts):
        def cached(self, *_):
            raise PlanRefused("audit r: mails.parquet is damaged")

    facts = Damaged(Settings, lambda: world.now, world.look, lambda _settings: Stores())
    client = TestClient(cockpit(facts, dict.fromkeys(Right, lambda: None)))
    answer = client.get("/queue?name=spool&verdict=lost", headers={"accept": "text/html"})
    assert (answer.status_code, "mails.parquet is damaged" in answer.text) == (200, True)
    assert '<select name="verdict"' in answer.text
