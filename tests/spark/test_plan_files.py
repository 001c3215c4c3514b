"""Plan files: what is written is found again place by place, and the digest depends on rows alone."""

import uuid

import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from mailslice.spark.plan_files import ROWS_A_GROUP, Digest, PlanReader, PlanWriter, digest_of, digest_of_table
from mailslice.spark.spool import Spool

ROWS = st.lists(st.tuples(st.uuids(version=4).map(str), st.integers(0, 2**62)), max_size=20, unique_by=lambda row: row[0])


def digest(rows):
    return digest_of("v4", 1000, 0, [row[0] for row in rows], [row[1] for row in rows], why="why")


@given(ROWS, st.randoms())
def test_the_digest_does_not_depend_on_order_or_layout(rows, random):
    shuffled = list(rows)
    random.shuffle(shuffled)
    cut = len(rows) // 2
    assert digest(rows) == digest(shuffled) == digest(shuffled[:cut]) + digest(shuffled[cut:])
    assert Digest.parse(str(digest(rows))) == digest(rows)


@given(ROWS.filter(bool))
def test_the_digest_changes_with_any_column_and_with_a_row_too_many_or_too_few(rows):
    ids, times = [row[0] for row in rows], [row[1] for row in rows]
    base = digest(rows)
    others = [
        digest_of("v3", 1000, 0, ids, times, why="why"),
        digest_of("v4", 2000, 0, ids, times, why="why"),
        digest_of("v4", 1000, 1, ids, times, why="why"),
        digest_of("v4", 1000, 0, ids, times, why="not"),
        digest_of("v4", 1000, 0, ids, [times[0] + 1, *times[1:]], why="why"),
        digest_of("v4", 1000, 0, ids[1:], times[1:], why="why"),
        digest_of("v4", 1000, 0, [*ids, ids[0]], [*times, times[0]], why="why"),
    ]
    assert base not in others


def test_a_pair_of_equal_rows_does_not_cancel_itself_out():
    """An exclusive or alone would not see it; the sum and the count do."""
    row = (str(uuid.uuid4()), 1)
    assert digest([row, row]) != Digest()
    assert digest([row, row]).xor == 0


def test_places_are_found_again_by_their_row_groups(tmp_path):
    filesystem = fs.LocalFileSystem()
    writer = PlanWriter(filesystem, str(tmp_path / "part.parquet"), "part.parquet")
    ids = [str(uuid.uuid4()) for _ in range(7)]
    first, first_digest = writer.add("v4", 1000, 0, [(ids[:2], [1, 2]), (ids[2:3], [3])], "deleted mark")
    second, second_digest = writer.add("v3", 2000, 1, [(ids[3:], [4, 5, 6, 7])], "deleted mark")
    writer.close()
    with PlanReader(filesystem, str(tmp_path)) as reader:
        assert [table.column("enqueue_id").to_pylist() for table in reader.groups(first)] == [ids[:2], ids[2:3]]
        (table,) = reader.groups(second)
    assert table.column("bucket").to_pylist() == [1] * 4
    assert digest_of_table(table) == second_digest
    assert (
        sum((digest_of_table(pq.ParquetFile(tmp_path / "part.parquet").read_row_group(group)) for group in range(3)), Digest()) == first_digest + second_digest
    )


def test_a_plan_without_rows_makes_no_file(tmp_path):
    writer = PlanWriter(fs.LocalFileSystem(), str(tmp_path / "part.parquet"), "part.parquet")
    part, found = writer.add("v4", 1000, 0, [], "why")
    writer.close()
    assert (part.groups, found, list(tmp_path.iterdir())) == (0, Digest(), [])


def test_a_spool_gives_its_rows_back_in_order_and_in_chunks():
    spool = Spool()
    ids = [uuid.uuid4() for _ in range(ROWS_A_GROUP + 3)]
    for number, each in enumerate(ids):
        spool.add(each, number)
    chunks = list(spool.chunks())
    assert [len(chunk[0]) for chunk in chunks] == [ROWS_A_GROUP, 3]
    assert [text for chunk in chunks for text in chunk[0]] == [str(each) for each in ids]
    assert (spool.count, spool.newest_us, chunks[1][1]) == (len(ids), len(ids) - 1, [ROWS_A_GROUP, ROWS_A_GROUP + 1, ROWS_A_GROUP + 2])
    spool.close()
