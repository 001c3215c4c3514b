"""James' event store: append-only lists of events, an aggregate each, appended by LWT."""

from __future__ import annotations

from functools import cached_property

from cassandra.query import PreparedStatement

from mailslice.model.names import EVENT_STORE
from mailslice.stores.cassandra.session import CassandraSession


class EventStore:
    """Events as text; what they say is codec.events' business."""

    def __init__(self, session: CassandraSession) -> None:
        self._session = session
        self._name = f"{session.settings.keyspace}.{EVENT_STORE}"

    def events(self, aggregate: str) -> list[tuple[int, str]]:
        """(event id, event) of the aggregate, oldest first."""
        return [(row[0], row[1]) for row in self._session.execute(self._read, [aggregate])]

    def append(self, aggregate: str, event_id: int, event: str) -> bool:
        """Append IF NOT EXISTS; False when another writer has taken this event id."""
        return bool(self._session.execute(self._append, [aggregate, event_id, event])[0][0])

    @cached_property
    def _read(self) -> PreparedStatement:
        return self._session.prepare(
            f"SELECT eventid, event FROM {self._name} WHERE aggregateid = ?"
        )

    @cached_property
    def _append(self) -> PreparedStatement:
        return self._session.prepare(
            f"INSERT INTO {self._name} (aggregateid, eventid, event) VALUES (?, ?, ?) IF NOT EXISTS",
            idempotent=False,
        )
