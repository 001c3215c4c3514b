"""Loads Cassandra's driver as if numpy were not installed."""

import sys
from importlib.util import find_spec
from types import ModuleType


def without_numpy() -> None:
    """Keeps the driver from importing numpy (12 MiB, 0.1 s a process) for row parsers that are not
    used. For mailslice's own processes, before the first import of the driver.
    """
    if "numpy" in sys.modules or "cassandra.cython_deps" in sys.modules:
        return
    known = ModuleType("cassandra.cython_deps")  # the driver asks this module alone
    known.HAVE_CYTHON = find_spec("cassandra.row_parser") is not None  # type: ignore[attr-defined]
    known.HAVE_NUMPY = False  # type: ignore[attr-defined]
    sys.modules[known.__name__] = known
