"""Crash points: named places between writes to stores, where tests kill the process."""

import os
import signal
from collections.abc import Callable

VARIABLE = "MAILSLICE_TEST_CRASH_AT"
"""The environment variable with the name of the point at which the process kills itself."""


def _kill(name: str) -> None:
    if name == os.environ[VARIABLE]:
        os.kill(os.getpid(), signal.SIGKILL)


_on_point: Callable[[str], None] | None = _kill if os.environ.get(VARIABLE) else None


def point(name: str) -> None:
    """Calls the armed hook with this name. Does nothing if none is armed."""
    if _on_point is not None:
        _on_point(name)


def arm(on_point: Callable[[str], None] | None) -> None:
    """Makes each point of this process call `on_point(name)` from now on. None disarms them."""
    global _on_point  # noqa: PLW0603 - one process, one test
    _on_point = on_point
