"""browseStart and contentStart: one row a queue. James writes both beside us."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from cassandra.query import PreparedStatement

from mailslice.codec.row import epoch_ms, instant
from mailslice.model.mail import QueueName
from mailslice.model.names import BROWSE_START, CONTENT_START
from mailslice.stores.cassandra.session import CassandraSession


@dataclass(frozen=True, slots=True)
class Start:
    """A start and when it was written, microseconds since the epoch."""

    value: datetime
    written_us: int


class _Starts:
    """A table whose one column is called like the table itself."""

    def __init__(self, session: CassandraSession, table: str) -> None:
        self._session = session
        self._column = table
        self._name = f"{session.settings.keyspace}.{table}"

    def read(self, queue: QueueName) -> Start | None:
        """The start, at the settings' consistency, or None when none is written."""
        rows = self._session.execute(self._read, [queue])
        if not rows or rows[0][0] is None:
            return None
        return Start(instant(rows[0][0]), rows[0][1])

    def insert_first(self, queue: QueueName, value: datetime) -> bool:
        """Write the start IF NOT EXISTS, as James does for the first mail; whether it was written.

        A plain read goes first: nearly always there is a start, and an LWT costs four round trips.
        """
        if self.read(queue) is not None:
            return False
        return bool(self._session.execute(self._insert_first, [queue, epoch_ms(value)])[0][0])

    def write(self, queue: QueueName, value: datetime, timestamp_us: int) -> None:
        """Write the start with this write time; a value that was written later stays."""
        self._session.execute(self._write, [queue, epoch_ms(value), timestamp_us])

    @cached_property
    def _read(self) -> PreparedStatement:
        return self._session.prepare(
            f"SELECT {self._column}, WRITETIME({self._column}) FROM {self._name} WHERE queuename = ?"
        )

    @cached_property
    def _insert_first(self) -> PreparedStatement:
        return self._session.prepare(
            f"INSERT INTO {self._name} (queuename, {self._column}) VALUES (?, ?) IF NOT EXISTS",
            idempotent=False,
        )

    @cached_property
    def _write(self) -> PreparedStatement:
        return self._session.prepare(
            f"INSERT INTO {self._name} (queuename, {self._column}) VALUES (?, ?) USING TIMESTAMP ?"
        )


class BrowseStarts(_Starts):
    """Where browsing begins."""

    def __init__(self, session: CassandraSession) -> None:
        super().__init__(session, BROWSE_START)


class ContentStarts(_Starts):
    """Before it, rows are deleted; never after browseStart."""

    def __init__(self, session: CassandraSession) -> None:
        super().__init__(session, CONTENT_START)
