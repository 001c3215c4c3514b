"""The contract of artifacts in every kind of location. A subclass gives the fixture `where`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from mailslice.maintenance.artifacts import Artifacts


class ArtifactsContract:
    @pytest.fixture
    def location(self, where: Callable[[str], Artifacts]) -> Artifacts:
        return where("artifacts")

    def test_what_was_written_is_read_listed_and_dated(self, location: Artifacts) -> None:
        before = datetime.now(UTC) - timedelta(seconds=2)
        location.write("runs/d/q/r1/plan.json", b"{}")
        location.write("runs/d/q/r1/plan/rows é+%.parquet", b"\0\xff")
        location.write("runs/d/q/r1/plan.json", b'{"a": 1}')
        assert location.read("runs/d/q/r1/plan.json") == b'{"a": 1}'
        assert location.read("runs/d/q/r1/plan/rows é+%.parquet") == b"\0\xff"
        assert location.files("runs/d") == [
            "runs/d/q/r1/plan.json",
            "runs/d/q/r1/plan/rows é+%.parquet",
        ]
        assert location.files("") == location.files("runs/d")
        written = location.times("runs/d/q/r1/plan")["runs/d/q/r1/plan/rows é+%.parquet"]
        assert before <= written <= datetime.now(UTC) + timedelta(seconds=2)
        modified = location.modified("runs/d/q/r1/plan/rows é+%.parquet")
        assert modified is not None
        assert abs(modified - written) < timedelta(seconds=1)

    def test_what_is_not_there_is_none_and_nothing(self, location: Artifacts) -> None:
        location.write("a/b/c.json", b"")
        assert location.read("a/b/c.json") == b""
        assert (location.read("a/b/other"), location.read("x/y/z")) == (None, None)
        for name in ("a/b/other", "a/b", "x/y/z"):
            assert (location.exists(name), location.modified(name)) == (False, None)
        assert (location.files("x"), location.folders("x"), location.times("x")) == ([], [], {})
        location.remove("x/y")
        location.remove_folder("x")
        assert location.files("") == ["a/b/c.json"]

    def test_folders_are_those_right_below_and_no_name_is_anothers_beginning(
        self, location: Artifacts
    ) -> None:
        for name in ("runs/d/one/f", "runs/d/one/deep/f", "runs/d/oneself/f", "runs/d/file"):
            location.write(name, b"x")
        assert location.folders("runs/d") == ["one", "oneself"]
        assert location.folders("") == ["runs"]
        location.remove_folder("runs/d/one")
        assert location.files("runs") == ["runs/d/file", "runs/d/oneself/f"]
        location.remove("runs/d/file")
        assert location.files("runs") == ["runs/d/oneself/f"]

    def test_locations_beside_each_other_do_not_see_each_other(
        self, where: Callable[[str], Artifacts]
    ) -> None:
        one, other = where("one"), where("one-more")
        one.write("f", b"1")
        other.write("g", b"2")
        assert (one.files(""), other.files("")) == (["f"], ["g"])

    def test_parquet_files_of_pyarrow_are_files_like_others(self, location: Artifacts) -> None:
        location.folder("plan")
        with location.filesystem.open_output_stream(location.path("plan/rows.parquet")) as stream:
            stream.write(b"PAR1")
        assert location.read("plan/rows.parquet") == b"PAR1"
        assert location.files("") == ["plan/rows.parquet"]
        location.write("plan/two", b"2")
        with location.filesystem.open_input_stream(location.path("plan/two")) as stream:
            assert stream.read() == b"2"
        location.remove_folder("plan")
        assert (location.files(""), location.exists("plan/two")) == ([], False)
