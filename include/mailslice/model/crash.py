"""Named points between effects on stores, where tests end the process. Unarmed they do nothing."""

import os
import signal
from collections.abc import Callable

VARIABLE = "MAILSLICE_TEST_CRASH_AT"
"""Names the point at which a process that is started with it ends by SIGKILL."""


def _kill(name: str) -> None:
    if name == os.environ[VARIABLE]:
        os.kill(os.getpid(), signal.SIGKILL)


_on_point: Callable[[str], None] | None = _kill if os.environ.get(VARIABLE) else None


def point(name: str) -> None:
    """Calls the armed hook, if any, with this name."""
    if _on_point is not None:
        _on_point(name)


def arm(on_point: Callable[[str], None] | None) -> None:
    """From now on each point of this process calls `on_point(name)`; None: disarmed."""
    global _on_point  # noqa: PLW0603 - one process, one test
    _on_point = on_point
