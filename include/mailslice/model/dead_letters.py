"""Words of dead letters: why a message became one."""

from enum import StrEnum

MAX_CHECKED_OUT = 200_000
"""Dead letters held at once, at most: each costs the broker 5 KB (reference/rabbitmq.md)."""


class Cause(StrEnum):
    """Why a message became a dead letter."""

    BAD_JSON = "bad JSON"
    MISSING_BLOB = "missing blob"
    REJECTED = "rejected by a handler"
    DELIVERY_LIMIT = "delivery limit"
    EXPIRED = "expired"
    CLEANED = "cleaned"
    OTHER = "other"
