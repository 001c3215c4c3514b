"""Looking through a queue by holding it: order, what is acknowledged, what goes back, and queues that a look would harm."""

from __future__ import annotations

from typing import Any

import pytest

from mailslice.model.errors import Refused, StoreUnavailable
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.stores.rabbitmq.held import hold
from mailslice.stores.rabbitmq.management import Management


def declare(settings: Any, name: str, bodies: list[bytes], **arguments: Any) -> None:
    with blocking_connection(settings.rabbitmq) as connection:
        channel = connection.channel()
        channel.queue_declare(name, durable=True, arguments=arguments)
        channel.confirm_delivery()
        for body in bodies:
            channel.basic_publish("", name, body, mandatory=True)


def bodies_of(settings: Any, name: str) -> list[bytes]:
    with hold(settings.rabbitmq, name) as held:
        return [each.body for each in held.messages()]


def test_a_classic_queue_keeps_its_order_and_forgets_what_was_acknowledged(fresh: Any) -> None:
    declare(fresh.settings, "q", [b"a", b"b", b"c", b"d"])
    with hold(fresh.settings.rabbitmq, "q") as held:
        found = list(held.messages())
        held.ack(found[1])
    assert [each.body for each in found] == [b"a", b"b", b"c", b"d"]
    assert bodies_of(fresh.settings, "q") == [b"a", b"c", b"d"]
    with hold(fresh.settings.rabbitmq, "q", most=2) as held:
        assert [each.body for each in held.messages(2)] == [b"a", b"c"]
        assert held.left() == 1
    assert bodies_of(fresh.settings, "q") == [b"a", b"c", b"d"]


def test_a_queue_that_is_not_there_is_none_and_one_that_somebody_consumes_is_left_alone(fresh: Any) -> None:
    with hold(fresh.settings.rabbitmq, "no such queue") as held:
        assert held is None
    declare(fresh.settings, "q", [])
    with hold(fresh.settings.rabbitmq, "q"), pytest.raises(StoreUnavailable, match="has a consumer"), hold(fresh.settings.rabbitmq, "q", patience=0):
        raise AssertionError("held twice")


def test_a_quorum_queue_with_a_delivery_limit_is_refused_and_one_without_goes_to_the_back_whole(fresh: Any) -> None:
    quorum = {"x-queue-type": "quorum", "x-quorum-initial-group-size": 1}
    declare(fresh.settings, "limited", [b"a"], **quorum, **{"x-delivery-limit": 3})
    declare(fresh.settings, "free", [b"a", b"b"], **quorum)
    management = Management(fresh.settings.rabbitmq)
    assert (management.delivery_limit("limited"), management.delivery_limit("free"), management.delivery_limit("none")) == (3, None, None)
    assert (management.keeps_order("limited"), management.keeps_order("none")) == (False, True)
    with pytest.raises(Refused, match="delivery limit 3"), hold(fresh.settings.rabbitmq, "limited"):
        raise AssertionError("looked through")
    for _ in range(2):
        assert sorted(bodies_of(fresh.settings, "free")) == [b"a", b"b"]
