"""Standard streams as shells and service managers leave them: closed, full, or without a reader."""

import errno
import io
import logging
import os
import select
import sys
import threading
from contextlib import suppress
from typing import Any, BinaryIO

from mailslice.codec.shown import ShownFormatter

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_BUFFER = 64 * 1024
"""Bytes that a pipe holds."""
_POLL_SECONDS = 0.5
"""Seconds between the looks of a waiting read at its stop event."""


class StoppedError(Exception):
    """The reader was told to stop. Not an OSError: those are errors of the stream."""


def stoppable(stream: BinaryIO, stop: threading.Event) -> BinaryIO:
    """`stream`, whose reads raise StoppedError within a second once `stop` is set.

    Without it a process would wait for ever for a thread that reads an open and silent pipe.
    """
    try:
        number = stream.fileno()
    except OSError:  # bytes in memory, which nobody waits for
        return stream
    return io.BufferedReader(_Stoppable(number, stop), _BUFFER)


class _Stoppable(io.RawIOBase):
    def __init__(self, number: int, stop: threading.Event) -> None:
        self._number = number
        self._stop = stop

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._stop.is_set():
            if select.select([self._number], [], [], _POLL_SECONDS)[0]:
                return os.readv(self._number, [buffer])
        raise StoppedError


class _Stderr(io.FileIO):
    """Output that stderr cannot take (disk full, no reader) is dropped; no exit code changes."""

    def write(self, data: Any, /) -> int:
        with suppress(OSError):
            return super().write(data)
        return len(data)


def open_streams() -> None:
    """Opens /dev/null for each closed standard stream (`<&-`, a service manager).

    Otherwise Python prints stderr on stdout, and the next socket gets the free descriptor.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)  # a worker's processes need it, too
            mode = "r" if number == 0 else "w"
            stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
    buffer = io.BufferedWriter(_Stderr(2, "w", closefd=False))
    sys.stderr = io.TextIOWrapper(buffer, sys.stderr.encoding, line_buffering=True)
    if os.environ.get("COLUMNS") == "0":  # a terminal of unknown width: rich shows nothing
        del os.environ["COLUMNS"]


def forget_stdout() -> None:
    """Discard what is buffered: the interpreter's flush at exit must not fail, too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def log_infos() -> None:
    """Logs infos on stderr, with the time: for processes that run for days."""
    log = logging.getLogger("mailslice")
    log.setLevel(min(log.level, logging.INFO))
    for handler in logging.getLogger().handlers:
        handler.filters.clear()
        handler.setFormatter(ShownFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
