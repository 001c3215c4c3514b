"""What the management API's figures mean: absent is unknown, never zero."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from time import process_time
from timeit import repeat
from typing import Any

from mailslice.model.mail import QueueName
from mailslice.model.names import RabbitNames
from mailslice.stores.rabbitmq.management import Depth
from mailslice.stores.rabbitmq.traffic import Traffic, delayed, traffic


class Broker:
    def __init__(self, *queues: dict[str, Any]) -> None:
        self._queues = queues

    def queues(self, columns: object) -> list[dict[str, Any]]:
        return list(self._queues)


FIGURES = {"type": "classic", "consumers": 1, "messages_ready": 2, "messages_unacknowledged": 3}


def one(**found: Any) -> Traffic:
    return traffic(Broker({"name": "q", **found}))["q"]


def test_a_queue_that_moves() -> None:
    stats = {
        "publish": 9,
        "publish_details": {"rate": 1.5},
        "deliver_get_details": {"rate": 2},
        "deliver_get": 4,
        "ack": 1,
        "ack_details": {"rate": 0.0},
    }
    found = one(**FIGURES, message_stats=stats, head_message_timestamp=1795290970)
    assert found == Traffic(
        Depth(2, 3, 0, 1), 1.5, 2.0, 0.0, 0.0, datetime(2026, 11, 21, 19, 56, 10, tzinfo=UTC)
    )
    assert found.moving == 3.5


def test_a_queue_without_figures_is_unknown() -> None:
    assert one(type="classic") == Traffic(None, None, None, None, None, None)


def test_a_queue_that_never_moved_a_message_has_rates_of_zero() -> None:
    assert one(**FIGURES).published == 0.0


def test_rates_that_the_broker_does_not_measure_are_unknown() -> None:
    assert one(**FIGURES, message_stats={"publish": 9}).published is None
    assert one(**FIGURES, message_stats={"publish": 9}).moving == 0.0


def test_delayed_counts_the_levels_and_the_hop_of_this_queue_alone() -> None:
    names, other = RabbitNames(QueueName("a.b")), RabbitNames(QueueName("aXb"))
    mine = [names.hop_queue, names.delay_queue(1), names.delay_queue(3600)]
    all_traffic = traffic(
        Broker(
            *(
                {"name": name, **FIGURES}
                for name in (*mine, other.hop_queue, other.delay_queue(1), names.work_queue)
            )
        )
    )
    assert delayed(all_traffic, names) == 15
    assert delayed({}, names) == 0
    assert (
        delayed({**all_traffic, **traffic(Broker({"name": names.delay_queue(60)}))}, names) is None
    )


def test_another_queues_levels_cost_little() -> None:
    """Each of 300 queues asks it of the levels of all 300."""
    names, other = RabbitNames(QueueName("a.b")), RabbitNames(QueueName("a.c"))
    own_level, other_level = (
        min(repeat(partial(names.is_delay_queue, level), process_time, number=2000))
        for level in (names.delay_queue(3600), other.delay_queue(3600))
    )
    assert other_level < own_level / 3
