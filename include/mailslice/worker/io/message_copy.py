"""The copy that replaces a message: its body, the headers that stay, and the mail's timestamp.

Every replacement has one order: the copy is published and confirmed, then the message is
acknowledged. A crash in between leaves both, and the deleted check drops one of them.
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
    """Headers that stay: 64-bit numbers, the token of the last delay; not x-death or parking."""
    pairs = ((name, headers.get(name)) for name in _LASTING)
    numbers = {name: n for name, n in pairs if isinstance(n, int) and abs(n) < 2**63}
    token = headers.get(HEADER_DELAY_TOKEN)
    is_token = isinstance(token, str) and len(token) == len(str(UUID(int=0)))
    return numbers | ({HEADER_DELAY_TOKEN: token} if is_token else {})


@dataclass(frozen=True, slots=True)
class MessageCopy:
    """A message to publish. `timestamp`: when the mail was enqueued, if that is known."""

    body: bytes
    headers: Mapping[str, Any]
    timestamp: datetime | None

    @classmethod
    def of(cls, message: Message, headers: Mapping[str, Any] | None = None) -> Self:
        """`headers` are added to those that stay, and replace them where names are equal."""
        headers = {**own_headers(message.headers), **(headers or {})}
        return cls(message.body, headers, message.timestamp)

    def with_headers(self, headers: Mapping[str, Any]) -> Self:
        return replace(self, headers={**self.headers, **headers})
