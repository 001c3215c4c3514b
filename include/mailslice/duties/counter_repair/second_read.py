"""Read one mailbox again: its messages in the projection, and the truth of those and of the ones that the plan knows to be in the truth alone.

imapUidTable cannot be asked for a mailbox. A message that came into it since the first read, and is not projected yet, stays unseen here; so are its
counters, then: whoever brings it adds it to both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import UUID

from mailslice.duties.counter_repair.differences import ONLY_TRUTH
from mailslice.duties.counter_repair.fingerprints import Seen, layout_of, messages_of, seen_of
from mailslice.duties.counter_repair.plan_file import Plan
from mailslice.duties.counter_repair.rows_file import read_rows
from mailslice.duty.artifacts import RunFolder
from mailslice.spark.packed_rows import decode

if TYPE_CHECKING:
    from mailslice.stores import Stores

_IDS_A_READ = 100
_READS_IN_FLIGHT = 8
Unprojected = dict[UUID, list[bytes]]
"""Message ids (16 bytes each) by mailbox."""


def unprojected(plan: Plan, folder: RunFolder, mailboxes: Iterable[UUID]) -> Unprojected:
    """Of these mailboxes, the messages that the plan found in the truth alone."""
    wanted = {str(mailbox) for mailbox in mailboxes}
    found: Unprojected = {}
    for file in plan.differences:
        for row in read_rows(file, folder):
            if row["kind"] == ONLY_TRUTH and row["mailbox"] in wanted:
                found.setdefault(UUID(row["mailbox"]), []).append(UUID(row["message"]).bytes)
    return found


def read_again(
    stores: Stores, mailbox: UUID, also: Sequence[bytes], *, trust_projection: bool
) -> Seen:
    """How the mailbox's messages look now: in the truth, or, with `trust_projection`, in the projection."""
    tables = stores.mailboxes
    layout = layout_of(tables.message_columns)
    pages = (
        decode(page, layout) for _, page in stores.packed.pages(tables.of_mailbox, [[mailbox]], 1)
    )
    if trust_projection:
        return _total(seen_of(columns, tables.flags) for columns in pages)
    ids = _each_once(pages, also)
    asked = ([[UUID(bytes=each) for each in chunk], mailbox] for chunk in _chunks(ids))
    return _total(
        seen_of(decode(page, layout), tables.flags)
        for _, page in stores.packed.pages(tables.of_messages, asked, _READS_IN_FLIGHT)
    )


def _each_once(pages: Iterator[Any], also: Sequence[bytes]) -> Iterator[bytes]:
    """Message ids of the pages and of `also`: a message that is twice in a mailbox has two rows, but is asked for once."""
    import numpy as np

    given: set[bytes] = set()
    for columns in map(messages_of, pages):
        packed = (
            np.stack([columns["messageid.high"], columns["messageid.low"]], axis=1)
            .astype(">u8")
            .tobytes()
        )
        for at in range(0, len(packed), 16):
            if (each := packed[at : at + 16]) not in given:
                given.add(each)
                yield each
    yield from (each for each in dict.fromkeys(also) if each not in given)


def _chunks(ids: Iterator[bytes]) -> Iterator[list[bytes]]:
    while chunk := list(islice(ids, _IDS_A_READ)):
        yield chunk


def _total(parts: Iterable[Seen]) -> Seen:
    total = Seen()
    for part in parts:
        total += part
    return total
