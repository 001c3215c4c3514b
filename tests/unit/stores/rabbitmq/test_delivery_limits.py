"""What a delivery limit does with a mail, and the command that lifts it."""

from __future__ import annotations

import json
import shlex
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from pydantic import SecretStr

from mailslice.model.mail import QueueName
from mailslice.model.names import RabbitNames
from mailslice.model.settings import RabbitSettings
from mailslice.stores.rabbitmq.delivery_limits import AtLimit, QueueLimit, queue_limits
from mailslice.stores.rabbitmq.management import Management

NAMES = RabbitNames(QueueName("spool"))
DLX = {"x-dead-letter-exchange": NAMES.dead_letter_exchange}
BOUND = {
    "source": NAMES.dead_letter_exchange,
    "destination": NAMES.dead_letter_queue,
    "routing_key": "",
}
DIRECT = {"name": NAMES.dead_letter_exchange, "type": "direct"}


def quorum(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": "quorum", "arguments": {}, **more}


class Api:
    """A vhost "mail" of a broker, as its management API tells it."""

    def __init__(self, version: str, **lists: list[dict[str, Any]] | None) -> None:
        """A list that is None is refused."""
        self._version = version
        self._lists = lists

    def request(self, _method: str, url: str) -> SimpleNamespace:
        kind = urlsplit(url).path.split("/")[2]
        overview = {"rabbitmq_version": self._version}
        answer = overview if kind == "overview" else self._lists.get(kind, [])
        status = 401 if answer is None else 200
        return SimpleNamespace(status=status, data=json.dumps(answer))


def limits(
    *queues: dict[str, Any], version: str = "4.0.5", **lists: list[dict[str, Any]] | None
) -> list[QueueLimit]:
    pool: Any = Api(version, queues=list(queues), **lists)
    settings = RabbitSettings(url=SecretStr("amqp://guest:guest@h/mail"))
    return queue_limits(Management(settings, pool))


def test_the_default_limit_of_rabbitmq_4_drops_where_nothing_takes_dead_letters() -> None:
    work = quorum(NAMES.work_queue, arguments=DLX)
    hop = quorum(NAMES.hop_queue)
    dead = quorum(NAMES.dead_letter_queue)
    found = limits(hop, dead, work, exchanges=[DIRECT], bindings=[BOUND])
    assert [(each.queue, each.limit, each.at_limit) for each in found] == [
        (NAMES.dead_letter_queue, 20, AtLimit.DROPPED),
        (NAMES.work_queue, 20, AtLimit.DEAD_LETTERED),
        (NAMES.hop_queue, 20, AtLimit.DROPPED),
    ]
    assert {each.source for each in found} == {"the default of RabbitMQ 4.0.5"}


@pytest.mark.parametrize(
    ("lists", "at_limit"),
    [
        ({}, AtLimit.DROPPED),
        ({"exchanges": [DIRECT]}, AtLimit.DROPPED),
        ({"exchanges": [DIRECT], "bindings": [{**BOUND, "routing_key": "x"}]}, AtLimit.DROPPED),
        (
            {
                "exchanges": [{**DIRECT, "type": "fanout"}],
                "bindings": [{**BOUND, "routing_key": "x"}],
            },
            AtLimit.DEAD_LETTERED,
        ),
        ({"exchanges": [DIRECT], "bindings": [BOUND]}, AtLimit.DEAD_LETTERED),
    ],
)
def test_a_dead_letter_exchange_counts_when_it_leads_to_a_queue(
    lists: dict[str, Any], at_limit: AtLimit
) -> None:
    (found,) = limits(quorum(NAMES.work_queue, arguments=DLX), **lists)
    assert found.at_limit is at_limit


def test_the_default_exchange_leads_to_the_queue_of_its_key() -> None:
    to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": NAMES.dead_letter_queue}
    work = quorum(NAMES.work_queue, arguments=to_dead)
    dead = {"name": NAMES.dead_letter_queue, "type": "classic"}
    assert limits(dead, work)[1].at_limit is AtLimit.DEAD_LETTERED
    assert limits(work)[0].at_limit is AtLimit.DROPPED


@pytest.mark.parametrize(
    ("queue", "version"),
    [
        ({"name": NAMES.hop_queue, "type": "classic", "arguments": {"x-delivery-limit": 3}}, "4.0"),
        (quorum(NAMES.hop_queue), "3.13.7"),
        (quorum(NAMES.hop_queue, arguments={"x-delivery-limit": -1}), "4.0.5"),
        (quorum(NAMES.hop_queue, arguments={"x-delivery-limit": 10**9}), "4.0.5"),
        (quorum(NAMES.hop_queue, effective_policy_definition={"delivery-limit": -1}), "4.0.5"),
    ],
)
def test_without_a_limit_a_mail_returns_for_ever(queue: dict[str, Any], version: str) -> None:
    (found,) = limits(queue, version=version)
    assert (found.limit, found.at_limit, found.remedy) == (None, AtLimit.RETURNED, None)


def test_queues_of_others_are_not_looked_at() -> None:
    assert limits(quorum("orders"), quorum("mailboxEvent-workQueue")) == []


def command(found: QueueLimit) -> tuple[list[str], dict[str, Any]]:
    assert found.remedy is not None
    words = shlex.split(found.remedy)
    return words[:-1], json.loads(words[-1])


def test_one_policy_lifts_the_limit_of_all_own_queues() -> None:
    for found in limits(quorum(NAMES.hop_queue), quorum(NAMES.park_queue)):
        assert command(found) == (
            "rabbitmqctl set_policy -p mail --apply-to quorum_queues --priority 0 "
            "mailslice-returns ^mailslice-".split(),
            {"delivery-limit": 10**9},
        )


def test_the_command_for_a_queue_of_james_names_it_alone_whatever_its_name() -> None:
    names = RabbitNames(QueueName("a.b+c d"))
    words, definition = command(limits(quorum(names.dead_letter_queue))[0])
    assert words[-2:] == [
        f"mailslice-returns-{names.dead_letter_queue}",
        r"^JamesMailQueue-dead-letter-queue-a\.b\+c d$",
    ]
    assert definition == {"delivery-limit": 10**9}


def test_a_queue_that_has_a_policy_keeps_the_rest_of_it() -> None:
    theirs = {"max-length": 5, "delivery-limit": 7}
    queue = quorum(NAMES.hop_queue, policy="ops", effective_policy_definition=theirs)
    (found,) = limits(queue, policies=[{"name": "ops", "priority": 3}])
    assert (found.limit, found.source) == (7, "policy ops")
    words, definition = command(found)
    assert words[words.index("--priority") + 1] == "4"
    assert words[-1] == f"^{NAMES.hop_queue}$"
    assert definition == {"max-length": 5, "delivery-limit": 10**9}


def test_a_user_who_may_not_read_policies_is_told_the_limits_all_the_same() -> None:
    queue = quorum(NAMES.hop_queue, policy="ops", effective_policy_definition={"delivery-limit": 7})
    (found,) = limits(queue, policies=None)
    assert found.limit == 7
    words, _ = command(found)
    assert words[words.index("--priority") + 1] == "1000"


@pytest.mark.parametrize("version", ["3.10.8", "4.0.5"])
@pytest.mark.parametrize("argument", [10**9, 10])
def test_a_policy_over_a_queue_of_ours_is_overruled_by_another(version: str, argument: int) -> None:
    queue = quorum(
        NAMES.hop_queue,
        arguments={"x-delivery-limit": argument},
        policy="ops",
        effective_policy_definition={"delivery-limit": 7},
    )
    (found,) = limits(queue, version=version)
    assert (found.limit, found.source) == (7, "policy ops")
    assert command(found)[1] == {"delivery-limit": 10**9}


def test_before_rabbitmq_4_minus_one_drops_at_the_first_return() -> None:
    queue = quorum(NAMES.hop_queue, arguments={"x-delivery-limit": -1})
    (found,) = limits(queue, version="3.10.8")
    assert (found.limit, found.source) == (0, "its argument x-delivery-limit")
    assert found.at_limit is AtLimit.DROPPED


def test_what_an_argument_limits_no_policy_can_lift() -> None:
    limited = {"arguments": {"x-delivery-limit": 3}}
    chosen = quorum(NAMES.work_queue, arguments={**DLX, "x-delivery-limit": 3})
    assert limits(quorum(NAMES.hop_queue, **limited))[0].remedy == (
        "delete it when it is empty; workers declare it anew without a limit"
    )
    assert limits(chosen)[0].remedy == "mailslice queue create spool"
    (found,) = limits(chosen, exchanges=[DIRECT], bindings=[BOUND])
    assert (found.at_limit, found.remedy) == (AtLimit.DEAD_LETTERED, None)
    assert found.source == "its argument x-delivery-limit"


def test_the_sentence_names_queue_limit_fate_and_remedy() -> None:
    (found,) = limits(quorum(NAMES.hop_queue))
    assert found.sentence.startswith(
        "queue mailslice-hop-queue-spool has delivery limit 20 (the default of RabbitMQ 4.0.5): "
        "a mail that returns more often is dropped. Remedy: rabbitmqctl set_policy -p mail "
    )
