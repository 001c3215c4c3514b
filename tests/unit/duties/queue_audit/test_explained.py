"""A census counts what consumers hold by RabbitMQ's figure, and who holds it by records.

Only records of after the figure explain it.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from uuid import UUID

import pytest

from mailslice.duties.queue_audit import evidence
from mailslice.model.mail import EnqueueId
from mailslice.stores.cassandra.own import InFlightMail, WorkerRecord

W, J, OLD = (EnqueueId(UUID(int=number)) for number in (1, 2, 3))
NOW = datetime(2026, 11, 22, tzinfo=UTC)
QUEUE = "spool"


def record(beat, *held, worker="m", silent=timedelta(0), every=3):
    mails = tuple(
        InFlightMail(
            one,
            "mail",
            timedelta(minutes=30),
            "loaded",
            1,
            begun=True,
            returned=False,
            partition=None,
            message=None,
        )
        for one in held
    )
    return WorkerRecord(
        worker,
        "host",
        1,
        NOW,
        timedelta(seconds=every),
        beat,
        mails,
        heartbeat=NOW - silent,
        read_at=NOW,
    )


@dataclass
class Broker:
    """A hold, told second by second: what RabbitMQ's figure says, which records can be read, what
    came to the hold. The last of each goes on. `leased`: with an open delay row all the time.
    """

    figures: list
    records: list
    came: dict = field(default_factory=dict)
    leased: set = field(default_factory=set)
    marks: set = field(default_factory=set)
    now: int = 0
    asked: list = field(default_factory=list)
    ids: set = field(default_factory=set)

    def elsewhere(self):
        self.asked.append(self.now)
        return self.figures[min(self.now, len(self.figures) - 1)]

    def wait(self, seconds):
        self.now += int(seconds)
        self.ids |= self.came.get(self.now, set())

    def list(self, _queue):
        return self.records[min(self.now, len(self.records) - 1)]

    def waiting(self, _queue, ids):
        return dict.fromkeys(self.leased & set(ids), NOW)

    def marked(self, _queue, ids):
        return self.marks & set(ids)


@pytest.fixture(autouse=True)
def longest(monkeypatch):
    monkeypatch.setattr(evidence, "LONGEST_HOLD", evidence.HOLD + timedelta(seconds=12))


def looked_at(monkeypatch, broker, before=()):
    monkeypatch.setattr(evidence, "time", SimpleNamespace(monotonic=lambda: broker.now))
    stores = SimpleNamespace(
        own=SimpleNamespace(worker_records=broker, delayed_mails=broker),
        tables=SimpleNamespace(deleted=broker),
        management=SimpleNamespace(alarms=list),
    )
    found = evidence.explained_consumers(
        stores, QUEUE, broker, before, evidence.max_checkout_time(before)
    )
    return found, evidence.why_unproved(stores, found, 0)


def test_a_worker_that_goes_on_holding_explains_the_figure(monkeypatch):
    broker = Broker([1], [[record(beat, W)] for beat in range(5, 20)])
    found, unproved = looked_at(monkeypatch, broker, [record(4, W)])
    assert (found.unacknowledged, found.explained, unproved) == (1, 1, None)
    assert evidence._in_flight(found.records).keys() == {W}
    assert broker.now <= 3


def test_a_mail_done_after_the_record_explains_no_message_of_somebody_else(monkeypatch):
    """The worker has W in its record, completes it, and the next figure counts J, which a consumer
    without a record holds.
    """
    records = [[record(5, W)]] * 3 + [[record(6)]] * 3 + [[record(7)]]
    found, unproved = looked_at(monkeypatch, Broker([1], records), [record(4, W)])
    assert (found.unacknowledged, found.explained) == (1, 0)
    assert unproved == "consumers hold 1 messages of which no worker's record tells"


def test_a_record_that_was_on_its_way_as_the_figure_was_made_explains_nothing(monkeypatch):
    records = [[record(5, W)], [record(6, W)], [record(7)]]
    assert looked_at(monkeypatch, Broker([1], records), [record(4, W)])[1] is not None


def test_a_worker_that_was_killed_explains_nothing_though_it_still_seems_alive(monkeypatch):
    found, unproved = looked_at(monkeypatch, Broker([1], [[record(5, W)]]), [record(4, W)])
    assert (found.unacknowledged, found.explained) == (1, 0)
    assert unproved is not None


def test_what_came_to_the_hold_explains_nothing(monkeypatch):
    broker = Broker([1], [[record(beat, W)] for beat in range(5, 40)], came={1: {W}})
    assert looked_at(monkeypatch, broker, [record(4, W)])[1] is not None
    # The worker holds another one besides. Somebody without a record holds the second one of the
    # figure's two.
    broker = Broker([2], [[record(beat, W, OLD)] for beat in range(5, 40)], came={1: {W}})
    found, unproved = looked_at(monkeypatch, broker, [record(4, W, OLD)])
    assert (found.unacknowledged, found.explained) == (2, 1)
    assert unproved == "consumers hold 1 messages of which no worker's record tells"


def test_a_figure_that_comes_down_to_what_the_records_tell_is_looked_at_again(monkeypatch):
    broker = Broker([2] * 5 + [1], [[record(beat, W)] for beat in range(5, 40)])
    found, unproved = looked_at(monkeypatch, broker, [record(4, W, OLD)])
    assert (found.unacknowledged, found.explained, unproved) == (1, 1, None)
    assert len(broker.asked) > 1


@pytest.mark.parametrize("of", ["leased", "marks"])
def test_a_mail_with_a_lease_or_marked_in_its_handler_explains_no_message(monkeypatch, of):
    """Its message is acknowledged. The figure counts one that a silent consumer holds."""
    records = [[record(beat, OLD)] for beat in range(5, 40)]
    found, unproved = looked_at(monkeypatch, Broker([1], records, **{of: {OLD}}), [record(4, OLD)])
    assert (found.unacknowledged, found.explained) == (1, 0)
    assert unproved == "consumers hold 1 messages of which no worker's record tells"


def test_a_lease_beside_a_mail_in_a_handler_leaves_the_figure_explained(monkeypatch):
    records = [[record(beat, W, OLD)] for beat in range(5, 40)]
    broker = Broker([1], records, leased={OLD})
    found, unproved = looked_at(monkeypatch, broker, [record(4, W, OLD)])
    assert (found.unacknowledged, found.explained, unproved) == (1, 1, None)


def test_no_messages_with_consumers_need_no_explanation_and_no_figures_prove_nothing(monkeypatch):
    broker = Broker([0], [[record(5, W)]])
    assert looked_at(monkeypatch, broker)[1] is None
    assert broker.now == 0
    broker = Broker([None, None, 0], [[]])
    assert looked_at(monkeypatch, broker)[1] is None
    assert (
        looked_at(monkeypatch, Broker([None], [[]]))[1]
        == "RabbitMQ gives no figures of what consumers hold"
    )


def test_records_that_tell_of_more_than_the_figure_prove_nothing(monkeypatch):
    broker = Broker([1], [[record(beat, W, J)] for beat in range(5, 40)])
    assert (
        looked_at(monkeypatch, broker)[1]
        == "workers' records tell of 2 messages where RabbitMQ says that consumers hold 1"
    )


def every_minute(second):
    """A worker that is asked to write each minute; the second to which a record falls is the last
    that its loop can miss. The first is of before the hold.
    """
    return record(5 + (second + 40) // 61, W, every=60)


def test_a_worker_that_writes_its_record_each_minute_is_waited_for(monkeypatch):
    found, unproved = looked_at(
        monkeypatch,
        Broker([1], [[every_minute(second)] for second in range(200)]),
        [every_minute(0)],
    )
    assert (found.unacknowledged, found.explained, unproved) == (1, 1, None)


def test_a_worker_is_waited_for_three_of_its_records_and_at_most_three_minutes(
    monkeypatch,
):
    monkeypatch.undo()  # the real longest hold
    seconds = {
        every: evidence.max_checkout_time(
            [record(5, W), record(5, W, worker="rare", every=every)]
        ).total_seconds()
        for every in (0, 3, 10, 15, 60, 600)
    }
    assert seconds == {0: 45, 3: 45, 10: 45, 15: 60, 60: 195, 600: 195}
    assert (
        evidence.max_checkout_time([])
        == evidence.max_checkout_time([record(5, W, every=60, silent=timedelta(hours=1))])
        == evidence.LONGEST_HOLD
    )
    broker = Broker([1], [[record(5, W, every=60)]])  # it was killed, and still seems alive
    assert looked_at(monkeypatch, broker, [record(4, W, every=60)])[1] is not None
    assert 180 <= broker.now <= 182


def test_how_long_workers_may_get_no_mail_is_said_first(monkeypatch, caplog):
    monkeypatch.undo()
    stores = SimpleNamespace(management=SimpleNamespace(arguments=lambda _: {}))
    counts = SimpleNamespace(ready=7)
    for every, told in ((3, "for 15 to 45 s"), (60, "for 15 to 195 s")):
        evidence._announce(
            stores, QUEUE, counts, evidence.max_checkout_time([record(4, W, every=every)])
        )
        assert told in caplog.messages[-1]
