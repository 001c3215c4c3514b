"""The ledger: one row for each run in mailslice's own keyspace, with the whole report."""

import json
from datetime import datetime
from typing import Any

from mailslice.codec.row import epoch_ms
from mailslice.maintenance.artifacts import json_value
from mailslice.maintenance.run_request import NO_QUEUE
from mailslice.model.errors import BadInput
from mailslice.model.mail import QueueName
from mailslice.model.settings import Settings
from mailslice.stores import Stores
from mailslice.stores.own.runs import RunRow

_NEWEST = 20


class Ledger:
    """Reports of runs, newest first."""

    def __init__(self, stores: Stores, settings: Settings) -> None:
        self._stores = stores
        self._retention = settings.duty.retention

    def write(self, report: dict[str, Any]) -> None:
        """Write the run's row. It replaces the row of an earlier try of the same run."""
        row = RunRow(
            run=report["run"],
            duty=report["duty"],
            queue=QueueName(report["queue"] or NO_QUEUE),
            started=datetime.fromisoformat(report["started"]),
            status=report["status"],
            report=json.dumps(report, default=json_value, ensure_ascii=False),
            dag_run=report["dagRun"],
            who=report["who"],
            reason=report["reason"],
            plan_digest=report["planDigest"],
            finished=datetime.fromisoformat(report["finished"]) if report["finished"] else None,
        )
        runs = self._stores.records.runs
        earlier = runs.list(row.duty, row.queue, _NEWEST)
        runs.save(row, self._retention)
        # Cassandra stores milliseconds: a row with the same start in ms is this row, not another.
        at = epoch_ms(row.started)
        own = (old for old in earlier if old.run == row.run and epoch_ms(old.started) != at)
        # Of killed runs only the newest row stays: more would push finished reports out of lists.
        killed = [old for old in earlier if old.run != row.run and old.finished is None]
        for old in (*own, *killed[1:]):
            runs.delete(old)

    def list(
        self, duty: str | None = None, queue: QueueName | None = None, limit: int = 20
    ) -> list[dict[str, Any]]:
        """The newest reports; without a duty or queue, of all."""
        runs = self._stores.existing_runs()
        return [json.loads(row.report) for row in runs.list(duty, queue, limit)] if runs else []

    def last(
        self, duty: str | None = None, queue: QueueName | None = None
    ) -> dict[str, Any] | None:
        """The newest report; None when there is none."""
        return next(iter(self.list(duty, queue, 1)), None)

    def show(self, run: str) -> dict[str, Any]:
        """The report of that run. Raises BadInput naming the newest runs when there is none."""
        runs = self._stores.existing_runs()
        row = runs.get(run) if runs else None
        if row is None:
            known = ", ".join(one["run"] for one in self.list(limit=3)) or "none"
            raise BadInput(f"run {run!r} is not in the ledger; the newest are: {known}")
        return dict(json.loads(row.report))
