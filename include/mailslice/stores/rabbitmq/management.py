"""RabbitMQ's management API. Its figures are 3 to 10 s late; absent is unknown, never zero."""

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import quote, unquote

import urllib3
from urllib3.exceptions import HTTPError

from mailslice.model.errors import BadSetting, StoreUnavailable
from mailslice.model.mail import QueueName
from mailslice.model.names import EXCHANGE_PREFIX, WORK_QUEUE_PREFIX, RabbitNames, is_queue_name
from mailslice.model.settings import RabbitSettings
from mailslice.stores.rabbitmq.connection import broker_address, url_parts
from mailslice.stores.tls import client_tls

_URL = "MAILSLICE_RABBITMQ_MANAGEMENT_URL"
NO_LIMIT = 1_000_000_000
"""A delivery limit that no message reaches. (Before RabbitMQ 4, -1 drops at the first return.)"""
_DEFAULT_LIMIT = 20
APART = timedelta(seconds=15)
"""The time between two samples of a proof that no message waits: figures are up to 10 s late."""


@dataclass(frozen=True, slots=True)
class Depth:
    """Messages and consumers of one queue. `dlx`: messages in at-least-once dead-lettering."""

    ready: int
    unacknowledged: int
    dlx: int
    consumers: int

    @property
    def total(self) -> int:
        """All messages that the queue is still responsible for."""
        return self.ready + self.unacknowledged + self.dlx


class Management:
    """A client of the management API, for the vhost of the AMQP URL and any thread."""

    def __init__(self, settings: RabbitSettings, pool: urllib3.PoolManager | None = None) -> None:
        self._address = broker_address(settings)
        allowed = "http:// or https://user:password@host:port"
        url = settings.management_url.get_secret_value()
        parts = url_parts(_URL, url, ("http", "https"), allowed)
        self._vhost = quote(self._address.vhost, safe="")
        host = parts.netloc.rpartition("@")[2]
        self._name = f"RabbitMQ management at {host}"
        self._base = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
        user = unquote(parts.username) if parts.username else self._address.user
        password = unquote(parts.password) if parts.password is not None else self._address.password
        self._user = user
        seconds = settings.timeout.total_seconds()
        context = client_tls(settings, "RABBITMQ") if parts.scheme == "https" else None
        self._pool = pool or urllib3.PoolManager(
            # urllib3.make_headers encodes Latin-1 only, and RabbitMQ's names are UTF-8.
            headers={"authorization": f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"},
            timeout=urllib3.Timeout(connect=seconds, read=seconds),
            retries=False,
            ssl_context=context,
        )

    def depth(self, name: str) -> Depth | None:
        """The figures of the RabbitMQ queue `name`; None: no such queue, or no figures yet."""
        queue = self._queue(name)
        return depth_of(queue) if queue is not None else None

    def arguments(self, name: str) -> dict[str, Any] | None:
        """The arguments of the RabbitMQ queue `name`; None when there is no such queue."""
        queue = self._queue(name)
        return dict(queue.get("arguments") or {}) if queue is not None else None

    def delivery_limit(self, name: str) -> int | None:
        """How often a message may come back; None: any number. Raises BadSetting: no such queue."""
        if (queue := self._queue(name)) is None:
            raise BadSetting(f"{self._name} does not know queue {name}: check the path of {_URL}")
        if kind_of(queue) != "quorum":
            return None  # asking for the version costs the broker an overview of everything
        return delivery_limit_of(queue, self.version)

    @property
    def version(self) -> str:
        """RabbitMQ's version; empty where the API does not say it."""
        return str((self._get("/api/overview") or {}).get("rabbitmq_version", ""))

    @property
    def vhost(self) -> str:
        """The vhost of the AMQP URL."""
        return self._address.vhost

    def keeps_order(self, name: str) -> bool:
        """Whether returned messages get their old place. A quorum queue appends them instead."""
        queue = self._queue(name)
        return queue is None or kind_of(queue) != "quorum"

    def unacked_elsewhere(self, name: str, but: str) -> int | None:
        """Unacknowledged messages on channels that consume the queue `name`, or consume nothing.

        Leaves out the channel of the consumer `but`. A channel without a consumer counts, as it may
        hold messages of one that it cancelled. Up to 10 s late; None when figures are missing, such
        as those of `but`.
        """
        vhost = self._vhost
        consumers = [
            (row.get("consumer_tag"), _channel_of(row), (row.get("queue") or {}).get("name"))
            for row in self._list(f"/api/consumers/{vhost}")
        ]
        own_channels = {channel for tag, channel, _ in consumers if tag == but and channel}
        if not own_channels:
            return None
        concerned = {channel for _, channel, queue in consumers if queue == name}
        otherwise = {channel for _, channel, queue in consumers if queue != name} - concerned
        channels = self._list(f"/api/vhosts/{vhost}/channels?columns=name,messages_unacknowledged")
        others = [row for row in channels if row.get("name") not in own_channels | otherwise]
        figures = _known([row.get("messages_unacknowledged") for row in others])
        return None if figures is None else sum(figures)

    def default_queue_type(self) -> str:
        """The type of the vhost's queues that are declared without a type."""
        vhost = self._get(f"/api/vhosts/{self._vhost}") or {}
        kind = str(vhost.get("default_queue_type") or "undefined")
        return "classic" if kind == "undefined" else kind

    def mail_queues(self) -> list[QueueName]:
        """The names of mail queues whose exchange and work queue both exist, sorted."""
        exchanges = set(self._names("exchanges"))
        return sorted(
            QueueName(name)
            for name in self._names("queues", WORK_QUEUE_PREFIX)
            if EXCHANGE_PREFIX + name in exchanges and is_queue_name(name)
        )

    def dead_letter_queues(self) -> list[QueueName]:
        """Mail queues with a dead letter queue, sorted. Some may have no work queue any more."""
        prefix = RabbitNames(QueueName("")).dead_letter_queue
        return sorted(map(QueueName, self._names("queues", prefix)))

    def delay_queues(self, queue: QueueName) -> list[str]:
        """The existing delay levels of a mail queue, whatever their TTL."""
        return sorted(filter(RabbitNames(queue).is_delay_queue, self._names("queues")))

    def messages(self, name: str) -> int | None:
        """Messages of the RabbitMQ queue `name`; 0: there is no such queue, None: no figures."""
        queue = self._queue(name)
        depth = Depth(0, 0, 0, 0) if queue is None else depth_of(queue)
        return None if depth is None else depth.total

    def waiting_queues(self, queue: QueueName) -> list[str]:
        """The hop queue, the delay levels and the park queue. Some may not exist."""
        names = RabbitNames(queue)
        return [names.hop_queue, *self.delay_queues(queue), names.park_queue]

    def queues(self, columns: Sequence[str]) -> list[dict[str, Any]]:
        """All RabbitMQ queues of the vhost, in one request: these columns of each."""
        return self._list(f"/api/queues/{self._vhost}?columns={','.join(columns)}")

    def bindings(self) -> list[dict[str, Any]]:
        """All bindings of the vhost: source, destination and routing_key of each."""
        return self._list(f"/api/bindings/{self._vhost}?columns=source,destination,routing_key")

    def exchange_types(self) -> dict[str, str]:
        rows = self._list(f"/api/exchanges/{self._vhost}?columns=name,type")
        return {str(row["name"]): str(row["type"]) for row in rows}

    def policy_priorities(self) -> dict[str, int]:
        rows = self._list(f"/api/policies/{self._vhost}?columns=name,priority")
        return {str(row["name"]): int(row["priority"]) for row in rows}

    def alarms(self) -> list[str]:
        """Why the broker blocks publishers: alarms, blocked connections; empty when it does not."""
        nodes = self._list("/api/nodes")
        memory = [f"memory alarm on {node['name']}" for node in nodes if node.get("mem_alarm")]
        disk = [f"disk alarm on {node['name']}" for node in nodes if node.get("disk_free_alarm")]
        down = [f"{node['name']} is down" for node in nodes if not node.get("running", True)]
        blocked = [
            f"connection {row.get('name')} is {row['state']}"
            for row in self._list("/api/connections?columns=name,state")
            if row.get("state") in ("blocked", "blocking")
        ]
        return memory + disk + down + blocked

    def _queue(self, name: str) -> dict[str, Any] | None:
        queue = self._get(f"/api/queues/{self._vhost}/{quote(name, safe='')}")
        return queue if isinstance(queue, dict) else None

    def _names(self, kind: str, prefix: str = "") -> Iterator[str]:
        """Names of the vhost's `queues` or `exchanges` that begin with `prefix`, without it."""
        for entry in self._list(f"/api/{kind}/{self._vhost}?columns=name"):
            if str(entry["name"]).startswith(prefix):
                yield str(entry["name"]).removeprefix(prefix)

    def _list(self, path: str) -> list[dict[str, Any]]:
        rows = self._get(path)
        if rows is None:
            raise BadSetting(
                f"{self._name} ({_URL}): there is no vhost {self.vhost!r}, which "
                "MAILSLICE_RABBITMQ_URL names"
            )
        if not isinstance(rows, list):
            raise StoreUnavailable(f"{self._name} gives no list for {path} (vhost {self.vhost!r})")
        return rows

    def _get(self, path: str) -> Any:
        """The JSON at `path`; None for 404. Raises StoreUnavailable or BadSetting."""
        try:
            response = self._pool.request("GET", self._base + path)
        except HTTPError as error:
            why = " ".join(str(getattr(error, "reason", None) or error).split())
            raise StoreUnavailable(f"{self._name} ({_URL}) does not answer: {why}") from error
        if response.status == 404:
            return None
        if response.status in (401, 403):
            raise BadSetting(
                f"{self._name} refuses user {self._user!r} of {_URL}: wrong password, or it lacks "
                "the tag monitoring (or management, for most commands)"
            )
        if response.status != 200:
            raise StoreUnavailable(f"{self._name} answers {response.status} to {path}")
        try:
            return json.loads(response.data)
        except ValueError as error:
            why = f"{self._name} ({_URL}) does not answer JSON to {path}"
            raise StoreUnavailable(why) from error


def _channel_of(consumer: dict[str, Any]) -> str | None:
    """The name of a consumer's channel; None while the broker does not know it yet."""
    details = consumer.get("channel_details")
    return str(details["name"]) if isinstance(details, dict) and details.get("name") else None


def _known(figures: Sequence[object]) -> list[int] | None:
    """The figures; None where one is missing."""
    known = [figure for figure in figures if isinstance(figure, int)]
    return known if len(known) == len(figures) else None


def kind_of(queue: Mapping[str, Any]) -> str:
    """A queue's type, `classic` by default."""
    return str(queue.get("type") or (queue.get("arguments") or {}).get("x-queue-type") or "classic")


def delivery_limit_of(queue: Mapping[str, Any], version: str) -> int | None:
    """How often a queue lets each message return; None: any number.

    `version` is RabbitMQ's. The smaller of argument and policy counts. From 4 on there is a
    default, -1 means no limit, and a number overrules -1 (docs/reference/rabbitmq.md).
    """
    if kind_of(queue) != "quorum":
        return None
    argument = (queue.get("arguments") or {}).get("x-delivery-limit")
    policy = (queue.get("effective_policy_definition") or {}).get("delivery-limit")
    limits = [limit for limit in (argument, policy) if isinstance(limit, int)]
    if version[:2] in ("2.", "3."):
        limit = max(0, min(limits)) if limits else None
    else:
        numbers = [limit for limit in limits if limit >= 0]
        limit = min(numbers, default=None) if limits else _DEFAULT_LIMIT
    return None if limit is None or limit >= NO_LIMIT else limit


def depth_of(queue: Mapping[str, Any]) -> Depth | None:
    """The figures of one queue, all or nothing. A classic queue has no `messages_dlx`."""
    dlx = queue.get("messages_dlx", None if kind_of(queue) == "quorum" else 0)
    ready, unacknowledged = queue.get("messages_ready"), queue.get("messages_unacknowledged")
    figures = _known([ready, unacknowledged, dlx, queue.get("consumers")])
    return None if figures is None else Depth(*figures)


def shows_no_messages(management: Management, queue: QueueName) -> bool:
    """Whether this sample shows no message in the work queue and in all `waiting_queues`.

    Ready, unacknowledged and dead-lettering messages count. False when a figure is unknown. False
    while the broker has an alarm or a blocked connection: a publish that raised may come later.
    Dead letters do not count (see `checkout.dead_letter_ids`). One sample is about 15 s old.
    """
    if management.alarms():
        return False
    work = management.depth(RabbitNames(queue).work_queue)
    if work is None or work.total:
        return False
    return all(management.messages(name) == 0 for name in management.waiting_queues(queue))
