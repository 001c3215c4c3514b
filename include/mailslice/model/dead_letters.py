"""Why a message was dead-lettered."""

from enum import StrEnum

MAX_CHECKED_OUT = 200_000
"""Dead letters in one checkout, at most: each costs the broker 5 KB (reference/rabbitmq.md)."""


class Cause(StrEnum):
    """The cause of a dead letter, as reports name it."""

    BAD_JSON = "bad JSON"
    MISSING_BLOB = "missing blob"
    REJECTED = "rejected by a handler"
    DELIVERY_LIMIT = "delivery limit"
    EXPIRED = "expired"
    CLEANED = "cleaned"
    OTHER = "other"
