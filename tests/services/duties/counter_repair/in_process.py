"""The plan's Spark jobs in this process: the workers' own code, and what Spark's columns do said again by plain Python, for a few mailboxes.

Interleavings are about stores. `test_whole` runs the same data through Spark and through this, and both must find the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import groupby
from operator import itemgetter
from uuid import UUID

import pyarrow as pa
import pytest

from mailslice.duties.counter_repair import differences as differing
from mailslice.duties.counter_repair import plan, reading, scan
from mailslice.duties.counter_repair.plan_file import difference_schema
from mailslice.duties.counter_repair.reading import Key, Scan
from mailslice.duties.counter_repair.rows_file import PlanFile
from mailslice.duties.counter_repair.scan import MailboxFound, RangeRead, Totals
from mailslice.duty.context import StepContext
from mailslice.quality import gate
from mailslice.spark.frames import InProcess

ABSENT = (None, None, None)


class PlainScanned:
    """As `scan.Scanned`."""

    def __init__(
        self,
        _: object,
        what: Scan,
        keys: Sequence[Key],
        *,
        trust_projection: bool,
        pause: Callable[[], None],
    ) -> None:
        self._trust = trust_projection
        rows = []
        for part in scan.given_first(keys):
            rows += [row for batch in reading.read(what, iter([part])) for row in batch.to_pylist()]
            pause()
        place = itemgetter("kind", "key")
        self._rows = [
            _joined(kind, key, list(parts))
            for (kind, key), parts in groupby(sorted(rows, key=place), key=place)
        ]
        self._without_id = {
            UUID(bytes=row["key"]): row["projected_without_id"]
            for row in self._rows
            if row["kind"] == reading.OF_MAILBOX
        }
        self._found = [scan.found(row) for row in self._rows if row["kind"] == reading.OF_MAILBOX]

    def ranges(self) -> list[RangeRead]:
        return [
            RangeRead(row["kind"], reading.RANGE.unpack(row["key"]), row["rows"], row["reads"])
            for row in self._rows
            if row["kind"] != reading.OF_MAILBOX
        ]

    @property
    def totals(self) -> Totals:
        there = [each for each in self._found if each.exists]
        gone = [each for each in self._found if not each.exists]
        messages = sum(
            each.computed(trust_projection=self._trust).count + self._without_id[each.mailbox]
            for each in gone
        )
        without_id = sum(self._without_id[each.mailbox] for each in there)
        return Totals(
            len(there),
            len(list(self.wrong())),
            len(self.inconsistent()),
            messages,
            sum(each.has_counters for each in gone),
            without_id,
        )

    def wrong(self) -> Iterator[MailboxFound]:
        for each in self._found:
            seen = each.computed(trust_projection=self._trust)
            if each.exists and (each.stored.count, each.stored.unseen) != (seen.count, seen.unseen):
                yield each

    def inconsistent(self) -> dict[bytes, bool]:
        differ = [
            each
            for each in self._found
            if each.truth != each.projected
            or self._without_id[each.mailbox]
            or (not each.exists and each.truth.count)
        ]
        return {each.mailbox.bytes: not each.exists for each in differ}

    def close(self) -> None:
        return


def _joined(kind: str, key: bytes, parts: list[dict]) -> dict:
    row: dict = {"kind": kind, "key": key}
    for name in reading.SUMS:
        row[name] = sum(part[name] for part in parts)
    for name in reading.MOST:
        row[name] = max(part[name] for part in parts)
    for name in reading.XORS:
        row[name] = 0
        for part in parts:
            row[name] ^= part[name]
    return row


def plain_differences(
    _: object, what: differing.Comparison, ranges: Sequence[tuple[int, int]]
) -> tuple[tuple[PlanFile, ...], dict[str, int]]:
    """As `differences.differences`."""
    keys = [("imapuidtable", low, high) for low, high in ranges] + sorted(what.mailboxes)
    both: dict[tuple, dict[str, tuple]] = {}
    for row in (row for batch in differing._read(what, iter([keys])) for row in batch.to_pylist()):
        both.setdefault((row["mailbox"], row["uid"], row["message"]), {})[row["side"]] = (
            row["modseq"],
            row["flags"],
            row["user_flags"],
        )
    found = []
    for (mailbox, uid, message), sides in both.items():
        truth, projected = sides.get("truth", ABSENT), sides.get("projected", ABSENT)
        if (kind := _kind(message, truth, projected, gone=mailbox in what.gone)) is not None:
            found.append((kind, mailbox, uid, message, *truth, *projected))
    if not found:
        return (), dict.fromkeys(differing.KINDS, 0)
    columns = {
        field.name: list(values)
        for field, values in zip(difference_schema(), zip(*found, strict=True), strict=True)
    }
    (told,) = differing._write(what, iter([pa.RecordBatch.from_pydict(columns)]))
    first = told.to_pylist()[0]
    return (PlanFile(first["file"], first["file_rows"], first["sha256"]),), {
        **dict.fromkeys(differing.KINDS, 0),
        **Counter(each[0] for each in found),
    }


def _kind(message: bytes | None, truth: tuple, projected: tuple, *, gone: bool) -> str | None:
    if gone or message is None:
        return differing.MAILBOX_GONE if gone else differing.WITHOUT_ID
    if projected == ABSENT or truth == ABSENT:
        return differing.ONLY_TRUTH if projected == ABSENT else differing.ONLY_PROJECTED
    if truth[1:] != projected[1:]:
        return differing.FLAGS_DIFFER
    return differing.MODSEQ_DIFFERS if truth[0] != projected[0] else None


def without_spark(patch: pytest.MonkeyPatch) -> None:
    """Plans in this process, and no pages of gates: seconds a run."""
    patch.setattr(StepContext, "spark", lambda _: InProcess())
    patch.setattr(plan, "Scanned", PlainScanned)
    patch.setattr(plan, "differences", plain_differences)
    patch.setattr(plan, "_OPERATION", timedelta(0))
    patch.setattr(gate, "_publish", lambda *_: "not rendered")
