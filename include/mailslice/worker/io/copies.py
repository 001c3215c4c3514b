"""What is published in place of a message: its body, the headers that stay, and its mail's time.

A message is replaced in one order everywhere (retry, delay, park, lease, dead letter): the copy is
published, the broker confirms it, and only then the message is acknowledged. A crash in between
leaves both, and the deleted check drops one of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Self
from uuid import UUID

from mailslice.model.names import (
    HEADER_BUCKET,
    HEADER_DELAY_TOKEN,
    HEADER_FAILURES,
    HEADER_REDRIVE_COUNT,
    HEADER_SLICE,
    HEADER_THROTTLED,
)
from mailslice.stores.rabbitmq.consumer import Message

_LASTING = (HEADER_SLICE, HEADER_BUCKET, HEADER_REDRIVE_COUNT, HEADER_FAILURES, HEADER_THROTTLED)


def own_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """What a mail keeps: 64-bit numbers, the token of its last delay; not x-death, parking."""
    given = ((name, headers.get(name)) for name in _LASTING)
    kept = {name: value for name, value in given if isinstance(value, int) and abs(value) < 2**63}
    token = headers.get(HEADER_DELAY_TOKEN)
    is_one = isinstance(token, str) and len(token) == len(str(UUID(int=0)))
    return kept | ({HEADER_DELAY_TOKEN: token} if is_one else {})


@dataclass(frozen=True, slots=True)
class Copy:
    """Ready to be published. `timestamp`: when the mail was enqueued, if that is known."""

    body: bytes
    headers: Mapping[str, Any]
    timestamp: datetime | None

    @classmethod
    def of(cls, message: Message) -> Self:
        return cls(message.body, own_headers(message.headers), message.timestamp)

    def but(self, headers: Mapping[str, Any]) -> Self:
        return replace(self, headers={**self.headers, **headers})
