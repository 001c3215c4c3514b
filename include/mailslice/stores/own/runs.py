"""runs: one row for each run of a duty, kept for the retention by TTL."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import nlargest

from mailslice.model.mail import QueueName
from mailslice.stores.own.codec import RowCodec
from mailslice.stores.own.records import Records, TableShape, Values


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run in the ledger. `report`: the whole report as JSON; `dag_run`: Airflow's run id."""

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
RUNS = TableShape(
    "runs",
    _ROWS.types,
    partition=("duty", "queuename"),
    clustering=("started", "run"),
    newest_first=True,
)


class Runs:
    """The ledger's table."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def save(self, row: RunRow, ttl: timedelta) -> None:
        """Writes the row, over one of the same key. Beyond five years, `ttl` means no expiry."""
        self._records.put(_ROWS.mapping(row), ttl)

    def list(
        self, duty: str | None = None, queue: QueueName | None = None, limit: int = 20
    ) -> list[RunRow]:
        """The newest runs first. With both `duty` and `queue`, reads their one partition only."""
        requested: Values = {"duty": duty, "queuename": queue}
        rows = (
            _ROWS.of_mapping(row)
            for partition in ([requested] if duty and queue else self._records.partitions())
            if duty in {None, partition["duty"]} and queue in {None, partition["queuename"]}
            for row in self._records.rows(partition, limit)
        )
        return nlargest(limit, rows, key=lambda row: (row.started, row.run))

    def queues(self, duty: str) -> Sequence[QueueName]:
        """The queues that the duty has run on, with NO_QUEUE and deleted ones. Reads keys only."""
        keys = self._records.partitions()
        return [QueueName(key["queuename"]) for key in keys if key["duty"] == duty]

    def newest(
        self, limit: int, duties: Iterable[str] | None = None, queues: Sequence[QueueName] = ()
    ) -> Iterable[Sequence[RunRow]]:
        """The newest rows, at most `limit` a duty and queue; of all partitions without `duties`."""
        partitions: Iterable[Values] = (
            self._records.partitions()
            if duties is None
            else ({"duty": duty, "queuename": queue} for duty in duties for queue in queues)
        )
        by_partition: dict[tuple[str, QueueName], list[RunRow]] = {}
        for values in self._records.first_rows(partitions, limit):
            row = _ROWS.of_mapping(values)
            by_partition.setdefault((row.duty, row.queue), []).append(row)
        return by_partition.values()

    def get(self, run: str) -> RunRow | None:
        key = next((key for key in self._records.stored_keys() if key["run"] == run), None)
        row = key and self._records.get(key)
        return _ROWS.of_mapping(row) if row else None

    def delete(self, row: RunRow) -> None:
        values = _ROWS.mapping(row)
        self._records.remove({name: values[name] for name in RUNS.key})
