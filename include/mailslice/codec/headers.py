"""AMQP headers: a mail's partition, deaths, counts and time. Implausible values are ignored."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from mailslice.codec.row import epoch_ms, instant
from mailslice.model.mail import Partition
from mailslice.model.names import HEADER_BUCKET, HEADER_SLICE, ROUTING_KEY, RabbitNames

_HIGHEST_INT = 2**31 - 1
"""Of Cassandra's type int."""
_LAST_YEAR = 9999
"""The end of a slice of this year may be beyond `datetime.max`."""


def headers_of(partition: Partition | None) -> dict[str, object]:
    """The headers that name the partition of a mail's row. James ignores them."""
    if partition is None:
        return {}
    return {HEADER_SLICE: epoch_ms(partition.slice_start), HEADER_BUCKET: partition.bucket}


def partition_in(headers: Mapping[str, Any]) -> Partition | None:
    """The partition of the mail's row. None: a message of James, or values that no row can have."""
    start, bucket = headers.get(HEADER_SLICE), headers.get(HEADER_BUCKET)
    if not isinstance(start, int) or not isinstance(bucket, int) or not 0 <= bucket <= _HIGHEST_INT:
        return None
    try:
        at = instant(start)
    except OverflowError:
        return None
    return Partition(at, int(bucket)) if at.year < _LAST_YEAR else None


def x_death(names: RabbitNames, at: datetime) -> dict[str, object]:
    """The headers that RabbitMQ adds to a message when it is rejected in the work queue."""
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
    """The count in a header; 0 without the header, and for a value that is no count."""
    count = headers.get(name)
    return count if isinstance(count, int) and 0 <= count <= _HIGHEST_INT else 0


def moment(stamp: object) -> datetime | None:
    """The time of the AMQP property `timestamp` (seconds). None: no integer, or milliseconds."""
    try:
        return datetime.fromtimestamp(stamp, UTC) if isinstance(stamp, int) else None
    except (ValueError, OverflowError, OSError):
        return None
