"""Read one mailbox again: its messages in the projection, and the truth of those and some others.

The others are those that the plan found in the truth alone: imapUidTable cannot be asked for a
mailbox. A message that came into it since the first read, and is not projected yet, stays unseen
here; so are its counters, then: whoever brings it adds it to both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any
from uuid import UUID

from mailslice.duties.counter_repair.fingerprints import (
    MessageDigest,
    layout_of,
    message_digest,
    messages_of,
)
from mailslice.duties.counter_repair.reading import ids_of
from mailslice.engine.page_decoder import decode

if TYPE_CHECKING:
    from mailslice.stores import Stores

_IDS_A_READ = 100
_READS_IN_FLIGHT = 8


def reread_mailbox(
    stores: Stores, mailbox: UUID, also: Sequence[bytes], *, trust_projection: bool
) -> MessageDigest:
    """How the mailbox's messages look now, in the truth or (`trust_projection`) the projection."""
    tables = stores.mailboxes
    layout = layout_of(tables.message_columns)
    pages = (
        decode(page, layout) for _, page in stores.packed.pages(tables.of_mailbox, [[mailbox]], 1)
    )
    if trust_projection:
        return _total(message_digest(columns, tables.flags) for columns in pages)
    asked = (
        [[UUID(bytes=one) for one in ids], mailbox] for ids in _chunks(_unique_ids(pages, also))
    )
    return _total(
        message_digest(decode(page, layout), tables.flags)
        for _, page in stores.packed.pages(tables.of_messages, asked, _READS_IN_FLIGHT)
    )


def _unique_ids(pages: Iterator[Any], also: Sequence[bytes]) -> Iterator[bytes]:
    """Message ids of the pages and of `also`. One that has two rows is asked for once."""
    asked: set[bytes] = set()
    projected = (ids_of(messages_of(page), "messageid") for page in pages)
    for one in chain(chain.from_iterable(projected), also):
        if one not in asked:
            asked.add(one)
            yield one


def _chunks(ids: Iterator[bytes]) -> Iterator[list[bytes]]:
    while chunk := list(islice(ids, _IDS_A_READ)):
        yield chunk


def _total(parts: Iterable[MessageDigest]) -> MessageDigest:
    return sum(parts, MessageDigest())
