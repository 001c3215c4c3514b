"""Standard streams as shells and service managers leave them: closed, full, or without a reader."""

from __future__ import annotations

import errno
import os
import sys

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def open_streams() -> None:
    """A standard stream that was closed, as by `<&-` or a service manager, reads as empty and takes anything.

    Python has None there, and prints what is for a closed stderr on stdout; and the next socket to be opened would get the free number.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))  # noqa: SIM115 - open until the end


def forget_stdout() -> None:
    """What is still buffered cannot be written: the interpreter's own flush at exit must not complain, either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
