from pathlib import Path

import pytest

from stack.program import write_once


def test_what_is_there_stays(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    assert [write_once(file, text) for text in ("first", "second")] == ["first", "first"]
    assert file.read_text() == "first"
    assert file.stat().st_mode & 0o077 == 0
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_an_empty_file_of_a_disk_that_was_full_counts_as_missing(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.touch()
    assert write_once(file, "first") == "first"
    assert file.read_text() == "first"


def test_a_write_that_fails_leaves_nothing_to_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space left"):
            write_once(tmp_path / "secret", "first")
    assert not (tmp_path / "secret").exists()
    assert write_once(tmp_path / "secret", "second") == "second"
