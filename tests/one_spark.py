"""How `make test` distributes test files to its processes."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

from tests.spark_files import starts_spark


class OneSpark(LoadFileScheduling):
    """Like `--dist loadfile`, but treats all files that start Spark as one file."""

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if starts_spark(nodeid) else super()._split_scope(nodeid)
