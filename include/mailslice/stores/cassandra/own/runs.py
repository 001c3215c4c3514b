"""runs: one row for each run of a duty, kept for the retention by TTL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from mailslice.codec.row import epoch_ms
from mailslice.model.mail import QueueName
from mailslice.stores.cassandra.own.rows import RowCodec
from mailslice.stores.cassandra.own.table import OwnTable, ttl_seconds
from mailslice.stores.cassandra.table import Statement, insert, select


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run as the ledger has it.

    `report` is the whole report as JSON, `dag_run` Airflow's run id.
    """

    run: str
    duty: str
    queue: QueueName
    started: datetime
    status: str
    report: str = "{}"
    dag_run: str | None = None
    who: str | None = None
    reason: str | None = None
    plan_digest: str | None = None
    finished: datetime | None = None


_ROWS = RowCodec(RunRow, queue="queuename")
_KEY = ("duty", "queuename", "started", "run")
_PARTITION = "duty = ? AND queuename = ?"


class Runs(OwnTable):
    """The ledger's table."""

    TABLE = "runs"
    SCHEMA = """
        duty text, queuename text, started timestamp, run text, dag_run text, who text, reason text,
        status text, plan_digest text, finished timestamp, report text,
        PRIMARY KEY ((duty, queuename), started, run)
    """
    OPTIONS = "CLUSTERING ORDER BY (started DESC, run ASC)"

    _insert = Statement(insert(_ROWS.columns, "USING TTL ?"))
    _newest = Statement(select(_ROWS.columns, f"{_PARTITION} LIMIT ?"))
    _one = Statement(select(_ROWS.columns, f"{_PARTITION} AND started = ? AND run = ?"))
    _keys = Statement(select(_KEY))
    _partitions = Statement("SELECT DISTINCT duty, queuename FROM {table}")
    _delete = Statement(f"DELETE FROM {{table}} WHERE {_PARTITION} AND started = ? AND run = ?")

    def save(self, row: RunRow, ttl: timedelta) -> None:
        """Write the row over one of the same run and start. More than five years: for ever."""
        self._session.execute(self._insert, [*_ROWS.values(row), ttl_seconds(ttl)])

    def list(
        self, duty: str | None = None, queue: QueueName | None = None, limit: int = 20
    ) -> list[RunRow]:
        """The newest runs first, of one duty or queue or of all."""
        rows = [
            _ROWS.record(row)
            for of_duty, of_queue in self._session.stream(self._partitions)
            if duty in {None, of_duty} and queue in {None, of_queue}
            for row in self._session.execute(self._newest, [of_duty, of_queue, limit])
        ]
        return sorted(rows, key=lambda row: (row.started, row.run), reverse=True)[:limit]

    def newest(self, each: int) -> Iterator[Sequence[RunRow]]:
        """The newest rows of every duty and queue, at most so many of each, newest first."""
        for duty, queue in self._session.stream(self._partitions):
            rows = self._session.execute(self._newest, [duty, queue, each])
            yield [_ROWS.record(row) for row in rows]

    def get(self, run: str) -> RunRow | None:
        """The run of this id, or None."""
        for key in self._session.stream(self._keys):
            if key[-1] == run:
                row = self._row(self._one, key)
                return None if row is None else _ROWS.record(row)
        return None

    def delete(self, row: RunRow) -> None:
        """Delete the row."""
        self._session.execute(self._delete, [row.duty, row.queue, epoch_ms(row.started), row.run])
