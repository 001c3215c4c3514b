"""Whose folders go, with real processes."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mailslice.engine.scratch import scratch_folder

LIVES = """
from mailslice.engine.scratch import scratch_folder

(scratch_folder("one") / "file").touch()
print("made", flush=True)
input()
"""


def test_a_folder_goes_once_its_process_was_killed_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    process = subprocess.Popen(
        [sys.executable, "-c", LIVES],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"TMPDIR": str(tmp_path)},
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == b"made\n"
        (theirs,) = tmp_path.iterdir()
        ours = scratch_folder("one")
        assert set(tmp_path.iterdir()) == {ours, theirs}
        scratch_folder("another")
    finally:
        process.kill()
        process.communicate()
    last = scratch_folder("one")
    assert set(tmp_path.glob("one.*")) == {ours, last}
