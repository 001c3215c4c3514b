"""Computes the frames of a step: in this process while the work is small, else in Spark.

A plan begins in the process. Once it has processed MAILSLICE_DUTY_SMALL_ROWS rows, Spark computes
the rest. Later steps use the engine with which the plan ended.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mailslice.engine.frames import InProcess, Session, SmallFirst
from mailslice.model.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROCESS, SPARK = "process", "Spark"
"""The field `engine` of plan.json."""


class TooLarge(Exception):
    """The work is too large for this process, which may start no Spark. Nothing was changed."""


@dataclass
class Engine:
    """A step's engine. `small_rows` 0: always Spark. `plan`: plan.json, None while planning."""

    settings: Settings
    name: str
    small_rows: int
    plan: Mapping[str, Any] | None = None
    in_process: bool = False
    """Never start Spark; raise TooLarge instead."""
    chosen: Session | None = None
    """The session, once it is chosen."""

    def session(self) -> Session:
        """The session of the step, chosen at the first call."""
        if self.chosen is None:
            self.chosen = self._choose()
        return self.chosen

    @property
    def used(self) -> str:
        """The engine that the step has used."""
        session = self.chosen
        # The last keys may hold many rows: a plan that stayed in the process may end large.
        small = isinstance(session, SmallFirst) and session.started is None and session.is_small
        return PROCESS if session is None or isinstance(session, InProcess) or small else SPARK

    def expect(self, rows: int) -> None:
        """Count rows that a later step will process, so that the plan may turn out large."""
        session = self.session()
        if isinstance(session, SmallFirst):
            session.done += rows

    def _choose(self) -> Session:
        # Under spark-submit the JVM runs already: the work was found to be large before.
        if not self.small_rows or "PYSPARK_GATEWAY_PORT" in os.environ:
            return self._spark()
        if self.plan is None:
            return SmallFirst(self.small_rows, self._spark)
        return InProcess() if self.plan.get("engine") == PROCESS else self._spark()

    def _spark(self) -> SparkSession:
        if self.in_process:
            raise TooLarge(self.name)
        from mailslice.engine.spark_session import spark_session

        return spark_session(self.settings, self.name)
