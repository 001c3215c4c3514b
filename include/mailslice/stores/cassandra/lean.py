"""Cassandra's driver as it is where numpy is not installed."""

import sys
from importlib.util import find_spec
from types import ModuleType


def without_numpy() -> None:
    """Keeps the driver from importing numpy, for row parsers that nothing here uses: 12 MiB and a
    tenth of a second in each process.

    For processes that are mailslice's own, before their first import of the driver (later it does
    nothing): another program may want those parsers.
    """
    if "numpy" in sys.modules or "cassandra.cython_deps" in sys.modules:
        return
    known = ModuleType("cassandra.cython_deps")  # the driver looks there alone for what there is
    known.HAVE_CYTHON = find_spec("cassandra.row_parser") is not None  # type: ignore[attr-defined]
    known.HAVE_NUMPY = False  # type: ignore[attr-defined]
    sys.modules[known.__name__] = known
