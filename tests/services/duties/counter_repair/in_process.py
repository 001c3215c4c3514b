"""Runs the plan's Spark jobs in this process, for a few mailboxes.

The workers' code is the real one. Plain Python replaces the Column functions of Spark.

Tests of interleavings, which are about stores, use it. `test_whole` runs the same data through
Spark and through this module; both must find the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from datetime import timedelta
from functools import partial
from itertools import groupby
from operator import itemgetter

import pyarrow as pa

from mailslice.duties.counter_repair import differences as differing
from mailslice.duties.counter_repair import planned, scan_task, survey
from mailslice.duties.counter_repair.duty import CounterRepair
from mailslice.duties.counter_repair.planned import Difference, Drift
from mailslice.duties.counter_repair.scan_task import Key, ScanSpec
from mailslice.duties.counter_repair.survey import RangeRead, Totals
from mailslice.engine.row_files import RowFile

ABSENT = (None, None, None)


class PlainScanned:
    """The double of `scan.Scanned`."""

    def __init__(
        self,
        _: object,
        what: ScanSpec,
        keys: Sequence[Key],
        *,
        trust_projection: bool,
        pause: Callable[[], None],
    ) -> None:
        self._side = "projected" if trust_projection else "truth"
        rows = []
        for part in survey.modseq_keys_first(keys):
            rows += [
                row for batch in scan_task.read(what, iter([part])) for row in batch.to_pylist()
            ]
            pause()
        world = itemgetter("kind", "key")
        self._rows = [
            _joined(kind, key, list(parts))
            for (kind, key), parts in groupby(sorted(rows, key=world), key=world)
        ]
        self._mailboxes = [row for row in self._rows if row["kind"] == scan_task.OF_MAILBOX]

    def ranges(self) -> list[RangeRead]:
        return [
            RangeRead(row["kind"], scan_task.RANGE.unpack(row["key"]), row["rows"], row["reads"])
            for row in self._rows
            if row["kind"] not in {scan_task.OF_MAILBOX, scan_task.OF_FILE}
        ]

    def truth(self) -> list[RowFile]:
        return [
            scan_task.file_of(row["key"]) for row in self._rows if row["kind"] == scan_task.OF_FILE
        ]

    @property
    def totals(self) -> Totals:
        there = [row for row in self._mailboxes if row["mailboxes"]]
        gone = [row for row in self._mailboxes if not row["mailboxes"]]
        return Totals(
            mailboxes=len(there),
            wrong=len(list(self.wrong())),
            inconsistent=len(self.inconsistent()),
            orphan_messages=sum(
                row[f"{self._side}_count"] + row["projected_without_id"] for row in gone
            ),
            orphan_counters=sum(row["counters"] > 0 for row in gone),
            without_id=sum(row["projected_without_id"] for row in there),
            truth=sum(row["truth_count"] for row in self._mailboxes),
        )

    def wrong(self) -> Iterator[Drift]:
        for row in self._mailboxes:
            drift = survey.drift_of(row, self._side)
            if row["mailboxes"] and drift.stored != drift.computed:
                yield drift

    def inconsistent(self) -> dict[bytes, bool]:
        differ = [
            row
            for row in self._mailboxes
            if survey.drift_of(row, "truth").digest != survey.drift_of(row, "projected").digest
            or row["projected_without_id"]
            or (not row["mailboxes"] and row["truth_count"])
        ]
        return {row["key"]: not row["mailboxes"] for row in differ}

    def close(self) -> None:
        return


def _joined(kind: str, key: bytes, parts: list[dict]) -> dict:
    row: dict = {"kind": kind, "key": key}
    for name in scan_task.SUMS:
        row[name] = sum(part[name] for part in parts)
    for name in scan_task.MAXIMA:
        row[name] = max(part[name] for part in parts)
    for name in scan_task.XORS:
        row[name] = 0
        for part in parts:
            row[name] ^= part[name]
    return row


def plain_differences(
    _: object, what: differing.ComparisonSpec, truth: Sequence[RowFile]
) -> tuple[tuple[RowFile, ...], dict[str, int]]:
    """The double of `differences.differences`."""
    keys = [*truth, *sorted(what.mailboxes)]
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
        if (kind := _kind(message, truth, projected, gone=mailbox in what.deleted)) is not None:
            found.append((kind, mailbox, uid, message, *truth, *projected))
    if not found:
        return (), dict.fromkeys(planned.KINDS, 0)
    columns = {
        field.name: list(values)
        for field, values in zip(fields(Difference), zip(*found, strict=True), strict=True)
    }
    (written,) = differing._write(what, iter([pa.RecordBatch.from_pydict(columns)]))
    first = written.to_pylist()[0]
    return (RowFile(first["file"], first["file_rows"], first["digest"]),), {
        **dict.fromkeys(planned.KINDS, 0),
        **Counter(each[0] for each in found),
    }


def _kind(message: bytes | None, truth: tuple, projected: tuple, *, gone: bool) -> str | None:
    if gone or message is None:
        return planned.MAILBOX_MISSING if gone else planned.WITHOUT_ID
    if projected == ABSENT or truth == ABSENT:
        return planned.ONLY_TRUTH if projected == ABSENT else planned.ONLY_PROJECTED
    if truth[1:] != projected[1:]:
        return planned.FLAGS_DIFFER
    return planned.MODSEQ_DIFFERS if truth[0] != projected[0] else None


plain_survey = partial(
    survey.survey, scan=PlainScanned, compare=plain_differences, operation=timedelta(0)
)
PLAIN = CounterRepair(survey=plain_survey)
"""The duty with a plan that is made in this process."""
