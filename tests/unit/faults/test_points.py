"""Crash points: what is armed happens, what is not costs nothing, and the code is asked which there are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mailslice.faults.points import named
from mailslice.model import crash

DUTIES = Path(__file__).parents[2] / "services" / "duties"


def test_a_point_calls_what_is_armed_until_it_is_not() -> None:
    seen: list[str] = []
    crash.arm(seen.append)
    try:
        crash.point("here")
    finally:
        crash.arm(None)
    crash.point("there")
    assert seen == ["here"]


@pytest.mark.parametrize(("at", "code"), [("here", -signal.SIGKILL), ("elsewhere", 0), ("", 0)])
def test_a_process_is_killed_at_the_point_that_its_environment_names(at: str, code: int) -> None:
    program = "from mailslice.model import crash; crash.point('here')"
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, crash.VARIABLE: at}, check=False, timeout=60)
    assert done.returncode == code


def test_the_points_are_those_that_the_code_names() -> None:
    hot_path = named()
    assert {"enqueue:blobs-put", "publish:confirmed", "complete:marked", "delete:marked"} <= hot_path
    assert "apply:locked" not in hot_path
    assert "apply:locked" in named(["duties"])


@pytest.mark.parametrize("duty", sorted(path.name for path in DUTIES.iterdir() if path.is_dir() and named([f"duties/{path.name}"])))
def test_every_point_of_a_duty_is_in_a_test_of_it(duty: str) -> None:
    tests = "".join(file.read_text() for file in (DUTIES / duty).rglob("*.py"))
    missing = {point for point in named([f"duties/{duty}"]) if point not in tests}
    assert not missing
