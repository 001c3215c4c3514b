"""Gives memory of large contents back to the system at once.

glibc raises its mmap threshold to the size of each freed block (up to 32 MiB); from then on mails of 25 MB come from its arenas, one for each thread,
which keep what is freed: 64 such mails ended at 390 MiB resident, and with a fixed threshold at 210 MiB, in the same budget.
"""

from __future__ import annotations

import ctypes
from functools import cache

_M_MMAP_THRESHOLD = -3
_BYTES = 2 * 1024 * 1024


@cache
def return_large_blocks() -> bool:
    """Fixes the threshold at 2 MiB, once a process; False where the C library has no mallopt (not glibc)."""
    try:
        return bool(ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _BYTES))
    except (AttributeError, OSError, TypeError):
        return False
