"""A test that is killed leaves nothing up."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.acceptance.ending import afterwards

ROOT = Path(__file__).resolve().parents[2]


def touching(file):
    return [sys.executable, "-c", f"import pathlib; pathlib.Path({str(file)!r}).touch()"]


def test_the_command_is_run_at_the_end_of_the_block(tmp_path):
    with afterwards(touching(tmp_path / "ended"), os.environ):
        time.sleep(0.2)
        assert not (tmp_path / "ended").exists()
    assert (tmp_path / "ended").exists()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_it_is_run_when_the_process_is_killed(tmp_path, how):
    head = "import os, time\nfrom tests.acceptance.ending import afterwards\n"
    code = (
        f"{head}with afterwards({touching(tmp_path / 'ended')}, os.environ):\n    print('up', "
        "flush=True)\n    time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as killed:
        assert killed.stdout.readline() == "up\n"
        assert not (tmp_path / "ended").exists()
        killed.send_signal(how)
        killed.wait(timeout=30)
    deadline = time.monotonic() + 30
    while not (tmp_path / "ended").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (tmp_path / "ended").exists()
