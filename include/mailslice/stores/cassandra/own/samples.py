"""queue_samples: when a queue was last seen empty, which lets marks go on a shared queue."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from mailslice.model.mail import QueueName
from mailslice.stores.cassandra.own.table import OwnTable
from mailslice.stores.cassandra.table import Statement, insert, select
from mailslice.stores.own.codec import RowCodec


@dataclass(frozen=True, slots=True)
class QueueSample:
    """The queue was empty in both passes, 15 s apart. A proof may count from `first_pass`."""

    first_pass: datetime
    second_pass: datetime


_ROWS = RowCodec(QueueSample)


class QueueSamples(OwnTable):
    """One row a queue: the newest sample wins, whoever writes last."""

    TABLE = "queue_samples"
    SCHEMA = """
        queuename text, first_pass timestamp, second_pass timestamp, PRIMARY KEY (queuename)
    """

    _insert = Statement(insert(("queuename", *_ROWS.columns), "USING TIMESTAMP ?"))
    _read = Statement(select(_ROWS.columns, "queuename = ?"))
    _delete = Statement("DELETE FROM {table} WHERE queuename = ?")

    def save(self, queue: QueueName, sample: QueueSample) -> None:
        """Remember the sample; an older one never replaces a newer."""
        first, second = _ROWS.values(sample)
        self._session.execute(self._insert, [queue, first, second, second * 1000])

    def get(self, queue: QueueName) -> QueueSample | None:
        """The newest sample, or None when the queue was never seen empty."""
        row = self._row(self._read, [queue])
        return None if row is None else _ROWS.record(row)

    def delete(self, queue: QueueName) -> None:
        """Forget the queue."""
        self._session.execute(self._delete, [queue])
