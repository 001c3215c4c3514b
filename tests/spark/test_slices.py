"""What is told of a partition that was read."""

import struct
import tempfile
import uuid

import numpy as np
import pytest

from mailslice.codec.row import instant
from mailslice.engine.id_arrays import of_packed
from mailslice.engine.partition_scan import Marks, Scan, _Count, _slices
from mailslice.engine.row_files import NO_PART, Digest, PlanPart
from mailslice.model.mail import Partition
from mailslice.model.names import QueueTable
from mailslice.stores.cassandra.ids import pack
from mailslice.stores.cassandra.packed import PackedPage
from mailslice.testing.memory import MemoryDeletedMails

PLACE = Partition(instant(0), 0)


def count(live, dead, *, latest_us=10, written=5):
    deleted, ids = MemoryDeletedMails(), [uuid.uuid4() for _ in range(live + dead)]
    deleted.mark_many("spool", ids[live:])
    spec = Scan(None, "spool", None, "", (), 1, latest_us)
    found = _Count(spec, QueueTable.V4, PLACE)
    pages = [of_packed(pack(ids[at : at + 700])) for at in range(0, len(ids), 700)]
    times = [np.full(len(page), written, np.int64) for page in pages]
    found.read(zip(pages, times, strict=True), Marks(deleted, "spool"), None)
    return found.finish(None, None)


@pytest.mark.parametrize(
    ("live", "dead", "told"),
    [(1000, 10_000, 1000), (1001, 20_000, 1000), (1000, 9_999, 100), (3, 0, 3)],
)
def test_survivors_are_told_whole_where_a_browse_would_else_read_ten_dead_rows_for_each(
    live, dead, told
):
    found = count(live, dead)
    assert (found.rows, found.dead, found.unmarked, len(found.survivors)) == (
        live + dead,
        dead,
        live,
        told,
    )


@pytest.mark.parametrize(("written", "undated"), [(0, 3), (10, 0), (11, 3)])
def test_a_write_time_that_is_missing_or_lies_ahead_bounds_no_delete(written, undated):
    assert count(0, 3, written=written).undated == undated


def test_marks_of_a_page_are_those_of_its_ids_in_their_order():
    """Requests in which all, some and none of the ids are marked."""
    ids = [uuid.uuid4() for _ in range(350)]
    deleted = MemoryDeletedMails()
    deleted.mark_many("spool", [*ids[:100], *ids[100:200:3], ids[349]])
    marked = Marks(deleted, "spool").of(of_packed(pack(ids)))
    assert marked.tolist() == [deleted.is_marked("spool", each) for each in ids]
    assert Marks(deleted, "spool").of(of_packed(b"")).tolist() == []


class Table:
    """Pages of two rows of each partition, written at the bucket plus 1."""

    table = QueueTable.V4

    def __init__(self, ids):
        self.ids = ids

    def packed_written_ids_of(self, _queue, partitions, _in_flight, *, ordered):
        assert ordered
        for at in partitions:
            ids = self.ids[at.slice_start, at.bucket]
            for page in (ids[:2], ids[2:]):
                row = struct.Struct(">i16siq")
                written = at.bucket + 1
                data = b"".join(row.pack(16, each.bytes, 8, written) for each in page)
                yield at, PackedPage(len(page), data)


class Parts:
    """A plan's file: its partitions."""

    def __init__(self):
        self.rows = {}

    def add(self, _table, slice_ms, bucket, chunks):
        self.rows[slice_ms, bucket] = [
            (uuid.UUID(bytes=id_.tobytes()), at)
            for ids, written in chunks
            for id_, at in zip(ids, written, strict=True)
        ]
        return PlanPart("part", bucket, 1), Digest(1, 1, 1)


def test_a_slice_has_one_file_of_planned_rows_until_one_of_its_rows_is_live(monkeypatch):
    """However many buckets: each was a file, or up to 4 MiB of memory."""
    files, written = [], []

    class Spooled(tempfile.SpooledTemporaryFile):
        def __init__(self, **options):
            assert all(one.closed for one in files)
            super().__init__(**options)
            files.append(self)

        def write(self, data):
            written.append(len(data) // 24)
            return super().write(data)

    monkeypatch.setattr(tempfile, "SpooledTemporaryFile", Spooled)
    starts = [0, 1000, 2000]
    ids = {
        (instant(start), bucket): [uuid.uuid4() for _ in range(bucket % 4)]
        for start in starts
        for bucket in range(7)
    }
    live = ids[instant(1000), 3][1]
    deleted, parts = MemoryDeletedMails(), Parts()
    deleted.mark_many("spool", [one for many in ids.values() for one in many if one != live])
    keys = [(start, start < 2000) for start in starts]
    spec = Scan(None, "spool", None, "", (), 7, 100)
    read = list(_slices(spec, [Table(ids)], keys, Marks(deleted, "spool"), parts))
    assert parts.rows == {
        (0, bucket): [(each, bucket + 1) for each in ids[instant(0), bucket]]
        for bucket in (1, 2, 3, 5, 6)
    }
    assert [(one.planned, one.newest_us, one.part) for one in read[:7]] == [
        (bucket % 4, bucket + 1, PlanPart("part", bucket, 1)) if bucket % 4 else (0, 0, NO_PART)
        for bucket in range(7)
    ]
    assert [(one.rows, one.unmarked) for one in read[7:14]] == [
        (bucket % 4, int(bucket == 3)) for bucket in range(7)
    ]
    assert not any(one.planned for one in read[7:])
    assert sum(written) == sum(one.rows for one in read[:7]) + 3
    assert len(files) == 3
    assert all(one.closed for one in files)
