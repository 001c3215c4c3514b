"""Named points at which a test kills the process, to see that a second run ends in the same state."""

from __future__ import annotations

import os
import signal

VARIABLE = "MAILSLICE_TEST_CRASH_AT"


def point(name: str) -> None:
    """Die here by SIGKILL when the environment names this point; else nothing."""
    if os.environ.get(VARIABLE) == name:
        os.kill(os.getpid(), signal.SIGKILL)
