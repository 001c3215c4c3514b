"""Plan files.

What is written is found again place by place, and the digest depends on rows alone.
"""

import uuid

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailslice.engine.id_arrays import low_halves, of_packed, of_texts, texts
from mailslice.engine.id_arrays import pack as pack_rows
from mailslice.engine.partition_scan import Spool
from mailslice.engine.row_files import (
    ROWS_A_GROUP,
    Digest,
    PlanReader,
    PlanWriter,
    digest_of,
    plan_schema,
)
from mailslice.maintenance.artifacts import Artifacts
from mailslice.model.errors import PlanRefused
from mailslice.model.settings import S3Settings
from mailslice.stores.cassandra.ids import pack

ROWS = st.lists(
    st.tuples(st.uuids(version=4), st.integers(0, 2**62)), max_size=20, unique_by=lambda row: row[0]
)


def columns(rows):
    rows = list(rows)
    return of_packed(pack(row[0] for row in rows)), np.array([row[1] for row in rows], np.int64)


def planned(table, slice_ms, bucket, ids, times):
    """A row group of one partition."""
    values = ([value] * len(ids) for value in (table, slice_ms, bucket))
    names = plan_schema().names
    arrays = dict(zip(names, [*values, texts(ids), times], strict=True))
    return pa.table(arrays, schema=plan_schema())


def digest(rows):
    return digest_of(planned("v4", 1000, 0, *columns(rows)))


@given(ROWS, ROWS)
def test_digests_of_parts_add_up_in_any_order(some, others):
    whole = digest(some) + digest(others)
    assert whole == digest(others) + digest(some)
    assert whole.count == len(some) + len(others)
    assert Digest.parse(str(whole)) == whole


@given(ROWS.filter(bool))
def test_the_digest_changes_with_any_column_and_with_a_row_too_many_or_too_few(rows):
    ids, times = columns(rows)
    base = digest(rows)
    others = [
        digest_of(planned("v3", 1000, 0, ids, times)),
        digest_of(planned("v4", 2000, 0, ids, times)),
        digest_of(planned("v4", 1000, 1, ids, times)),
        digest_of(planned("v4", 1000, 0, ids, times + 1)),
        digest_of(planned("v4", 1000, 0, ids ^ 1, times)),
        digest(rows[1:]),
        digest([*rows, rows[0]]),
    ]
    assert base not in others


def test_a_pair_of_equal_parts_does_not_cancel_itself_out():
    """An exclusive or alone would not see it; the sum and the count do."""
    part = digest([(uuid.uuid4(), 1)])
    assert part + part != Digest()
    assert (part + part).xor == 0


@given(st.lists(st.uuids(), max_size=5))
def test_ids_go_to_text_and_back(ids):
    rows = of_packed(pack(ids))
    assert texts(rows).to_pylist() == [str(each) for each in ids]
    assert of_texts(texts(rows)).tobytes() == b"".join(each.bytes for each in ids)
    assert pack_rows(rows) == pack(ids)
    assert low_halves(rows).tolist() == [each.int & (2**64 - 1) for each in ids]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x" * 36,
        "00000000-0000-4000-8000-00000000000G",
        "00000000 0000-4000-8000-000000000000",
        None,
    ],
)
def test_what_is_no_id_in_a_plan_file_is_refused(text):
    with pytest.raises(PlanRefused, match="no enqueue id"):
        of_texts(pa.chunked_array([pa.array(["00000000-0000-4000-8000-000000000000", text])]))


def below(folder):
    """A location, and the folder's name in it."""
    return Artifacts(str(folder.parent), S3Settings()), folder.name


def test_places_are_found_again_by_their_row_groups(tmp_path):
    location, folder = below(tmp_path)
    writer = PlanWriter(location, folder, "part.parquet")
    ids = [uuid.uuid4() for _ in range(7)]
    first, first_digest = writer.add(
        "v4",
        1000,
        0,
        [columns(zip(ids[:2], [1, 2], strict=True)), columns([(ids[2], 3)])],
    )
    second, second_digest = writer.add(
        "v3", 2000, 1, [columns(zip(ids[3:], [4, 5, 6, 7], strict=True))]
    )
    writer.close()
    with PlanReader(location, folder) as reader:
        assert [table.column("enqueue_id").to_pylist() for table in reader.groups(first)] == [
            [str(each) for each in some] for some in (ids[:2], ids[2:3])
        ]
        (table,) = reader.groups(second)
    assert table.column("bucket").to_pylist() == [1] * 4
    assert digest_of(table) == second_digest
    assert (
        sum(
            (
                digest_of(pq.ParquetFile(tmp_path / "part.parquet").read_row_group(group))
                for group in range(3)
            ),
            Digest(),
        )
        == first_digest + second_digest
    )


def test_a_plan_without_rows_makes_no_file(tmp_path):
    writer = PlanWriter(*below(tmp_path))
    part, found = writer.add("v4", 1000, 0, [])
    writer.close()
    assert (part.groups, found, list(tmp_path.iterdir())) == (0, Digest(), [])


def test_a_row_group_that_holds_rows_of_two_places_has_another_digest(tmp_path):
    """As somebody may rewrite the files of a plan.

    All rows are there, but nothing is where plan.json says.
    """
    location, folder = below(tmp_path)
    writer = PlanWriter(location, folder, "part.parquet")
    digests = [
        writer.add("v4", slice_ms, 0, [columns([(uuid.uuid4(), 1), (uuid.uuid4(), 2)])])[1]
        for slice_ms in (1000, 2000)
    ]
    writer.close()
    table = pq.read_table(tmp_path / "part.parquet")
    assert digest_of(table).count == 4
    assert digest_of(table) != digests[0] + digests[1]


def test_a_spool_gives_its_rows_back_in_order_and_in_chunks():
    spool = Spool()
    ids = [uuid.uuid4() for _ in range(ROWS_A_GROUP + 3)]
    spool.add(ids[0], 0)
    spool.add_many(*columns((each, number) for number, each in enumerate(ids[1:], 1)))
    spool.add_many(*columns([]))
    chunks = list(spool.chunks())
    assert [len(chunk[0]) for chunk in chunks] == [ROWS_A_GROUP, 3]
    assert b"".join(chunk[0].tobytes() for chunk in chunks) == b"".join(each.bytes for each in ids)
    assert (spool.count, spool.newest_us, chunks[1][1].tolist()) == (
        len(ids),
        len(ids) - 1,
        [ROWS_A_GROUP, ROWS_A_GROUP + 1, ROWS_A_GROUP + 2],
    )
    spool.close()
