"""A task of the scan: reads token ranges and gives sums by mailbox, never messages.

So the shuffle grows with the number of mailboxes, not of messages. Each range comes back exactly
once with its row count, which excludes rows without a message id: they are no messages. If a range
is missing it was not read, and no sum can be trusted.

A task also writes the rows of the truth to files. The truth has no index by mailbox, and reading it
a second time costs more than all the rest (ADR 17).
"""

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import groupby
from typing import Any, TypeAlias
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mailslice.duties.counter_repair.fingerprints import (
    fingerprints,
    layout_of,
    message_times,
    messages_of,
    without_id,
)
from mailslice.engine.page_decoder import LONG, UUID, Columns, Layout, decode
from mailslice.engine.row_files import Location, RowFile, RowWriter
from mailslice.engine.worker_stores import stores_of
from mailslice.maintenance.artifacts import PLAN_FOLDER
from mailslice.model.names import (
    IMAP_UID_TABLE,
    MAILBOX,
    MAILBOX_COUNTERS,
    MESSAGE_ID_TABLE,
    MODSEQ,
)
from mailslice.model.settings import Settings
from mailslice.stores import Stores
from mailslice.stores.cassandra.mailboxes import SEEN
from mailslice.stores.cassandra.ranges import TokenRange

Key: TypeAlias = tuple[str, int, int]
"""(table, low token, high token)."""
_READS_IN_FLIGHT = 8
_CHUNK = 100_000
OF_MAILBOX, OF_FILE = "of mailbox", "of file"
"""The `kind` of a row about a mailbox, and of a row whose key is a file with rows of the truth.

A row about a token range has the table's name as its `kind`.
"""
SUMS = (
    "truth_count",
    "truth_unseen",
    "projected_count",
    "projected_unseen",
    "projected_without_id",
    "mailboxes",
    "counters",
    "stored_count",
    "stored_unseen",
    "reads",
    "rows",
)
MAXIMA = ("given_modseq", "truth_modseq", "truth_newest", "projected_modseq", "projected_newest")
XORS = ("truth_first", "truth_second", "projected_first", "projected_second")
PARTIAL_SUMS = "kind string, key binary, " + ", ".join(
    f"{name} long" for name in (*SUMS, *MAXIMA, *XORS)
)
RANGE = struct.Struct(">qq")
_SIDES = {IMAP_UID_TABLE: "truth", MESSAGE_ID_TABLE: "projected"}


@dataclass(frozen=True, slots=True)
class ScanSpec:
    """Where to read. `only`: the mailboxes to count (16 bytes each), None for all.

    A task writes the rows of the truth below the run's `folder`.
    """

    settings: Settings
    location: Location
    folder: str
    only: frozenset[bytes] | None = None


def read(spec: ScanSpec, batches: Iterator[Sequence[Key]]) -> Iterator[pa.RecordBatch]:
    stores = stores_of(spec.settings)
    for batch in batches:
        for table, keys in groupby(sorted(batch), key=lambda key: key[0]):
            yield from _table(stores, spec, table, [(low, high) for _, low, high in keys])


def _table(
    stores: Stores, spec: ScanSpec, table: str, ranges: Sequence[TokenRange]
) -> Iterator[pa.RecordBatch]:
    layout, chunk = _layout(stores, table), Chunk()
    rows = dict.fromkeys(ranges, 0)
    truth = RowWriter(spec.location, spec.folder, f"{PLAN_FOLDER}/truth-{uuid4()}.parquet")

    def sums() -> Iterator[pa.RecordBatch]:
        count, columns = chunk.rows, chunk.take()
        if count and table == IMAP_UID_TABLE:
            chosen: Any = slice(None) if spec.only is None else Groups(columns).rows_of(spec.only)
            truth.add(pa.table({name: values[chosen] for name, values in columns.items()}))
        return _sums(stores, table, columns, spec.only)

    statement = stores.mailboxes.scan(table)
    for (low, high), page in stores.cassandra.packed.pages(statement, ranges, _READS_IN_FLIGHT):
        columns = decode(page, layout)
        rows[low, high] += page.rows - (
            int(without_id(columns).sum()) if table == MESSAGE_ID_TABLE else 0
        )
        chunk.add(columns)
        if chunk.rows >= _CHUNK:
            yield from sums()
    yield from sums()
    if (file := truth.close()).rows:
        yield _batch(OF_FILE, [json.dumps(astuple(file)).encode()], {})
    yield _batch(
        table,
        [RANGE.pack(*token_range) for token_range in ranges],
        {"rows": list(rows.values()), "reads": [1] * len(rows)},
    )


def file_of(key: bytes) -> RowFile:
    return RowFile(*json.loads(key))


def _layout(stores: Stores, table: str) -> Layout:
    if table == MAILBOX:
        return Layout([("mailboxid", UUID)])
    if table == MODSEQ:
        return Layout([("mailboxid", UUID), ("nextmodseq", LONG)])
    if table == MAILBOX_COUNTERS:
        return Layout([("mailboxid", UUID), ("count", LONG), ("unseen", LONG)])
    return layout_of(stores.mailboxes.message_columns)


def ids_of(columns: Columns, name: str) -> list[bytes]:
    """The ids of a column, 16 bytes each."""
    halves = [columns[f"{name}.high"], columns[f"{name}.low"]]
    packed = np.stack(halves, axis=1).astype(">u8").tobytes()
    return [packed[at : at + UUID] for at in range(0, len(packed), UUID)]


class Chunk:
    """Collects the columns of pages, so that numpy works on many rows at a time."""

    def __init__(self) -> None:
        self.rows = 0
        self._pages: list[Any] = []

    def add(self, columns: Any) -> None:
        self._pages.append(columns)
        self.rows += len(next(iter(columns.values())))

    def take(self) -> dict[str, npt.NDArray[Any]]:
        """Give all columns and empty the chunk."""
        pages, self._pages, self.rows = self._pages, [], 0
        return (
            {name: np.concatenate([page[name] for page in pages]) for name in pages[0]}
            if pages
            else {}
        )


class Groups:
    """Rows grouped by mailbox.

    `order` sorts the rows by mailbox. `starts` are the first rows of each mailbox in that order.
    `keys` are the mailboxes, 16 bytes each.
    """

    def __init__(self, columns: Columns) -> None:
        high, low = columns["mailboxid.high"], columns["mailboxid.low"]
        self.order = np.lexsort((low, high))
        high, low = high[self.order], low[self.order]
        changes = np.flatnonzero((high[1:] != high[:-1]) | (low[1:] != low[:-1])) + 1
        self.starts = np.concatenate([np.zeros(1, np.int64), changes])
        firsts = {"mailboxid.high": high[self.starts], "mailboxid.low": low[self.starts]}
        self.keys = ids_of(firsts, "mailboxid")

    def rows_of(self, mailboxes: frozenset[bytes]) -> npt.NDArray[np.int64]:
        sizes = np.diff(np.append(self.starts, len(self.order)))
        rows: npt.NDArray[np.int64] = self.order[
            np.repeat([key in mailboxes for key in self.keys], sizes)
        ]
        return rows

    def reduced(self, how: np.ufunc, values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        reduced: npt.NDArray[np.int64] = how.reduceat(values[self.order], self.starts)
        return reduced


def _sums(
    stores: Stores, table: str, columns: Columns, only: frozenset[bytes] | None
) -> Iterator[pa.RecordBatch]:
    """The sums of the rows, by mailbox.

    Rows without a message id have a count of their own. The truth has none: the id is its key.
    """
    if not columns or not len(columns["mailboxid.high"]):
        return
    if table == MESSAGE_ID_TABLE and (lost := without_id(columns)).any():
        groups = Groups({name: columns[name][lost] for name in ("mailboxid.high", "mailboxid.low")})
        yield from _of_mailboxes(groups, {"projected_without_id": _ones(groups)}, only)
        columns = messages_of(columns)
        if not len(columns["mailboxid.high"]):
            return
    groups = Groups(columns)
    yield from _of_mailboxes(groups, _table_sums(stores, table, columns, groups), only)


def _ones(groups: Groups) -> npt.NDArray[np.int64]:
    return groups.reduced(np.add, np.ones(len(groups.order), np.int64))


def _table_sums(
    stores: Stores, table: str, columns: Columns, groups: Groups
) -> dict[str, npt.NDArray[np.int64]]:
    """Name of a sum -> its values, one for each mailbox."""
    if table in _SIDES:
        first, second = fingerprints(columns, stores.mailboxes.flags)
        side = _SIDES[table]
        return {
            f"{side}_count": _ones(groups),
            f"{side}_unseen": groups.reduced(np.add, (columns[SEEN] == 0).astype(np.int64)),
            f"{side}_modseq": groups.reduced(np.maximum, columns["modseq"]),
            f"{side}_newest": groups.reduced(np.maximum, message_times(columns)),
            f"{side}_first": groups.reduced(np.bitwise_xor, first),
            f"{side}_second": groups.reduced(np.bitwise_xor, second),
        }
    if table == MAILBOX:
        return {"mailboxes": _ones(groups)}
    if table == MODSEQ:
        return {"given_modseq": groups.reduced(np.maximum, columns["nextmodseq"])}
    return {
        "counters": _ones(groups),
        **{f"stored_{name}": groups.reduced(np.add, columns[name]) for name in ("count", "unseen")},
    }


def _of_mailboxes(
    groups: Groups, sums: dict[str, npt.NDArray[np.int64]], only: frozenset[bytes] | None
) -> Iterator[pa.RecordBatch]:
    requested = [at for at, key in enumerate(groups.keys) if only is None or key in only]
    if requested:
        requested_sums = {name: values[np.array(requested)] for name, values in sums.items()}
        yield _batch(OF_MAILBOX, [groups.keys[at] for at in requested], requested_sums)


def _batch(kind: str, keys: Sequence[bytes], values_by_name: dict[str, Any]) -> pa.RecordBatch:
    """Rows of one kind. A column that is not in `values_by_name` is 0."""
    zeros = np.zeros(len(keys), np.int64)
    columns = {
        name: pa.array(values_by_name.get(name, zeros), pa.int64())
        for name in (*SUMS, *MAXIMA, *XORS)
    }
    names = {"kind": pa.array([kind] * len(keys), pa.string()), "key": pa.array(keys, pa.binary())}
    return pa.RecordBatch.from_pydict({**names, **columns})
