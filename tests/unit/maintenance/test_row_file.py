"""Files of a plan: what is written comes back, and whatever else is refused."""

import uuid
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mailslice.engine import row_files
from mailslice.engine.row_files import (
    Digest,
    PlanReader,
    RowFile,
    RowWriter,
    digest_of,
    read_groups,
)
from mailslice.maintenance.artifacts import Artifacts
from mailslice.maintenance.row_file import read_tables, stream_rows, write_rows
from mailslice.model.errors import BadSetting, PlanRefused
from mailslice.model.mail import EnqueueId
from mailslice.model.settings import S3Settings


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    size: int
    share: float
    last: bool
    body: bytes
    enqueue_id: EnqueueId
    died: datetime | None
    colour: Colour


ROW = Row(
    "ä",
    -(2**62),
    0.1,
    last=True,
    body=b"\0\xff",
    enqueue_id=EnqueueId(uuid.UUID(int=5)),
    died=datetime(2026, 11, 22, 1, 2, 3, 456789, UTC),
    colour=Colour.RED,
)
ROWS = [ROW, replace(ROW, name="", body=b"", died=None), replace(ROW, last=False)]


@pytest.fixture
def location(tmp_path):
    (tmp_path / "run").mkdir()
    return Artifacts(str(tmp_path), S3Settings())


def test_rows_come_back_as_they_were(location):
    file = write_rows(location, "run", "rows.parquet", ROWS, Row)
    assert (file.file, file.rows) == ("rows.parquet", 3)
    assert list(stream_rows(location, "run", file, Row)) == ROWS


def test_no_row_is_no_file(location, tmp_path):
    file = write_rows(location, "run", "rows.parquet", [], Row)
    assert file == RowFile("rows.parquet", 0, str(Digest()))
    assert list(stream_rows(location, "run", file, Row)) == []
    assert not list((tmp_path / "run").iterdir())


def test_rows_are_written_and_read_a_group_at_a_time(location, monkeypatch):
    monkeypatch.setattr(row_files, "ROWS_A_GROUP", 2)
    file = write_rows(location, "run", "rows.parquet", iter(ROWS), Row)
    assert pq.ParquetFile(location.path("run/rows.parquet")).num_row_groups == 2
    assert list(stream_rows(location, "run", file, Row)) == ROWS
    location.remove("run/rows.parquet")
    with pytest.raises(PlanRefused):
        next(stream_rows(location, "run", file, Row))


@pytest.mark.parametrize(
    "rows",
    [
        ROWS[:2],
        ROWS[::-1],
        [*ROWS[:2], replace(ROWS[2], name="a")],
        [*ROWS[:2], replace(ROWS[2], died=None)],
        [*ROWS[:2], replace(ROWS[2], last=True)],
        [*ROWS[:2], replace(ROWS[2], share=0.2)],
        [*ROWS[:2], replace(ROWS[2], body=b"\0")],
    ],
)
def test_other_rows_are_refused(location, rows):
    file = write_rows(location, "run", "rows.parquet", ROWS, Row)
    write_rows(location, "run", "rows.parquet", rows, Row)
    with pytest.raises(PlanRefused, match="was changed"):
        list(stream_rows(location, "run", file, Row))


@pytest.mark.parametrize(
    "columns",
    [
        {"a": ["xy", "z"], "b": ["", "q"]},
        {"a": ["x", "yz"], "b": ["", "q"]},
        {"b": ["xy", "z"], "a": ["", "q"]},
        {"a": ["xy", None], "b": ["", "q"]},
        {"a": ["xy", ""], "b": ["", "q"]},
        {"a": [b"xy", b"z"], "b": ["", "q"]},
        {"a": [1, 2], "b": ["", "q"]},
        {"a": [1, None], "b": ["", "q"]},
        {"a": [1, 0], "b": ["", "q"]},
    ],
)
def test_each_value_type_and_name_counts(columns):
    plain = pa.table({"a": ["xy", "z"], "b": ["", "q"]})
    same = columns == {"a": ["xy", "z"], "b": ["", "q"]}
    assert (digest_of(pa.table(columns)) == digest_of(plain)) is same


def test_how_arrow_holds_the_values_does_not_count():
    whole = pa.table({"a": ["x", "yy", None, "z"], "n": [1, 2, None, 4]})
    parts = pa.concat_tables([whole.slice(0, 1), whole.slice(1)])
    longer = pa.concat_tables([whole, whole])
    assert digest_of(parts) == digest_of(longer.slice(4)) == digest_of(whole)


def test_row_groups_are_read_alone_and_add_up_to_the_file(location):
    writer = RowWriter(location, "run", "rows.parquet")
    writer.add(pa.table({"n": range(5)}), rows_per_group=2)
    file = writer.close()
    assert [group.rows for group in writer.groups] == [2, 2, 1]
    assert RowFile.of("rows.parquet", reversed(writer.groups)) == file
    found = read_groups(location, "run", writer.groups[::-1])
    assert [table.column("n").to_pylist() for _, table in found] == [[4], [2, 3], [0, 1]]
    wrong = replace(writer.groups[1], number=0)
    with pytest.raises(PlanRefused, match="rows of its group 0 have another digest"):
        list(read_groups(location, "run", [wrong]))


@pytest.mark.parametrize("damage", ["gone", "cut", "other columns", "no such group"])
def test_a_file_that_is_gone_or_damaged_is_refused(location, tmp_path, damage):
    writer = RowWriter(location, "run", "rows.parquet")
    writer.add(pa.table({"n": range(5)}))
    file, (group,) = writer.close(), writer.groups
    path = tmp_path / "run" / "rows.parquet"
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    elif damage == "other columns":
        pq.write_table(pa.table({"m": range(5)}), path)
    else:
        group = replace(group, number=7)
    with pytest.raises(PlanRefused):
        list(read_groups(location, "run", [group]))
    if damage != "no such group":
        with pytest.raises(PlanRefused):
            list(read_tables(location, "run", file))


def test_nothing_is_given_of_a_file_whose_last_group_was_changed(location):
    writer = RowWriter(location, "run", "rows.parquet")
    writer.add(pa.table({"n": range(5)}), rows_per_group=2)
    file = writer.close()
    again = RowWriter(location, "run", "rows.parquet")
    again.add(pa.table({"n": [0, 1, 2, 3, 9]}), rows_per_group=2)
    again.close()
    with pytest.raises(PlanRefused, match="was changed"):
        next(read_tables(location, "run", file))


def test_rows_that_are_no_rows_of_that_kind_are_refused(location):
    writer = RowWriter(location, "run", "rows.parquet")
    writer.add(pa.table({"name": ["a"]}))
    with pytest.raises(PlanRefused, match="cannot be read"):
        list(stream_rows(location, "run", writer.close(), Row))


def test_a_disc_that_is_full_is_named_with_the_file():
    with pytest.raises(BadSetting, match=r"^artifacts /dev/\./full: .*No space left on device"):
        write_rows(Artifacts("/dev", S3Settings()), ".", "full", ROWS, Row)


class Streams:
    """A location that keeps the streams which it opened."""

    def __init__(self, location):
        self.opened = []
        self.path = location.path

        def open_input_file(path):
            self.opened.append(location.filesystem.open_input_file(path))
            return self.opened[-1]

        self.filesystem = SimpleNamespace(open_input_file=open_input_file)


@pytest.fixture
def streams(location):
    for name in ("a.parquet", "b.parquet"):
        write_rows(location, "run", name, ROWS, Row)
    return Streams(location)


def test_a_reader_of_a_plan_has_one_file_open_and_none_afterwards(streams):
    with PlanReader(streams, "run") as reader:
        for file in ("a.parquet", "a.parquet", "b.parquet", "a.parquet"):
            assert reader.group(file, 0).num_rows == 3
            assert [stream.closed for stream in streams.opened[:-1]] == [True] * (
                len(streams.opened) - 1
            )
            assert not streams.opened[-1].closed
    assert [stream.closed for stream in streams.opened] == [True, True, True]


def test_a_reader_that_is_left_by_an_error_closes_its_file(streams):
    def read():
        with PlanReader(streams, "run") as reader:
            assert reader.count("a.parquet") == 1
            reader.group("a.parquet", 1)

    with pytest.raises(PlanRefused, match=r"a\.parquet"):
        read()
    assert [stream.closed for stream in streams.opened] == [True]
