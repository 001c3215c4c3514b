"""What is told of a partition that was read."""

import uuid

import numpy as np
import pytest

from mailslice.codec.row import instant
from mailslice.engine.id_arrays import of_packed
from mailslice.engine.partition_scan import Marks, Scan, _Count
from mailslice.model.mail import Partition
from mailslice.model.names import QueueTable
from mailslice.stores.cassandra.ids import pack
from mailslice.testing.memory import MemoryDeletedMails

PLACE = Partition(instant(0), 0)


def count(live, dead, *, latest_us=10, written=5):
    deleted, ids = MemoryDeletedMails(), [uuid.uuid4() for _ in range(live + dead)]
    deleted.mark_many("spool", ids[live:])
    spec = Scan(None, "spool", (), 1, None, "", latest_us)
    found = _Count(spec, QueueTable.V4, PLACE, spool=False)
    pages = [of_packed(pack(ids[at : at + 700])) for at in range(0, len(ids), 700)]
    times = [np.full(len(page), written, np.int64) for page in pages]
    found.read(zip(pages, times, strict=True), Marks(deleted, "spool"))
    return found.finish(None)


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
