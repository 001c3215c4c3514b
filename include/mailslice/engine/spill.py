"""Packed rows of one partition, buffered until it is known whether their slice may be planned.

In memory while small, on disk when large.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING
from uuid import UUID

from mailslice.engine.row_files import ROWS_A_GROUP

if TYPE_CHECKING:
    from mailslice.engine.id_arrays import Ids
    from mailslice.engine.row_files import Times

_ROW = struct.Struct(">16sq")
_IN_MEMORY = 4 * 1024 * 1024


class Spool:
    """Enqueue ids with their write times, 24 bytes each, in the order of `add`."""

    def __init__(self) -> None:
        self.count = 0
        self.newest_us = -(2**63)
        # Closed by `close`.
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115

    def add(self, enqueue_id: UUID, written_us: int) -> None:
        """Keep one row."""
        self._file.write(_ROW.pack(enqueue_id.bytes, written_us))
        self.count += 1
        self.newest_us = max(self.newest_us, written_us)

    def add_many(self, ids: Ids, written_us: Times) -> None:
        """Keep these rows."""
        import numpy as np

        if len(ids):
            rows = np.empty((len(ids), _ROW.size), np.uint8)
            rows[:, :16] = ids
            rows[:, 16:] = written_us.astype(">i8").view(np.uint8).reshape(-1, 8)
            self._file.write(rows.tobytes())
            self.count += len(ids)
            self.newest_us = max(self.newest_us, int(written_us.max()))

    def chunks(self) -> Iterator[tuple[Ids, Times]]:
        """The rows again, at most a row group at once."""
        import numpy as np

        self._file.seek(0)
        while data := self._file.read(_ROW.size * ROWS_A_GROUP):
            rows = np.frombuffer(data, np.uint8).reshape(-1, _ROW.size)
            yield (
                rows[:, :16],
                np.ascontiguousarray(rows[:, 16:]).view(">i8")[:, 0].astype(np.int64),
            )

    def close(self) -> None:
        """Forget the rows."""
        self._file.close()
