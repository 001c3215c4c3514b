"""How often a message may return to its queue, and what RabbitMQ does with it after that.

A quorum queue counts returns: a nack with requeue, and a connection that is closed while it holds
the message. RabbitMQ 4 limits returns to 20 by default. Past the limit a message is dead-lettered,
or dropped if dead-lettering leads to no queue. Classic queues count nothing.
"""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mailslice.model.command_line import command_line
from mailslice.model.errors import BadSetting
from mailslice.model.names import JAMES_PREFIX, OWN_PREFIX, WORK_QUEUE_PREFIX
from mailslice.stores.rabbitmq.management import NO_LIMIT, Management, delivery_limit_of, kind_of

_COLUMNS = ("name", "type", "arguments", "policy", "effective_policy_definition")
_OWN_POLICY = "mailslice-returns"
_ARGUMENT = "its argument x-delivery-limit"
_UNKNOWN_PRIORITY = 999


class AtLimit(StrEnum):
    """What RabbitMQ does with a message that returns once more than the limit allows."""

    RETURNED = "returned"
    """There is no limit."""
    DEAD_LETTERED = "dead-lettered"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class QueueLimit:
    """The delivery limit of one RabbitMQ queue."""

    queue: str
    kind: str
    """`classic` or `quorum`."""
    limit: int | None
    """Returns that are allowed; None: any number."""
    source: str | None
    """What sets the limit: an argument, a policy, or RabbitMQ's default."""
    at_limit: AtLimit
    remedy: str | None
    """How to keep such a mail: one command, or a sentence. None: nothing to do."""

    @property
    def sentence(self) -> str:
        """The limit for people, with its remedy."""
        if self.limit is None:
            return f"queue {self.queue} has no delivery limit"
        return (
            f"queue {self.queue} has delivery limit {self.limit} ({self.source}): a mail that "
            f"returns more often is {self.at_limit}. Remedy: {self.remedy or 'none is needed'}"
        )


def queue_limits(management: Management) -> list[QueueLimit]:
    """The limits of all queues of James and mailslice, by name. Raises StoreUnavailable."""
    return _Vhost(management).limits()


class _Vhost:
    """Queues, bindings and exchanges of one vhost, read once from the management API."""

    def __init__(self, management: Management) -> None:
        self._vhost = management.vhost
        self._version = management.version
        self._queues = {str(queue["name"]): queue for queue in management.queues(_COLUMNS)}
        self._bindings = management.bindings()
        self._types = management.exchange_types()
        self._management = management

    def limits(self) -> list[QueueLimit]:
        names = sorted(name for name in self._queues if name.startswith((JAMES_PREFIX, OWN_PREFIX)))
        return [self._limit(name, self._queues[name]) for name in names]

    def _limit(self, name: str, queue: Mapping[str, Any]) -> QueueLimit:
        limit = delivery_limit_of(queue, self._version)
        if limit is None:
            return QueueLimit(name, kind_of(queue), None, None, AtLimit.RETURNED, None)
        at_limit = AtLimit.DEAD_LETTERED if self._has_dead_letters(queue) else AtLimit.DROPPED
        source = self._source(queue, limit)
        remedy = self._remedy(name, queue, at_limit, source)
        return QueueLimit(name, kind_of(queue), limit, source, at_limit, remedy)

    def _source(self, queue: Mapping[str, Any], limit: int) -> str:
        argument = _arguments(queue).get("x-delivery-limit")
        policy = _policy(queue).get("delivery-limit")
        if argument is None and policy is None:
            return f"the default of RabbitMQ {self._version}"
        if policy is None or (argument is not None and max(argument, 0) == limit):
            return _ARGUMENT
        return f"policy {queue.get('policy') or 'of the operator'}"

    def _has_dead_letters(self, queue: Mapping[str, Any]) -> bool:
        """Whether a dead letter with James' routing key is routed to a queue."""
        exchange = _argument_or_policy(queue, "dead-letter-exchange")
        key = _argument_or_policy(queue, "dead-letter-routing-key") or ""
        if exchange is None:
            return False
        if exchange == "":
            return key in self._queues
        bindings = [row for row in self._bindings if row.get("source") == exchange]
        if self._types.get(exchange) == "direct":
            return any(row.get("routing_key") == key for row in bindings)
        return bool(bindings)

    def _priority(self, policy: str) -> int:
        """The priority of a policy. Only a user with the tag policymaker may read it."""
        try:
            return self._management.policy_priorities().get(policy, 0)
        except BadSetting:
            return _UNKNOWN_PRIORITY

    def _remedy(
        self, name: str, queue: Mapping[str, Any], at_limit: AtLimit, source: str
    ) -> str | None:
        if source == _ARGUMENT:  # a policy cannot lift it
            return _other_arguments(name, queue) if at_limit is AtLimit.DROPPED else None
        policy = queue.get("policy")
        definition = {**_policy(queue), "delivery-limit": NO_LIMIT}
        if policy:
            # Only the policy of the highest priority applies: ours repeats the other's definition.
            pattern, priority = _exact_pattern(name), self._priority(str(policy)) + 1
            new = f"{_OWN_POLICY}-{name}"
        elif name.startswith(OWN_PREFIX):
            pattern, priority, new = f"^{OWN_PREFIX}", 0, _OWN_POLICY
        else:
            pattern, priority, new = _exact_pattern(name), 0, f"{_OWN_POLICY}-{name}"
        words = ["rabbitmqctl", "set_policy", "-p", self._vhost]
        words += ["--apply-to", "quorum_queues", "--priority", str(priority), new, pattern]
        return shlex.join([*words, json.dumps(definition)])


def _other_arguments(name: str, queue: Mapping[str, Any]) -> str:
    if name.startswith(OWN_PREFIX):
        return "delete it when it is empty; workers declare it anew without a limit"
    if name.startswith(WORK_QUEUE_PREFIX) and _argument_or_policy(queue, "dead-letter-exchange"):
        return command_line("queue create", name.removeprefix(WORK_QUEUE_PREFIX))
    return "declare it anew without x-delivery-limit, when it is empty"


def _arguments(queue: Mapping[str, Any]) -> Mapping[str, Any]:
    return queue.get("arguments") or {}


def _policy(queue: Mapping[str, Any]) -> Mapping[str, Any]:
    return queue.get("effective_policy_definition") or {}


def _argument_or_policy(queue: Mapping[str, Any], name: str) -> str | None:
    """RabbitMQ prefers the argument."""
    value = _arguments(queue).get(f"x-{name}", _policy(queue).get(name))
    return None if value is None else str(value)


def _exact_pattern(name: str) -> str:
    return "^" + re.sub(r"([.^$*+?()\[\]{}|\\])", r"\\\1", name) + "$"
