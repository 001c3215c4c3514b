"""James' event store: append-only lists of events, an aggregate each, appended by LWT."""

from __future__ import annotations

from mailslice.model.names import EVENT_STORE
from mailslice.stores.cassandra.session import CassandraSession
from mailslice.stores.cassandra.table import Statement, Table, applied, insert


class EventStore(Table):
    """Events as text; their meaning is codec.events' business."""

    _read = Statement("SELECT eventid, event FROM {table} WHERE aggregateid = ?")
    _append = Statement(
        insert(("aggregateid", "eventid", "event"), "IF NOT EXISTS"), idempotent=False
    )

    def __init__(self, session: CassandraSession) -> None:
        super().__init__(session, session.settings.keyspace, EVENT_STORE)

    def events(self, aggregate: str) -> list[tuple[int, str]]:
        """(event id, event) of the aggregate, oldest first."""
        return [(row[0], row[1]) for row in self._session.execute(self._read, [aggregate])]

    def append(self, aggregate: str, event_id: int, event: str) -> bool:
        """Append IF NOT EXISTS; False when another writer has taken this event id."""
        return applied(self._session.execute(self._append, [aggregate, event_id, event]))
