"""Ids as bytes: what a page of rows holds and what a request takes."""

from datetime import UTC, datetime
from uuid import uuid4

import pytest
from cassandra.cqltypes import ListType, UUIDType

from mailslice.stores.cassandra.ids import (
    IDS_A_REQUEST,
    WIDTH,
    TimedIds,
    as_list,
    id_batches,
    pack,
    unpack,
)

WHEN = datetime(2026, 11, 21, 12, 0, 0, 123000, tzinfo=UTC)


def test_packed_ids_are_what_the_driver_binds_for_a_list():
    ids = [uuid4() for _ in range(3)]
    assert as_list(pack(ids)) == ListType.apply_parameters((UUIDType,)).serialize(ids, 4)
    assert unpack(pack(ids)) == ids


def test_they_are_cut_into_requests_without_losing_one():
    ids = [uuid4() for _ in range(IDS_A_REQUEST * 2 + 1)]
    parts = list(id_batches(pack(ids)))
    assert [len(part) // WIDTH for part in parts] == [IDS_A_REQUEST, IDS_A_REQUEST, 1]
    assert unpack(b"".join(parts)) == ids
    assert list(id_batches(b"")) == []


@pytest.mark.parametrize("times", [[WHEN, WHEN], [WHEN, None, WHEN], [None], []])
def test_times_are_those_of_their_rows_with_and_without_a_null_among_them(times):
    rows = [(uuid4(), when) for when in times]
    found = TimedIds.of_rows(rows)
    assert unpack(found.packed) == [each for each, _ in rows]
    assert [found.time_of(at) for at in range(len(rows))] == [
        None if when is None else int(WHEN.timestamp() * 1000) for when in times
    ]


def test_bytes_that_are_no_such_rows_are_refused():
    with pytest.raises(ValueError, match="do not hold 2 rows"):
        TimedIds.of_page(2, b"\x00\x00\x00\x10" + bytes(16) + b"\x00\x00\x00\x08" + bytes(8))
