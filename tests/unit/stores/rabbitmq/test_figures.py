"""Arguments of declarations, and what the management API's figures mean."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from pydantic import SecretStr

from mailslice.model.errors import BadSetting
from mailslice.model.mail import QueueName
from mailslice.model.names import RabbitNames
from mailslice.model.settings import JamesVersion, QueueSettings, RabbitSettings
from mailslice.stores.rabbitmq.management import Depth, Management, depth_of, shows_no_messages
from mailslice.stores.rabbitmq.topology import (
    dead_letter_queue_arguments,
    delay_queue_arguments,
    own_queue_arguments,
    park_queue_arguments,
    work_queue_arguments,
)

GOLDEN = Path(__file__).parents[3] / "golden"


@pytest.mark.parametrize(
    ("case", "quorum"), [("declarations", False), ("declarations-quorum", True)]
)
def test_the_work_queue_is_declared_as_james_declares_it(case: str, quorum: bool) -> None:
    golden = json.loads((GOLDEN / f"{case}.json").read_text())
    names = RabbitNames(QueueName(golden["queue"]))
    (declared,) = [
        queue["arguments"] for queue in golden["queues"] if queue["name"] == names.work_queue
    ]
    assert work_queue_arguments(names, QueueSettings(quorum=quorum)) == declared


def test_the_declarations_of_james_3_9_differ_in_what_is_kept_how() -> None:
    names = RabbitNames(QueueName("q"))
    classic = QueueSettings(james=JamesVersion.V3_9)
    assert work_queue_arguments(names, classic) == {
        "x-dead-letter-exchange": names.dead_letter_exchange,
        "x-queue-version": 2,
    }
    assert dead_letter_queue_arguments(classic) == {"x-queue-version": 2}
    quorum = QueueSettings(james=JamesVersion.V3_9, quorum=True, delivery_limit=7)
    assert dead_letter_queue_arguments(quorum) == {
        "x-queue-type": "quorum",
        "x-quorum-initial-group-size": 1,
        "x-delivery-limit": 7,
    }
    assert dead_letter_queue_arguments(QueueSettings(quorum=True)) == {}


def test_a_delivery_limit_goes_to_quorum_queues_alone() -> None:
    names = RabbitNames(QueueName("q"))
    assert (
        work_queue_arguments(names, QueueSettings(quorum=True, delivery_limit=7))[
            "x-delivery-limit"
        ]
        == 7
    )
    assert "x-delivery-limit" not in work_queue_arguments(names, QueueSettings(delivery_limit=7))


def test_a_quorum_level_dead_letters_at_least_once_and_no_level_expires() -> None:
    names = RabbitNames(QueueName("q"))
    classic = delay_queue_arguments(names, QueueSettings(), 30)
    assert classic == {
        "x-message-ttl": 30_000,
        "x-dead-letter-exchange": "mailslice-hop-exchange-q",
        "x-dead-letter-routing-key": "",
        "x-queue-type": "classic",
    }
    quorum = delay_queue_arguments(names, QueueSettings(quorum=True), 30)
    assert quorum["x-delivery-limit"] == 1_000_000_000
    assert (
        quorum.items()
        >= {
            **classic,
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
            "x-queue-type": "quorum",
        }.items()
    )
    assert own_queue_arguments(QueueSettings()) == {"x-queue-type": "classic"}


@pytest.mark.parametrize("quorum", [False, True])
def test_what_is_parked_goes_back_to_the_mail_exchange_and_never_expires(quorum: bool) -> None:
    names, settings = RabbitNames(QueueName("q")), QueueSettings(quorum=quorum)
    level = delay_queue_arguments(names, settings, 60)
    assert park_queue_arguments(names, settings) == level | {
        "x-dead-letter-exchange": names.exchange
    }
    assert names.park_queue == "mailslice-park-60s-q"


class Api:
    """A pool whose answers are JSON; None is 404."""

    def __init__(self, answer: Callable[[str], object]) -> None:
        self._answer = answer

    def request(self, _method: str, url: str) -> SimpleNamespace:
        value = self._answer(urlsplit(url).path)
        return SimpleNamespace(status=404 if value is None else 200, data=json.dumps(value))


def management_of(answer: Callable[[str], object], **settings: Any) -> Management:
    pool: Any = Api(answer)
    return Management(RabbitSettings(**settings), pool)


def test_queues_whose_names_no_mail_queue_may_have_are_not_listed() -> None:
    names = [RabbitNames(QueueName(name)) for name in ("spool", "a/b", "", "x" * 201)]

    def listed(path: str) -> object:
        is_exchange = "exchanges" in path
        return [{"name": name.exchange if is_exchange else name.work_queue} for name in names]

    assert management_of(listed).mail_queues() == ["spool"]


def test_a_vhost_that_is_not_there_is_a_wrong_setting() -> None:
    management = management_of(lambda _: None, url=SecretStr("amqp://guest:guest@h/mail"))
    with pytest.raises(
        BadSetting, match=r"there is no vhost 'mail', which MAILSLICE_RABBITMQ_URL names"
    ):
        management.mail_queues()


FULL = {"type": "classic", "messages_ready": 1, "messages_unacknowledged": 2, "consumers": 3}


@pytest.mark.parametrize(
    ("found", "depth"),
    [
        (FULL, Depth(1, 2, 0, 3)),
        ({**FULL, "type": "quorum", "messages_dlx": 4}, Depth(1, 2, 4, 3)),
        ({**FULL, "type": "quorum"}, None),
        ({name: value for name, value in FULL.items() if name != "messages_ready"}, None),
        ({name: value for name, value in FULL.items() if name != "messages_unacknowledged"}, None),
        ({"type": "classic"}, None),
    ],
)
def test_an_absent_figure_is_unknown_never_zero(found: dict[str, Any], depth: Depth | None) -> None:
    assert depth_of(found) == depth


def figures_of(depths: dict[str, Depth | None], alarms: tuple[str, ...] = ()) -> Management:
    """A broker with these queues; None has no figures yet."""

    def answer(path: str) -> object:
        place, _, name = path.removeprefix("/api/").partition("/%2F")
        if place == "nodes":
            return [{"name": "rabbit@a", "mem_alarm": "memory alarm on rabbit@a" in alarms}]
        if place == "queues":
            return queue(name.removeprefix("/")) if name else [{"name": each} for each in depths]
        return []

    def queue(name: str) -> object:
        if name not in depths or (depth := depths[name]) is None:
            return {} if name in depths else None
        figures = {"type": "quorum", "messages_dlx": depth.dlx, "consumers": depth.consumers}
        ready = {"messages_ready": depth.ready}
        return figures | ready | {"messages_unacknowledged": depth.unacknowledged}

    return management_of(answer)


NAMES = RabbitNames(QueueName("q"))
NOTHING = Depth(0, 0, 0, 1)


@pytest.mark.parametrize(
    ("depths", "alarms", "empty"),
    [
        ({NAMES.work_queue: NOTHING}, (), True),
        (
            {NAMES.work_queue: NOTHING, NAMES.hop_queue: NOTHING, NAMES.delay_queue(5): NOTHING},
            (),
            True,
        ),
        ({NAMES.work_queue: Depth(1, 0, 0, 0)}, (), False),
        ({NAMES.work_queue: Depth(0, 1, 0, 0)}, (), False),
        ({NAMES.work_queue: Depth(0, 0, 1, 0)}, (), False),
        ({NAMES.work_queue: NOTHING, NAMES.hop_queue: Depth(1, 0, 0, 0)}, (), False),
        ({NAMES.work_queue: NOTHING, NAMES.delay_queue(5): Depth(1, 0, 0, 0)}, (), False),
        ({NAMES.work_queue: NOTHING, NAMES.delay_queue(5): None}, (), False),
        ({NAMES.work_queue: NOTHING, NAMES.park_queue: Depth(1, 0, 0, 0)}, (), False),
        ({NAMES.work_queue: NOTHING, NAMES.park_queue: None}, (), False),
        ({NAMES.work_queue: None}, (), False),
        ({}, (), False),
        ({NAMES.work_queue: NOTHING}, ("memory alarm on rabbit@a",), False),
    ],
)
def test_only_what_is_known_to_hold_nothing_is_seen_empty(
    depths: dict[str, Depth | None], alarms: tuple[str, ...], empty: bool
) -> None:
    assert shows_no_messages(figures_of(depths, alarms), QueueName("q")) is empty


@pytest.mark.parametrize(
    ("queue", "count"), [(None, 0), ({}, None), (FULL, 3), ({**FULL, "type": "quorum"}, None)]
)
def test_the_messages_of_a_queue_are_one_request_whether_it_is_there_or_not(
    queue: object, count: int | None
) -> None:
    paths: list[str] = []

    def answer(path: str) -> object:
        paths.append(path)
        return queue

    assert management_of(answer).messages("mailslice-park") == count
    assert paths == ["/api/queues/%2F/mailslice-park"]


@pytest.mark.parametrize(
    ("found", "version", "limit"),
    [
        ({"type": "classic", "arguments": {"x-delivery-limit": 3}}, "4.1.0", None),
        ({"type": "quorum", "arguments": {}}, "3.13.7", None),
        ({"type": "quorum", "arguments": {}}, "4.0.1", 20),
        ({"arguments": {"x-queue-type": "quorum"}}, "4.0.1", 20),
        ({"type": "quorum", "arguments": {"x-delivery-limit": 7}}, "4.0.1", 7),
        (
            {
                "type": "quorum",
                "arguments": {},
                "effective_policy_definition": {"delivery-limit": 5},
            },
            "3.13.7",
            5,
        ),
        (
            {
                "type": "quorum",
                "arguments": {"x-delivery-limit": 7},
                "effective_policy_definition": {"delivery-limit": 5},
            },
            "4.0.1",
            5,
        ),
        (
            {
                "type": "quorum",
                "arguments": {},
                "effective_policy_definition": {"delivery-limit": -1},
            },
            "4.0.1",
            None,
        ),
        (
            {
                "type": "quorum",
                "arguments": {"x-delivery-limit": 7},
                "effective_policy_definition": {"delivery-limit": -1},
            },
            "4.0.1",
            7,
        ),
        ({"type": "quorum", "arguments": {}, "effective_policy_definition": []}, "4.0.1", 20),
        ({"type": "quorum", "arguments": {"x-delivery-limit": -1}}, "4.0.1", None),
        ({"type": "quorum", "arguments": {"x-delivery-limit": -1}}, "3.10.8", 0),
        ({"type": "quorum", "arguments": {"x-delivery-limit": 1_000_000_000}}, "3.10.8", None),
        (
            {
                "type": "quorum",
                "arguments": {"x-delivery-limit": 1_000_000_000},
                "effective_policy_definition": {"delivery-limit": 5},
            },
            "4.0.1",
            5,
        ),
    ],
)
def test_how_often_a_message_may_come_back(
    found: dict[str, Any], version: str, limit: int | None
) -> None:
    asked = list[str]()

    def answer(path: str) -> Any:
        asked.append(path)
        return {"rabbitmq_version": version} if path == "/api/overview" else found

    management = management_of(answer)
    assert management.delivery_limit("q") == limit
    assert ("/api/overview" in asked) is not management.keeps_order("q")
    assert management.keeps_order("q") is (found.get("type") == "classic")


def test_the_limit_of_a_queue_that_the_api_does_not_know_is_not_taken_for_none() -> None:
    management = management_of(lambda _: None)
    with pytest.raises(
        BadSetting, match="not know queue q: check the path of MAILSLICE_RABBITMQ_MANAGEMENT_URL"
    ):
        management.delivery_limit("q")
    assert management.keeps_order("q")
