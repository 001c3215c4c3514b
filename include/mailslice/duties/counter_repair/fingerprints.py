"""Digests of sets of messages: counts, maxima and a fingerprint. Pure.

The fingerprint is the exclusive or of two 64-bit hashes of each row. Adding, removing or changing a
row changes it; the order of rows does not. Digests of parts of a mailbox can be added.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt

from mailslice.engine.page_decoder import BOOL, LONG, UUID, Columns, Layout
from mailslice.stores.cassandra.mailboxes import SEEN, USER_FLAGS

_SEEDS = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_GREGORIAN = datetime(1582, 10, 15, tzinfo=UTC)
"""The epoch of a timeuuid, which counts in units of 100 ns."""


@dataclass(frozen=True, slots=True)
class MessageDigest:
    """The messages of one mailbox in one table.

    `unseen`: messages without the flag seen. `modseq`: the highest. `newest`: the newest time of a
    message id (100 ns since 1582), or 0. `first`, `second`: the fingerprint, signed 64-bit numbers.
    """

    count: int = 0
    unseen: int = 0
    modseq: int = 0
    newest: int = 0
    first: int = 0
    second: int = 0

    def __add__(self, other: "MessageDigest") -> "MessageDigest":
        return MessageDigest(
            self.count + other.count,
            self.unseen + other.unseen,
            max(self.modseq, other.modseq),
            max(self.newest, other.newest),
            self.first ^ other.first,
            self.second ^ other.second,
        )


def ticks(when: datetime) -> int:
    """The time of a timeuuid: units of 100 ns since 1582."""
    return (when - _GREGORIAN) // timedelta(microseconds=1) * 10


def layout_of(columns: Iterable[str]) -> Layout:
    """The layout of pages with messages. `columns`: `MailboxTables.message_columns`."""
    widths = {"messageid": UUID, "mailboxid": UUID, "uid": LONG, "modseq": LONG}
    names = tuple(columns)
    return Layout(
        [(name, widths.get(name, BOOL)) for name in names if name != USER_FLAGS],
        USER_FLAGS if USER_FLAGS in names else None,
    )


def without_id(columns: Columns) -> npt.NDArray[np.bool_]:
    """Which rows have no message id: James wrote flags to them after they were deleted.

    A null decodes to 0, which is no message's id.
    """
    missing: npt.NDArray[np.bool_] = (columns["messageid.high"] | columns["messageid.low"]) == 0
    return missing


def messages_of(columns: Columns) -> Columns:
    """The rows with a message id, which James counts as messages."""
    lost = without_id(columns)
    return {name: values[~lost] for name, values in columns.items()} if lost.any() else columns


def flag_bits(columns: Columns, flags: Iterable[str]) -> npt.NDArray[np.int64]:
    """The flags of each row as one number: bit 0 is the first flag's."""
    bits = np.zeros(len(columns["uid"]), np.int64)
    for bit, name in enumerate(flags):
        bits |= (columns[name] != 0).astype(np.int64) << bit
    return bits


def message_times(columns: Columns) -> npt.NDArray[np.int64]:
    """When each message's id was made: the time of a timeuuid, 100 ns since 1582."""
    high = columns["messageid.high"]
    upper, middle, lower = (
        high & np.uint64(0xFFF),
        (high >> np.uint64(16)) & np.uint64(0xFFFF),
        high >> np.uint64(32),
    )
    times: npt.NDArray[np.int64] = (
        (upper << np.uint64(48)) | (middle << np.uint64(32)) | lower
    ).astype(np.int64)
    return times


def fingerprints(
    columns: Columns, flags: Iterable[str]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Both hashes of each row, over message id, uid, modSeq, flags and user flags."""
    words = [
        columns["messageid.high"],
        columns["messageid.low"],
        columns["uid"].view(np.uint64),
        columns["modseq"].view(np.uint64),
    ]
    words += [
        flag_bits(columns, flags).view(np.uint64),
        *([columns[USER_FLAGS]] if USER_FLAGS in columns else []),
    ]
    hashes = []
    for seed in _SEEDS:
        mixed = np.full(len(columns["uid"]), seed, np.uint64)
        for word in words:
            mixed = _mixed(mixed + word + np.uint64(_STEP))
        hashes.append(mixed.view(np.int64))
    return hashes[0], hashes[1]


def message_digest(columns: Columns, flags: Iterable[str]) -> MessageDigest:
    """The digest of all rows with a message id, as of one mailbox."""
    columns = messages_of(columns)
    count = len(columns["uid"])
    if not count:
        return MessageDigest()
    first, second = fingerprints(columns, flags)
    return MessageDigest(
        count,
        int((columns[SEEN] == 0).sum()),
        int(columns["modseq"].max()),
        int(message_times(columns).max()),
        int(np.bitwise_xor.reduce(first)),
        int(np.bitwise_xor.reduce(second)),
    )


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finalizer of SplitMix64 (Steele, Lea, Flood 2014): an input bit flips half the output."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(_FIRST)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(_SECOND)
    return values ^ (values >> np.uint64(31))
