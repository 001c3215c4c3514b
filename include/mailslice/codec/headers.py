"""Headers that tell where a mail's row is, and the time of a message: believed if plausible."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from mailslice.codec.row import epoch_ms, instant
from mailslice.model.mail import Partition
from mailslice.model.names import HEADER_BUCKET, HEADER_SLICE, ROUTING_KEY, RabbitNames

_HIGHEST_INT = 2**31 - 1
"""Cassandra's int."""
_LAST_YEAR = 9999
"""The ends of its slices are no datetimes any more."""


def headers_of(partition: Partition | None) -> dict[str, object]:
    """The headers that tell where a mail's row is; James ignores them."""
    if partition is None:
        return {}
    return {HEADER_SLICE: epoch_ms(partition.slice_start), HEADER_BUCKET: partition.bucket}


def partition_in(headers: Mapping[str, Any]) -> Partition | None:
    """Where the mail's row is; None for a message of James, and for what no row can have."""
    start, bucket = headers.get(HEADER_SLICE), headers.get(HEADER_BUCKET)
    if not isinstance(start, int) or not isinstance(bucket, int) or not 0 <= bucket <= _HIGHEST_INT:
        return None
    try:
        at = instant(start)
    except OverflowError:
        return None
    return Partition(at, int(bucket)) if at.year < _LAST_YEAR else None


def deaths(names: RabbitNames, at: datetime) -> dict[str, object]:
    """The headers that RabbitMQ gives a message which is rejected in the work queue."""
    death = {
        "reason": "rejected",
        "count": 1,
        "exchange": names.exchange,
        "time": at,
        "routing-keys": [ROUTING_KEY],
        "queue": names.work_queue,
    }
    return {
        "x-death": [death],
        "x-first-death-exchange": names.exchange,
        "x-first-death-queue": names.work_queue,
        "x-first-death-reason": "rejected",
    }


def count_in(headers: Mapping[str, Any], name: str) -> int:
    """The count that a header says; 0 without one, and for what is no such number."""
    count = headers.get(name)
    return count if isinstance(count, int) and 0 <= count <= _HIGHEST_INT else 0


def moment(stamp: object) -> datetime | None:
    """The AMQP property `timestamp` (seconds); None without one, and for milliseconds."""
    try:
        return datetime.fromtimestamp(stamp, UTC) if isinstance(stamp, int) else None
    except (ValueError, OverflowError, OSError):
        return None
