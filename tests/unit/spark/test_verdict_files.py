"""Verdicts as Parquet: read back as written, and a digest that tells every change."""

from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import ArrowInvalid, fs

from mailslice.spark.plan_files import Digest
from mailslice.spark.verdict_files import Judged, JudgedWriter, digest_of_judged, read_judged

ROW = Judged(
    "id",
    "m-\ud83d\ude00-1".encode("utf-16", "surrogatepass").decode("utf-16"),
    "lost",
    "because",
    "v4",
    1,
    0,
    2,
    "",
)


class Place:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.filesystem = fs.LocalFileSystem()

    def path(self, name: str) -> str:
        return str(self.folder / name)


def test_rows_come_back_as_they_were_written(tmp_path):
    rows = [replace(ROW, enqueue_id=f"id-{number}", slice_ms=number) for number in range(12_345)]
    writer = JudgedWriter(Place(tmp_path), "a.parquet")
    for at in range(0, len(rows), 1000):
        writer.add(rows[at : at + 1000])
    writer.close()
    assert [row for batch in read_judged(Place(tmp_path), ["a.parquet"]) for row in batch] == rows
    assert writer.digest == digest_of_judged(rows) == digest_of_judged(reversed(rows))
    assert writer.digest.count == len(rows)


def test_no_row_no_file(tmp_path):
    writer = JudgedWriter(Place(tmp_path), "a.parquet")
    writer.add([])
    writer.close()
    assert (list(tmp_path.iterdir()), writer.digest) == ([], Digest())


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "ghost"},
        {"why": "x"},
        {"name": "x"},
        {"decision": "x"},
        {"bucket": 1},
        {"enqueued_ms": 3},
        {"table": "v3"},
    ],
)
def test_every_column_counts_in_the_digest(change):
    assert digest_of_judged([ROW]) != digest_of_judged([replace(ROW, **change)])
    assert digest_of_judged([ROW, ROW]) != digest_of_judged([ROW])


def test_what_is_no_parquet_is_an_error(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1nonsense")
    with pytest.raises(ArrowInvalid):
        list(read_judged(Place(tmp_path), ["a.parquet"]))


def test_the_line_that_people_see():
    assert replace(ROW, name="m").line() == {
        "enqueueId": "id",
        "name": "m",
        "verdict": "lost",
        "why": "because",
    }
