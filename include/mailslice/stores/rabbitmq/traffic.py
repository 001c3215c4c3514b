"""Depth and rates of all queues of the vhost. Figures are 3 to 10 s late; absent is unknown."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mailslice.codec.headers import moment
from mailslice.model.names import RabbitNames
from mailslice.stores.rabbitmq.management import Depth, Management, depth_of

_COLUMNS = tuple(
    """
    name type arguments consumers messages_ready messages_unacknowledged messages_dlx
    message_stats head_message_timestamp
    """.split()
)


@dataclass(frozen=True, slots=True)
class Traffic:
    """One RabbitMQ queue; rates a second (None: unknown). `oldest`: only in memory, so a hint."""

    depth: Depth | None
    published: float | None
    delivered: float | None
    acknowledged: float | None
    redelivered: float | None
    oldest: datetime | None

    @property
    def moving(self) -> float:
        """Messages a second, in and out, as far as they are known."""
        return (self.published or 0.0) + (self.delivered or 0.0)


def traffic(management: Management) -> dict[str, Traffic]:
    """By the name of the RabbitMQ queue. Raises StoreUnavailable, BadSetting."""
    return {str(queue["name"]): _traffic(queue) for queue in management.queues(_COLUMNS)}


def delayed(all_traffic: Mapping[str, Traffic], names: RabbitNames) -> int | None:
    """Messages in the delay levels and the hop queue; None while one of them has no figures."""
    queues = [name for name in all_traffic if name == names.hop_queue or names.is_delay_queue(name)]
    depths = [all_traffic[name].depth for name in queues]
    return None if None in depths else sum(depth.total for depth in depths if depth)


def parked(all_traffic: Mapping[str, Traffic], names: RabbitNames) -> int | None:
    """Messages in the park queue, which wait until a store answers; None without figures."""
    queue = all_traffic.get(names.park_queue)
    return 0 if queue is None else queue.depth.total if queue.depth is not None else None


def in_delay_queues(all_traffic: Mapping[str, Traffic], names: RabbitNames) -> int | None:
    """Messages in the delay levels, the hop queue and the park queue; None: unknown."""
    counts = delayed(all_traffic, names), parked(all_traffic, names)
    return None if None in counts else sum(filter(None, counts))


def _traffic(queue: Mapping[str, Any]) -> Traffic:
    depth = depth_of(queue)
    # A queue that is known and has no statistics has not moved a message since the broker started.
    moved = queue.get("message_stats") or ({} if depth is not None else None)
    return Traffic(
        depth=depth,
        published=_rate(moved, "publish"),
        delivered=_rate(moved, "deliver_get"),
        acknowledged=_rate(moved, "ack"),
        redelivered=_rate(moved, "redeliver"),
        oldest=moment(queue.get("head_message_timestamp")),
    )


def _rate(moved: Mapping[str, Any] | None, counter: str) -> float | None:
    """0.0: the counter is absent, so it never counted. None: no rate is measured (`rates_mode`)."""
    if moved is None:
        return None
    if counter not in moved:
        return 0.0
    rate = (moved.get(f"{counter}_details") or {}).get("rate")
    return float(rate) if isinstance(rate, int | float) else None
