"""What is declared, what is left alone, and what the management API says of it."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from mailslice.model.errors import StoreUnavailable, TopologyDiffers
from mailslice.model.mail import QueueName
from mailslice.model.names import RabbitNames
from mailslice.stores.rabbitmq.checkout import dead_letter_ids
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.stores.rabbitmq.management import Management, shows_no_messages
from mailslice.stores.rabbitmq.topology import Topology

GOLDEN = Path(__file__).parents[2] / "golden"
SPOOL = QueueName("spool")


def in_management(settings: Any) -> Any:
    """Queues, exchanges and bindings in the form of the golden files.

    RabbitMQ 4 writes the type of a classic queue into its arguments; the files are of 3.10.
    """
    found = Management(settings.rabbitmq)._list
    vhost = settings.rabbitmq.url.get_secret_value().rpartition("/")[2]
    kept = {
        "queues": ("name", "type", "durable", "auto_delete", "exclusive", "arguments"),
        "exchanges": ("name", "type", "durable", "auto_delete", "internal", "arguments"),
        "bindings": ("source", "destination", "destination_type", "routing_key", "arguments"),
    }
    listed = {}
    for kind, fields in kept.items():
        things = [
            {field: thing.get(field) for field in fields} for thing in found(f"/api/{kind}/{vhost}")
        ]
        for thing in things:
            if thing["arguments"].get("x-queue-type") == "classic":
                del thing["arguments"]["x-queue-type"]
        ours = [
            thing
            for thing in things
            if "JamesMailQueue" in str(thing.get("name") or thing.get("source"))
        ]
        listed[kind] = sorted(ours, key=lambda thing: str(thing.get("name") or thing.get("source")))
    return listed


@pytest.mark.parametrize(
    ("case", "quorum"), [("declarations", "false"), ("declarations-quorum", "true")]
)
def test_a_queue_is_declared_exactly_as_james_declares_it(
    fresh: Any, case: str, quorum: str
) -> None:
    golden = json.loads((GOLDEN / f"{case}.json").read_text())
    settings = fresh.but(MAILSLICE_QUEUE_QUORUM=quorum).settings
    topology = Topology(settings)
    assert not topology.exists(QueueName(golden["queue"]))
    topology.declare(QueueName(golden["queue"]))
    topology.declare(QueueName(golden["queue"]))
    found = in_management(settings)
    for kind in ("queues", "exchanges", "bindings"):
        assert found[kind] == sorted(
            golden[kind], key=lambda thing: str(thing.get("name") or thing.get("source"))
        )
    assert topology.exists(QueueName(golden["queue"]))
    assert topology.names() == [golden["queue"]]
    topology.check(QueueName(golden["queue"]))


def test_an_existing_queue_with_other_arguments_is_left_alone_and_named_by_check(
    fresh: Any,
) -> None:
    Topology(fresh.settings).declare(SPOOL)
    quorum = Topology(fresh.but(MAILSLICE_QUEUE_QUORUM="true").settings)
    quorum.declare(SPOOL)
    assert quorum.management.arguments(RabbitNames(SPOOL).work_queue) == {
        "x-dead-letter-exchange": "JamesMailQueue-dead-letter-exchange-spool"
    }
    with pytest.raises(TopologyDiffers) as raised:
        quorum.check(SPOOL)
    assert "x-queue-type=quorum" in str(raised.value)
    assert (
        "JamesMailQueue-workqueue-spool exists with arguments "
        "{x-dead-letter-exchange=JamesMailQueue-dead-letter-exchange-spool}"
    ) in str(raised.value)


@pytest.mark.parametrize("quorum", [False, True])
def test_james_3_9_can_declare_beside_mailslice_and_mailslice_beside_it(
    fresh: Any, quorum: bool
) -> None:
    """The arguments are those of James 3.9's source, RabbitMQMailQueueFactory."""
    names = RabbitNames(SPOOL)
    kind: dict[str, Any] = {"x-queue-version": 2}
    if quorum:
        kind = {"x-queue-type": "quorum", "x-quorum-initial-group-size": 1}
    queues = {
        names.work_queue: kind | {"x-dead-letter-exchange": names.dead_letter_exchange},
        names.dead_letter_queue: kind,
    }

    def james(queue: str) -> None:
        with blocking_connection(fresh.settings.rabbitmq) as connection:
            connection.channel().queue_declare(queue, durable=True, arguments=queues[queue])

    shaped = {"MAILSLICE_QUEUE_QUORUM": str(quorum).lower()}
    before = Topology(fresh.but(**shaped).settings)
    before.declare(SPOOL)
    with pytest.raises(StoreUnavailable, match="PRECONDITION_FAILED"):
        james(names.dead_letter_queue)  # why the setting is there
    with blocking_connection(fresh.settings.rabbitmq) as connection:
        for queue in queues:
            connection.channel().queue_delete(queue)

    Topology(fresh.but(**shaped, MAILSLICE_QUEUE_JAMES="3.9").settings).declare(SPOOL)
    for queue in queues:
        james(queue)
    before.check(SPOOL)  # a worker with either setting takes mail from it


def test_a_declaration_that_died_half_way_is_finished(fresh: Any) -> None:
    names = RabbitNames(SPOOL)
    with blocking_connection(fresh.settings.rabbitmq) as connection:
        connection.channel().exchange_declare(names.exchange, "direct", durable=True)
        connection.channel().queue_declare(
            names.work_queue,
            durable=True,
            arguments={"x-dead-letter-exchange": names.dead_letter_exchange},
        )
    Topology(fresh.settings).declare(SPOOL)
    publish(fresh.settings, names.exchange, b"routed")
    assert count(fresh.settings, names.work_queue) == 1


def test_a_queue_without_its_exchange_is_not_known(fresh: Any) -> None:
    names = RabbitNames(SPOOL)
    with blocking_connection(fresh.settings.rabbitmq) as connection:
        connection.channel().queue_declare(names.work_queue, durable=True)
    assert not Topology(fresh.settings).exists(SPOOL)
    assert Topology(fresh.settings).names() == []


def test_the_levels_of_one_queue_are_told_from_those_of_another(fresh: Any) -> None:
    topology = Topology(fresh.settings)
    for name in ("spool", "b-5s-spool"):
        topology.declare(QueueName(name))
        topology.declare_delays(QueueName(name), [5, 30])
    assert topology.management.delay_queues(SPOOL) == [
        "mailslice-delay-30s-spool",
        "mailslice-delay-5s-spool",
    ]
    assert topology.names() == ["b-5s-spool", "spool"]


def test_own_queues_of_another_type_or_strategy_are_left_alone_and_named(fresh: Any) -> None:
    topology = Topology(fresh.settings)
    names = RabbitNames(SPOOL)
    topology.declare(SPOOL)
    with blocking_connection(fresh.settings.rabbitmq) as connection:
        channel = connection.channel()
        level = {
            "x-message-ttl": 5000,
            "x-dead-letter-exchange": names.hop_exchange,
            "x-queue-type": "quorum",
        }
        channel.queue_declare(names.delay_queue(5), durable=True, arguments=level)
        channel.queue_declare(names.delay_queue(1), durable=True, arguments={"x-message-ttl": 1000})
    topology.declare_delays(SPOOL, [1, 5, 30])
    (other,) = topology.unsafe_queues()
    assert other.startswith(
        "queue mailslice-delay-5s-spool is quorum, and MAILSLICE_QUEUE_QUORUM asks for classic"
    )
    asked = Topology(fresh.but(MAILSLICE_QUEUE_QUORUM="true").settings).unsafe_queues()
    classic = {
        each.split()[1] for each in asked if "is classic, and MAILSLICE_QUEUE_QUORUM" in each
    }
    assert classic == {
        names.hop_queue,
        names.park_queue,
        names.delay_queue(1),
        names.delay_queue(30),
    }
    (once,) = (each for each in asked if "delay-5s" in each)
    assert "has x-dead-letter-strategy=None, and not at-least-once" in once


def test_a_message_goes_through_a_level_to_the_hop_queue(fresh: Any) -> None:
    names = RabbitNames(SPOOL)
    Topology(fresh.settings).declare_delays(SPOOL, [1])
    published = time.monotonic()
    publish(fresh.settings, "", b"later", names.delay_queue(1))
    wait_for(lambda: count(fresh.settings, names.hop_queue))
    assert time.monotonic() - published >= 1
    assert count(fresh.settings, names.hop_queue) == 1


def test_a_queue_is_seen_empty_only_once_its_figures_are_there_and_all_zero(fresh: Any) -> None:
    topology = Topology(fresh.settings)
    names = RabbitNames(SPOOL)

    assert not shows_no_messages(topology.management, SPOOL)  # there is no such queue
    topology.declare(SPOOL)
    wait_for(lambda: shows_no_messages(topology.management, SPOOL))
    assert topology.management.alarms() == []
    publish(fresh.settings, names.exchange, b"one")
    wait_for(lambda: not shows_no_messages(topology.management, SPOOL))
    assert topology.management.depth(names.work_queue).total == 1
    assert topology.management.depth("no such queue") is None


def test_a_census_names_every_dead_letter_and_leaves_them_all(fresh: Any) -> None:
    Topology(fresh.settings).declare(SPOOL)
    names = RabbitNames(SPOOL)
    golden = [
        json.loads((GOLDEN / f"{case}.json").read_text())
        for case in ("minimal", "full", "null-sender")
    ]
    bodies = [case["amqp"]["body_text"].encode() for case in golden]
    odd = uuid.uuid4()  # James may deliver what mailslice does not understand
    for body in (*bodies, b'{"enqueueId": "%b", "name": 1}' % str(odd).encode()):
        publish(fresh.settings, names.dead_letter_exchange, body)
    expected = {json.loads(body)["enqueueId"] for body in bodies} | {str(odd)}
    for _ in range(2):
        assert {str(found) for found in dead_letter_ids(fresh.settings, SPOOL)} == expected
    assert count(fresh.settings, names.dead_letter_queue) == 4
    assert dead_letter_ids(fresh.settings, QueueName("unknown")) == set()


def test_a_census_beside_another_consumer_proves_nothing_and_says_so(fresh: Any) -> None:
    Topology(fresh.settings).declare(SPOOL)
    names = RabbitNames(SPOOL)
    with blocking_connection(fresh.settings.rabbitmq) as connection:
        channel = connection.channel()
        channel.basic_consume(names.dead_letter_queue, lambda *_: None)
        with pytest.raises(StoreUnavailable, match="has a consumer"):
            dead_letter_ids(fresh.settings, SPOOL)


def publish(settings: Any, exchange: str, body: bytes, routing_key: str = "") -> None:
    with blocking_connection(settings.rabbitmq) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish(exchange, routing_key, body, mandatory=True)


def count(settings: Any, queue: str) -> int:
    with blocking_connection(settings.rabbitmq) as connection:
        return int(connection.channel().queue_declare(queue, passive=True).method.message_count)


def wait_for(condition: Any, seconds: float = 40) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "never"
        time.sleep(0.3)


def test_a_look_for_what_is_missing_leaves_no_warning_of_pika(fresh: Any, caplog: Any) -> None:
    caplog.set_level("WARNING", "pika")
    assert not Topology(fresh.settings).exists(SPOOL)
    assert [record.name for record in caplog.records if record.name.startswith("pika")] == []
