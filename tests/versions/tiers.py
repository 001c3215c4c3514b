"""Runs tests of other tiers against servers of another version."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from mailslice.model.settings import clone_root

_LONGEST_RUN = 1500.0


def run_tests(services: Mapping[str, str], folder: Path, *arguments: str, **environ: str) -> int:
    """Runs pytest with these MAILSLICE_* variables. All tests must pass; returns their number.

    The settings and pytest's output are written to `folder`.
    """
    settings = folder / "settings.env"
    settings.write_text("".join(f"{name}={value}\n" for name, value in services.items()))
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("MAILSLICE_", "PYTEST_"))}
    tests = {
        "MAILSLICE_TEST_SETTINGS": str(settings),
        "MAILSLICE_REQUIRE_SERVICES": "1",
        "MAILSLICE_TEST_SERVICES_END": "1",
        "PYTHONPATH": f"{clone_root() / 'include'}",
    }
    options = ["-q", "-p", "no:cacheprovider", "--maxfail=3"]  # more failures would hide the first
    command = [sys.executable, "-m", "pytest", *options, *arguments]
    done = subprocess.run(
        command,
        cwd=clone_root(),
        env={**outside, **tests, **environ},
        capture_output=True,
        text=True,
        timeout=_LONGEST_RUN,
        check=False,
    )
    (folder / "pytest.log").write_text(done.stdout + done.stderr)
    return passed(done)


def passed(done: subprocess.CompletedProcess[str]) -> int:
    """The number of passed tests. Asserts that all selected tests passed, and at least one."""
    last = done.stdout.strip().rpartition("\n")[2]
    count = re.search(r"(\d+) passed", last)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert count, last
    assert "skipped" not in last, done.stdout[-3000:]
    print(last)
    return int(count[1])
