"""browseStart, where browsing begins, and contentStart, the first slice that may still hold rows.

One row a queue. contentStart is never after browseStart. James writes both, too.
"""

from dataclasses import dataclass
from datetime import datetime

from cassandra.query import PreparedStatement

from mailslice.codec.row import epoch_ms, instant
from mailslice.model.mail import QueueName
from mailslice.stores.cassandra.session import CassandraSession
from mailslice.stores.cassandra.table import Statement, Table, applied


@dataclass(frozen=True, slots=True)
class Start:
    """A start and when it was written, microseconds since the epoch."""

    value: datetime
    written_us: int


class StartTable(Table):
    """BROWSE_START or CONTENT_START. The only value column has the name of the table."""

    _read = Statement("SELECT {column}, WRITETIME({column}) FROM {table} WHERE queuename = ?")
    _insert_first = Statement(
        "INSERT INTO {table} (queuename, {column}) VALUES (?, ?) IF NOT EXISTS", idempotent=False
    )
    _write = Statement("INSERT INTO {table} (queuename, {column}) VALUES (?, ?) USING TIMESTAMP ?")

    def __init__(self, session: CassandraSession, name: str) -> None:
        super().__init__(session, session.settings.keyspace, name)
        self._column = name

    def prepare_statement(self, cql: str, **options: bool) -> PreparedStatement:
        """As of any table. `{column}` stands for the start's column."""
        return super().prepare_statement(cql.replace("{column}", self._column), **options)

    def get(self, queue: QueueName) -> Start | None:
        """The start, at the settings' consistency, or None when none is written."""
        rows = self._session.execute(self._read, [queue])
        if not rows or rows[0][0] is None:
            return None
        return Start(instant(rows[0][0]), rows[0][1])

    def insert_first(self, queue: QueueName, value: datetime) -> bool:
        """Writes the start IF NOT EXISTS; returns whether it did. Reads first: an LWT is costly."""
        if self.get(queue) is not None:
            return False
        return applied(self._session.execute(self._insert_first, [queue, epoch_ms(value)]))

    def write(self, queue: QueueName, value: datetime, timestamp_us: int) -> None:
        """Writes the start with this write time. A value with a later write time stays."""
        self._session.execute(self._write, [queue, epoch_ms(value), timestamp_us])
