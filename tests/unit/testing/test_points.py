"""Crash points: what is armed happens, what is not costs nothing, and the code is asked which there
are.
"""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import mailslice
from mailslice.model import crash
from mailslice.testing.faults.points import HOT_PATH, named

PACKAGE = Path(mailslice.__file__).parent
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
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, crash.VARIABLE: at},
        check=False,
        timeout=60,
    )
    assert done.returncode == code


def test_the_points_are_those_that_the_code_names() -> None:
    hot_path = named()
    assert {
        "enqueue:blobs-put",
        "publish:confirmed",
        "complete:marked",
        "delete:marked",
    } <= hot_path
    assert "apply:locked" not in hot_path
    assert "apply:locked" in named(["maintenance", "duties"])


@pytest.mark.parametrize(
    "duty",
    sorted(
        path.name for path in DUTIES.iterdir() if path.is_dir() and named([f"duties/{path.name}"])
    ),
)
def test_every_point_of_a_duty_is_in_a_test_of_it(duty: str) -> None:
    tests = "".join(file.read_text() for file in (DUTIES / duty).rglob("*.py"))
    missing = {point for point in named([f"duties/{duty}"]) if point not in tests}
    assert not missing


def test_every_point_of_the_runner_is_in_a_test_of_a_duty() -> None:
    tests = "".join(file.read_text() for file in DUTIES.rglob("*.py"))
    assert {point for point in named(["maintenance"]) if point not in tests} == set()


def uses(tree: ast.AST) -> tuple[int, int]:
    """How often the module of crash points is used, and how often by a call of `crash.point` with a
    name.
    """
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "crash"]
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "crash.point"
    ]
    return len(names), sum(
        len(call.args) == 1 and isinstance(call.args[0], ast.Constant) for call in calls
    )


@pytest.mark.parametrize(
    "package",
    sorted(path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"),
)
def test_every_point_of_the_code_is_in_the_registry(package: str) -> None:
    """A point that is named in another way (a function handed on, a name that is made) would be one
    at which nothing is ever killed.
    """
    packages = (*HOT_PATH, "duties", "maintenance")
    for file in (PACKAGE / package).rglob("*.py"):
        text = file.read_text()
        if file.relative_to(PACKAGE).as_posix() in {
            "model/crash.py",
            "testing/faults/child.py",
        }:  # they make and arm them
            continue
        used, named_there = uses(ast.parse(text))
        assert used == named_there, file
        assert "_crash" not in text, file
        assert "from mailslice.model.crash import" not in text, file
        assert not used or package in packages, (
            f"{file}: no test kills at the points of this package"
        )


def test_the_registry_has_no_point_that_the_code_does_not_name() -> None:
    text = "".join(
        file.read_text()
        for package in (*HOT_PATH, "duties")
        for file in (PACKAGE / package).rglob("*.py")
    )
    points = named((*HOT_PATH, "duties"))
    assert {point for point in points if f'crash.point("{point}")' not in text} == set()
    assert all(len(point.split(":")) == 2 for point in points)
    assert {
        "release:row",
        "quarantine:kept",
        "stage:sent-written",
        "report:enqueued",
        "handler:sent-to",
    } <= named()
