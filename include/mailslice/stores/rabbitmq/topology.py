"""Declares James' exchanges, queues and bindings of a mail queue, and mailslice's own for delays,
where they are missing.

RabbitMQ refuses (406) a declaration with other arguments than the existing queue's. So everything
is declared passively first, which compares none: `check` reads them from the management API.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker

from mailslice.model.errors import TopologyDiffers
from mailslice.model.mail import QueueName
from mailslice.model.names import OWN_PREFIX, PARK_SECONDS, ROUTING_KEY, RabbitNames
from mailslice.model.settings import JamesVersion, QueueSettings, Settings
from mailslice.stores.rabbitmq.connection import blocking_connection, is_missing
from mailslice.stores.rabbitmq.delivery_limits import AtLimit, QueueLimit, queue_limits
from mailslice.stores.rabbitmq.management import NO_LIMIT, Management, kind_of

Arguments = Mapping[str, Any]
_DIFFERS = 406
_QUEUE_VERSION = "x-queue-version"

AT_LEAST_ONCE = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
"""For quorum queues that dead-letter. RabbitMQ ignores the first argument without the second."""


def work_queue_arguments(names: RabbitNames, settings: QueueSettings) -> dict[str, Any]:
    """The arguments with which James would declare the work queue."""
    return {"x-dead-letter-exchange": names.dead_letter_exchange, **_type_arguments(settings)}


def dead_letter_queue_arguments(settings: QueueSettings) -> dict[str, Any]:
    """The arguments with which James would declare the dead letter queue: none before 3.9."""
    return _type_arguments(settings) if settings.james is JamesVersion.V3_9 else {}


def _type_arguments(settings: QueueSettings) -> dict[str, Any]:
    if settings.quorum:
        limit = settings.delivery_limit
        return {
            "x-queue-type": "quorum",
            "x-quorum-initial-group-size": settings.quorum_group_size,
            **({} if limit is None else {"x-delivery-limit": limit}),
        }
    return {_QUEUE_VERSION: 2} if settings.james is JamesVersion.V3_9 else {}


def delay_queue_arguments(
    names: RabbitNames, settings: QueueSettings, seconds: int
) -> dict[str, Any]:
    """The arguments of one delay level.

    Never `x-expires`, which deletes a queue with its messages. A quorum level needs at-least-once
    dead-lettering: with the default strategy a kill of the broker could lose all its messages.
    """
    return {
        "x-message-ttl": seconds * 1000,
        "x-dead-letter-exchange": names.hop_exchange,
        "x-dead-letter-routing-key": ROUTING_KEY,
        **own_queue_arguments(settings),
        **(AT_LEAST_ONCE if settings.quorum else {}),
    }


def park_queue_arguments(names: RabbitNames, settings: QueueSettings) -> dict[str, Any]:
    """As of a delay level, but dead-letters to the mail exchange: a parked mail is due already."""
    to_mails = {"x-dead-letter-exchange": names.exchange}
    return delay_queue_arguments(names, settings, PARK_SECONDS) | to_mails


def own_queue_arguments(settings: QueueSettings) -> dict[str, Any]:
    """The arguments of a queue of our own. The type is always given: with the vhost's default,
    quorum, it would dead-letter at most once. The delivery limit is out of reach: RabbitMQ 4 would
    drop a message of the hop queue over which workers were killed 21 times (ADR 81).
    """
    if not settings.quorum:
        return {"x-queue-type": "classic"}
    return {
        "x-queue-type": "quorum",
        "x-quorum-initial-group-size": settings.quorum_group_size,
        "x-delivery-limit": NO_LIMIT,
    }


class Topology:
    """Declares and looks up mail queues. Each call opens a short connection of its own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.management = Management(settings.rabbitmq)

    def declare(self, queue: QueueName) -> None:
        """Declares James' two exchanges and two queues with bindings. Existing ones stay as is."""
        names = RabbitNames(queue)
        arguments = work_queue_arguments(names, self._settings.queue)
        with blocking_connection(self._settings.rabbitmq) as connection:
            declarer = Declarer(connection)
            declarer.exchange(names.exchange)
            declarer.queue(names.work_queue, arguments, names.exchange)
            self._declare_dead_letter(declarer, names)

    def declare_dead_letter(self, queue: QueueName) -> None:
        """Declares the dead letter exchange and queue alone: James 3.5 declares none."""
        with blocking_connection(self._settings.rabbitmq) as connection:
            self._declare_dead_letter(Declarer(connection), RabbitNames(queue))

    def _declare_dead_letter(self, declarer: "Declarer", names: RabbitNames) -> None:
        declarer.exchange(names.dead_letter_exchange)
        arguments = dead_letter_queue_arguments(self._settings.queue)
        declarer.queue(names.dead_letter_queue, arguments, names.dead_letter_exchange)

    def declare_delays(self, queue: QueueName, levels: Iterable[int]) -> None:
        """Declares mailslice's own: hop exchange and queue, these delay levels, the park queue."""
        names, settings = RabbitNames(queue), self._settings.queue
        with blocking_connection(self._settings.rabbitmq) as connection:
            declarer = Declarer(connection)
            declarer.exchange(names.hop_exchange)
            declarer.queue(names.hop_queue, own_queue_arguments(settings), names.hop_exchange)
            for seconds in levels:
                arguments = delay_queue_arguments(names, settings, seconds)
                declarer.queue(names.delay_queue(seconds), arguments, None)
            declarer.queue(names.park_queue, park_queue_arguments(names, settings), None)

    def exists(self, queue: QueueName) -> bool:
        """Whether RabbitMQ has both the exchange and the work queue of this name."""
        names = RabbitNames(queue)
        with blocking_connection(self._settings.rabbitmq) as connection:
            declarer = Declarer(connection)
            return declarer.has_exchange(names.exchange) and declarer.has_queue(names.work_queue)

    def names(self) -> list[QueueName]:
        return self.management.mail_queues()

    def check(self, queue: QueueName) -> None:
        """Raises TopologyDiffers if the work queue's arguments are not those of the settings."""
        names = RabbitNames(queue)
        stored = self.management.arguments(names.work_queue)
        expected = work_queue_arguments(names, self._settings.queue)
        if stored is not None and "x-queue-type" not in expected:
            expected["x-queue-type"] = self.management.default_queue_type()
        if stored is not None and _comparable(stored) != _comparable(expected):
            raise TopologyDiffers(
                f"queue {names.work_queue} exists with arguments {_shown(stored)}; the settings "
                f"ask for {_shown(expected)} "
                "(MAILSLICE_QUEUE_QUORUM, _QUORUM_GROUP_SIZE, _DELIVERY_LIMIT). RabbitMQ cannot "
                "change a queue in place"
            )

    def delivery_limits(self) -> list[QueueLimit]:
        """How often each queue's messages may return, and what then. Raises StoreUnavailable."""
        return queue_limits(self.management)

    def unsafe_queues(self) -> list[str]:
        """A sentence for each queue in which RabbitMQ may lose a mail. Raises StoreUnavailable."""
        limits = (limit for limit in self.delivery_limits() if limit.at_limit is AtLimit.DROPPED)
        return self._unsafe_own_queues() + [limit.sentence for limit in limits]

    def _unsafe_own_queues(self) -> list[str]:
        kind = own_queue_arguments(self._settings.queue)["x-queue-type"]
        columns = ("name", "type", "arguments", "effective_policy_definition")
        queues = self.management.queues(columns)
        return [
            f"queue {queue['name']} {why}: workers declare it anew once it is empty and deleted"
            for queue in sorted(queues, key=lambda queue: str(queue["name"]))
            if str(queue["name"]).startswith(OWN_PREFIX)
            if (why := _unsafe(queue, kind)) is not None
        ]


def _unsafe(queue: Mapping[str, Any], expected: str) -> str | None:
    """What is wrong: its type, or a level that is not `AT_LEAST_ONCE`. A policy counts, too."""
    arguments: Arguments = queue.get("arguments") or {}
    policy: Arguments = queue.get("effective_policy_definition") or {}
    kind = kind_of(queue)
    if kind != expected:
        return f"is {kind}, and MAILSLICE_QUEUE_QUORUM asks for {expected}"
    if kind == "quorum" and "x-message-ttl" in arguments:
        risk = "a broker that dies may lose its mails"
        for name, value in AT_LEAST_ONCE.items():
            actual = arguments.get(name, policy.get(name.removeprefix("x-")))
            if actual != value:
                return f"has {name}={actual}, and not {value}: {risk}"
    return None


def _comparable(arguments: Arguments) -> dict[str, Any]:
    """Without a type `classic` and the queue version: neither makes a difference for users."""
    return {
        name: value
        for name, value in arguments.items()
        if name != _QUEUE_VERSION and (name, value) != ("x-queue-type", "classic")
    }


def _shown(arguments: Arguments) -> str:
    return "{" + ", ".join(f"{name}={value}" for name, value in sorted(arguments.items())) + "}"


class Declarer:
    """Declares what a passive declare misses. A miss closes the channel, so each has its own."""

    def __init__(self, connection: BlockingConnection) -> None:
        self._connection = connection

    def has_exchange(self, name: str) -> bool:
        return self._is_declared(lambda channel: channel.exchange_declare(name, passive=True))

    def has_queue(self, name: str) -> bool:
        return self._is_declared(lambda channel: channel.queue_declare(name, passive=True))

    def exchange(self, name: str) -> None:
        if not self.has_exchange(name):
            self._do(
                lambda channel: channel.exchange_declare(name, exchange_type="direct", durable=True)
            )

    def queue(self, name: str, arguments: dict[str, Any], exchange: str | None) -> None:
        """Declares the queue. Binds an existing one, too: its declarer may have died before."""
        if not self.has_queue(name):
            self._do(lambda channel: channel.queue_declare(name, durable=True, arguments=arguments))
        if exchange is not None:
            self._do(lambda channel: channel.queue_bind(name, exchange, routing_key=ROUTING_KEY))

    def _is_declared(self, ask: Callable[[BlockingChannel], object]) -> bool:
        try:
            self._do(ask)
        except ChannelClosedByBroker as closed:
            if is_missing(closed):
                return False
            raise
        return True

    def _do(self, action: Callable[[BlockingChannel], object]) -> None:
        channel = self._connection.channel()
        try:
            action(channel)
        except ChannelClosedByBroker as closed:
            if closed.reply_code == _DIFFERS:
                raise TopologyDiffers(f"RabbitMQ: {closed.reply_text}") from closed
            raise
        finally:
            if channel.is_open:
                with suppress(ChannelClosedByBroker):
                    channel.close()
