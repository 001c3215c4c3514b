"""Cleans up however a test ends. A child process reads a pipe until the test process is gone, even
by SIGKILL.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

_WAIT = "import subprocess, sys; sys.stdin.read(); subprocess.run(sys.argv[1:], check=False)"


@contextmanager
def afterwards(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[None]:
    """Runs the command at the end of the block, or as soon as this process is gone: SIGTERM and
    SIGKILL close its end of the pipe, too.
    """
    words = [sys.executable, "-c", _WAIT, *command]
    quiet = subprocess.DEVNULL
    waiting = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=quiet,
        stderr=quiet,
        env=dict(environment),
        start_new_session=True,
    )
    try:
        yield
    finally:
        waiting.communicate(timeout=600)
