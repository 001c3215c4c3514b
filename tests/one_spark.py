"""How `make test` spreads the files of tests over its processes."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

from tests.spark_files import starts_spark


class OneSpark(LoadFileScheduling):
    """As `--dist loadfile`, with the files that start Spark as if they were one."""

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if starts_spark(nodeid) else super()._split_scope(nodeid)
