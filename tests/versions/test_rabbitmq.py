"""RabbitMQ 4, from a newer Debian: what it does with delivery limits, and our tests against it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from mailslice.model.mail import QueueName
from mailslice.model.names import RabbitNames
from mailslice.model.settings import Settings, load_settings
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.stores.rabbitmq.delivery_limits import AtLimit, QueueLimit
from mailslice.stores.rabbitmq.management import NO_LIMIT
from mailslice.stores.rabbitmq.topology import Topology
from tests.own_broker import Broker, own_broker
from tests.versions.tiers import run_tests

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1700)]
RELEASE = "trixie"
NAMES = RabbitNames(QueueName("spool"))
QUORUM = {"x-queue-type": "quorum"}
TESTS = (
    "tests/services/rabbitmq",
    "tests/services/worker/test_round_trip.py",
    "tests/services/worker/test_broker_faults.py",
)
_CHECKOUT, _TOPOLOGY = (f"{TESTS[0]}/test_{name}.py" for name in ("checkout", "topology"))
_QUORUM = (
    "test_a_quorum_queue_with_a_delivery_limit_is_refused_and_one_without_goes_to_the_back_whole"
)
OF_3 = (
    f"{_CHECKOUT}::{_QUORUM}",
    f"{_CHECKOUT}::test_a_look_takes_a_window_at_a_time_whatever_is_acknowledged_meanwhile",
    f"{_TOPOLOGY}::test_an_existing_queue_with_other_arguments_is_left_alone_and_named_by_check",
)
"""They declare a quorum queue without a limit, or compare with the arguments that 3.10 shows."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with own_broker(tmp_path_factory.mktemp("rabbitmq"), RELEASE) as broker:
        yield broker


@pytest.fixture
def settings(broker: Broker) -> Iterator[Settings]:
    """Of a vhost of the test's own."""
    url = broker.settings.url.get_secret_value().replace("%2F", "mail")
    broker.control("add_vhost", "mail")
    broker.control("set_permissions", "-p", "mail", "guest", ".*", ".*", ".*")
    env = {
        "MAILSLICE_RABBITMQ_URL": url,
        "MAILSLICE_RABBITMQ_MANAGEMENT_URL": broker.management_url,
        "MAILSLICE_QUEUE_QUORUM": "true",
    }
    yield load_settings(env, state_file=Path("/nonexistent"))
    broker.control("delete_vhost", "mail")


def declare(settings: Settings, name: str, arguments: Mapping[str, Any]) -> None:
    with blocking_connection(settings.rabbitmq) as connection:
        connection.channel().queue_declare(name, durable=True, arguments=dict(arguments))


def returned(settings: Settings, name: str, times: int) -> int:
    """Publishes one message, takes it and gives it back; how often it came."""
    with blocking_connection(settings.rabbitmq) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", name, b"m")
        for count in range(times):
            deadline = time.monotonic() + 5
            while (got := channel.basic_get(name))[0] is None:
                if time.monotonic() > deadline:
                    return count
                time.sleep(0.02)
            channel.basic_nack(got[0].delivery_tag, requeue=True)
    return times


def at_limit(settings: Settings) -> dict[str, AtLimit]:
    return {each.queue: each.at_limit for each in Topology(settings).delivery_limits()}


def told(settings: Settings, condition: Callable[[list[QueueLimit]], object]) -> list[QueueLimit]:
    """The limits, once they are so: the management API is seconds late."""
    deadline = time.monotonic() + 30
    while not condition(limits := Topology(settings).delivery_limits()):
        assert time.monotonic() < deadline, limits
        time.sleep(0.5)
    return limits


def all_return(limits: list[QueueLimit]) -> bool:
    return {limit.at_limit for limit in limits} == {AtLimit.RETURNED}


def test_it_is_rabbitmq_4(settings: Settings) -> None:
    assert Topology(settings).management.version.startswith("4.0.")


def test_what_we_declare_returns_for_ever(settings: Settings) -> None:
    topology = Topology(settings)
    topology.declare(NAMES.queue)
    topology.declare_delays(NAMES.queue, [5])
    assert topology.management.arguments(NAMES.hop_queue) == {
        "x-queue-type": "quorum",
        "x-quorum-initial-group-size": 1,
        "x-delivery-limit": NO_LIMIT,
    }
    assert returned(settings, NAMES.hop_queue, 25) == 25
    assert topology.unsafe_queues() == []


def test_queues_of_an_older_release_drop_mails_until_the_commands_of_config_check_ran(
    settings: Settings, broker: Broker
) -> None:
    """As RabbitMQ 3 leaves them: without a limit, which RabbitMQ 4 reads as 20."""
    topology = Topology(settings)
    topology.declare(NAMES.queue)
    for name in (NAMES.hop_queue, f"{NAMES.dead_letter_queue}-b"):
        declare(settings, name, QUORUM)
        assert returned(settings, name, 25) == 21
    assert at_limit(settings) == {
        NAMES.dead_letter_queue: AtLimit.RETURNED,
        f"{NAMES.dead_letter_queue}-b": AtLimit.DROPPED,
        NAMES.work_queue: AtLimit.DEAD_LETTERED,
        NAMES.hop_queue: AtLimit.DROPPED,
    }
    assert len(topology.unsafe_queues()) == 2
    for each in topology.delivery_limits():
        if each.remedy is not None:
            program, *words = shlex.split(each.remedy)
            assert program == "rabbitmqctl"
            broker.control(*words)
    told(settings, all_return)
    assert topology.unsafe_queues() == []
    for name in (NAMES.work_queue, NAMES.hop_queue, f"{NAMES.dead_letter_queue}-b"):
        assert returned(settings, name, 25) == 25


def test_a_policy_of_theirs_is_repeated_with_the_limit_lifted(
    settings: Settings, broker: Broker
) -> None:
    declare(settings, NAMES.hop_queue, QUORUM)
    theirs = '{"delivery-limit":3,"max-length":1000}'
    broker.control("set_policy", "-p", "mail", "--priority", "7", "theirs", ".*", theirs)
    (limit,) = told(settings, lambda limits: limits[0].limit == 3)
    assert (limit.source, limit.at_limit) == ("policy theirs", AtLimit.DROPPED)
    assert limit.remedy is not None
    broker.control(*shlex.split(limit.remedy)[1:])
    told(settings, all_return)
    assert returned(settings, NAMES.hop_queue, 25) == 25
    queue = Topology(settings).management.queues(["effective_policy_definition"])[0]
    assert queue["effective_policy_definition"] == {
        "delivery-limit": NO_LIMIT,
        "max-length": 1000,
    }


def test_the_default_type_of_a_vhost_leaves_our_queues_as_they_are_asked_for(
    settings: Settings, broker: Broker
) -> None:
    broker.control("update_vhost_metadata", "mail", "--default-queue-type", "quorum")
    topology = Topology(
        settings.model_copy(update={"queue": settings.queue.model_copy(update={"quorum": False})})
    )
    topology.declare(NAMES.queue)
    topology.declare_delays(NAMES.queue, [5])
    kinds = {each.queue: each.kind for each in topology.delivery_limits()}
    assert kinds == {
        NAMES.work_queue: "quorum",
        NAMES.dead_letter_queue: "quorum",
        NAMES.hop_queue: "classic",
        NAMES.park_queue: "classic",
        NAMES.delay_queue(5): "classic",
    }
    assert at_limit(settings)[NAMES.dead_letter_queue] is AtLimit.DROPPED
    topology.declare(NAMES.queue)  # what is there is left alone


@pytest.mark.parametrize("kind", ["classic"])
def test_the_tests_of_broker_and_worker_pass(
    broker: Broker, stack: Mapping[str, str], tmp_path: Path, kind: str
) -> None:
    services = {
        **stack,
        "MAILSLICE_RABBITMQ_URL": broker.settings.url.get_secret_value(),
        "MAILSLICE_RABBITMQ_MANAGEMENT_URL": broker.management_url,
    }
    deselected = [word for test in OF_3 for word in ("--deselect", test)]
    tests = [*TESTS, *deselected]
    default = {"MAILSLICE_TEST_DEFAULT_QUEUE_TYPE": "quorum"} if kind == "quorum" else {}
    assert run_tests(services, tmp_path, *tests, **default) > 50


def test_killed_workers_lose_no_mail(
    broker: Broker, stack: Mapping[str, str], tmp_path: Path
) -> None:
    services = {
        **stack,
        "MAILSLICE_RABBITMQ_URL": broker.settings.url.get_secret_value(),
        "MAILSLICE_RABBITMQ_MANAGEMENT_URL": broker.management_url,
    }
    tests = ["-m", "soak", "tests/versions/test_killed_workers.py"]
    assert run_tests(services, tmp_path, *tests) == 4
