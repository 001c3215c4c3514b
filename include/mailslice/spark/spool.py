"""Rows of one place, kept while nobody knows yet whether their slice may be planned: packed, in memory while small, on disk when large."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from uuid import UUID

from mailslice.spark.plan_files import ROWS_A_GROUP

_ROW = struct.Struct(">16sq")
_IN_MEMORY = 4 * 1024 * 1024


class Spool:
    """Enqueue ids with their write times, 24 bytes each, in the order of `add`."""

    def __init__(self) -> None:
        self.count = 0
        self.newest_us = -(2**63)
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - closed by `close`

    def add(self, enqueue_id: UUID, written_us: int) -> None:
        """Keep one row."""
        self._file.write(_ROW.pack(enqueue_id.bytes, written_us))
        self.count += 1
        self.newest_us = max(self.newest_us, written_us)

    def chunks(self) -> Iterator[tuple[list[str], list[int]]]:
        """The rows again, as texts and times, at most a row group at once."""
        self._file.seek(0)
        while data := self._file.read(_ROW.size * ROWS_A_GROUP):
            ids, written = [], []
            for raw, written_us in _ROW.iter_unpack(data):
                text = raw.hex()
                ids.append(f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}")
                written.append(written_us)
            yield ids, written

    def close(self) -> None:
        """Forget the rows."""
        self._file.close()
