"""A broker that is slow to hand out what is ready: nothing of it is passed over."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from mailslice.model.errors import StoreUnavailable
from mailslice.stores.rabbitmq.checkout import Checkout, Windows


class Broker:
    """A connection and its channel; each message of the queue comes `seconds` after the last."""

    def __init__(self, seconds: float, ready: int) -> None:
        self.connection, self.ready, self.asked = self, ready, 0
        self._seconds, self._since = seconds, time.monotonic()

    def basic_qos(self, **_: object) -> None:
        pass

    def basic_consume(self, _queue: str, deliver: Any, **_: object) -> str:
        self._deliver = deliver
        return "tag"

    def queue_declare(self, _queue: str, **_: object) -> Any:
        self.asked += 1
        return SimpleNamespace(method=SimpleNamespace(message_count=self.ready))

    def process_data_events(self, time_limit: float) -> None:
        time.sleep(time_limit)
        if self.ready and time.monotonic() - self._since > self._seconds:
            self.ready, self._since = self.ready - 1, time.monotonic()
            properties = SimpleNamespace(headers=None, timestamp=None)
            self._deliver(self, SimpleNamespace(delivery_tag=1), properties, b"x")


def checked_out(broker: Any, limit: int = 9, quiet: float = 0.0) -> Checkout:
    checkout = Checkout(broker, "q", limit, Windows(), quiet)
    checkout.consume()
    return checkout


def test_what_is_ready_and_comes_late_is_waited_for() -> None:
    assert len(list(checked_out(Broker(1.3, ready=1)).messages())) == 1


def test_what_is_ready_and_never_comes_is_an_error() -> None:
    checkout = checked_out(Broker(60, ready=1))
    with pytest.raises(StoreUnavailable, match="queue q: RabbitMQ does not hand messages out"):
        next(checkout.messages(patience=0.1))


def test_nobody_waits_for_more_than_was_asked_for() -> None:
    broker = Broker(0, ready=3)
    assert len(list(checked_out(broker, limit=2).messages())) == 2
    assert (broker.ready, broker.asked) == (1, 0)


class OnTheWay(Broker):
    """Nothing is ready: the one message was handed out, and comes before the second answer."""

    def process_data_events(self, time_limit: float) -> None:
        if self.asked == 2:
            self.ready, self._seconds = 1, 0
            super().process_data_events(time_limit)
            self.asked = 3


def test_what_is_on_its_way_as_nothing_is_ready_is_not_missed() -> None:
    assert len(list(checked_out(OnTheWay(0, ready=0)).messages())) == 1


class Follower(Broker):
    """Its leader has handed the message out; the follower does so half a second later."""

    def queue_declare(self, _queue: str, **_: object) -> Any:
        self.asked += 1
        return SimpleNamespace(method=SimpleNamespace(message_count=0))


def test_what_a_follower_of_a_quorum_queue_hands_out_late_is_waited_for() -> None:
    assert len(list(checked_out(Follower(0.5, ready=1), quiet=1.0).messages())) == 1
