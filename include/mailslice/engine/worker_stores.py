"""What a Python worker of Spark keeps between tasks: one Cassandra session for each settings.

It drops the import cache of the archives that contain Spark's Python code.
"""

import atexit
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from zipimport import zipimporter

from mailslice.model.settings import Settings
from mailslice.stores import Stores, open_stores

_OPEN: dict[str, Stores] = {}


def stores_of(settings: Settings) -> Stores:
    """The stores of this process, opened once: connecting costs 0.3 s, a task a tenth of that. Each
    call looks up anew which tables of the view exist, because a process may live for weeks.
    """
    cassandra, own = settings.cassandra, settings.own
    secret = cassandra.password.get_secret_value() if cassandra.password else ""
    key = f"{cassandra.model_dump_json()}{secret}{own.model_dump_json()}"
    if key not in _OPEN:
        if not _OPEN:
            atexit.register(close_all)
        _OPEN[key] = open_stores(settings)
    _OPEN[key].__dict__.pop("tables", None)
    return _OPEN[key]


@contextmanager
def one_task() -> Iterator[None]:
    """Around the work of a task: drops the zipimporter cache entries.

    Otherwise Spark's `invalidate_caches()` before each task reads the directory of pyspark.zip for
    each package in it: 0.1 s of CPU a task. A later import finds the archive by the path, as at
    first.
    """
    try:
        yield
    finally:
        cache = sys.path_importer_cache
        for path in [path for path, finder in cache.items() if isinstance(finder, zipimporter)]:
            del cache[path]


def close_all() -> None:
    """Close what this process holds; a later `stores_of` connects anew."""
    while _OPEN:
        _OPEN.popitem()[1].close()
