"""Words of dead letters: why a message became one."""

from __future__ import annotations

from enum import StrEnum

MOST_HELD = 65_535
"""Messages that one channel can hold: the prefetch count is an unsigned 16-bit number (AMQP 0-9-1, basic.qos)."""


class Cause(StrEnum):
    """Why a message became a dead letter."""

    BAD_JSON = "bad JSON"
    MISSING_BLOB = "missing blob"
    REJECTED = "rejected by a handler"
    DELIVERY_LIMIT = "delivery limit"
    EXPIRED = "expired"
    CLEANED = "cleaned"
    OTHER = "other"
