"""All tables of the queue view together, and which of V3 and V4 exist."""

from collections.abc import Sequence
from datetime import datetime
from functools import cached_property

from mailslice.model import crash
from mailslice.model.errors import BadSetting
from mailslice.model.mail import QueueName
from mailslice.model.names import BROWSE_START, CONTENT_START, EVENT_STORE, QueueTable
from mailslice.model.settings import Settings
from mailslice.stores.cassandra import ddl
from mailslice.stores.cassandra.deleted_mails import DeletedMails
from mailslice.stores.cassandra.enqueued_mails import EnqueuedMails
from mailslice.stores.cassandra.session import CassandraSession
from mailslice.stores.cassandra.starts import Start, StartTable
from mailslice.stores.cassandra.table import Statement, Table, applied, insert


class EventStore(Table):
    """A list of events, as text, for each aggregate. `codec.events` decodes them."""

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
        """Appends IF NOT EXISTS. False: another writer has taken this event id."""
        return applied(self._session.execute(self._append, [aggregate, event_id, event]))


class QueueTables:
    """James' tables over one session. `written` gets new rows (MAILSLICE_QUEUE_TABLE)."""

    def __init__(self, session: CassandraSession, settings: Settings) -> None:
        self._session = session
        self._settings = settings
        self.v3 = EnqueuedMails(session, QueueTable.V3)
        self.v4 = EnqueuedMails(session, QueueTable.V4)
        self.written = self.v3 if settings.queue.table is QueueTable.V3 else self.v4
        self.deleted = DeletedMails(session)
        self.browse_starts = StartTable(session, BROWSE_START)
        self.content_starts = StartTable(session, CONTENT_START)
        self.event_store = EventStore(session)

    @cached_property
    def existing(self) -> tuple[EnqueuedMails, ...]:
        """Those of V3 and V4 that exist, V3 first; looked up once. BadSetting: neither exists."""
        return self.existing_now()

    def existing_now(self) -> tuple[EnqueuedMails, ...]:
        """As `existing`, but looked up again: a migration may have made V4 since."""
        names = ddl.tables_of(self._session, self._session.settings.keyspace)
        tables = tuple(rows for rows in (self.v3, self.v4) if rows.table.cql in names)
        if not tables:
            self.require_keyspace()
            raise BadSetting(
                f"keyspace {self._session.settings.keyspace} of Cassandra at "
                f"{self._session.address} has no table of a mail queue; "
                "is MAILSLICE_CASSANDRA_KEYSPACE right? `mailslice queue create` creates them"
            )
        return tables

    def refresh(self) -> None:
        """Looks up `existing` again, for a process that outlives a migration."""
        self.__dict__["existing"] = self.existing_now()

    def extend(self) -> None:
        """As `refresh`, but keeps known tables: a coordinator's schema may be late."""
        known = {*self.existing, *self.existing_now()}
        for rows in known:
            rows.prepare()
        self.__dict__["existing"] = tuple(rows for rows in (self.v3, self.v4) if rows in known)

    def require_keyspace(self) -> None:
        """Raises BadSetting when the keyspace is missing."""
        if ddl.replication_of(self._session, self._session.settings.keyspace) is None:
            raise BadSetting(
                f"MAILSLICE_CASSANDRA_KEYSPACE={self._session.settings.keyspace}: no such keyspace "
                f"on Cassandra at {self._session.address}; "
                "is the name right? `mailslice queue create` creates it"
            )

    def missing(self) -> tuple[str, ...]:
        names = ddl.tables_of(self._session, self._session.settings.keyspace)
        return tuple(
            name for name in ddl.queue_tables(self._settings.queue.table) if name not in names
        )

    def content_start(self, queue: QueueName) -> Start | None:
        """contentStart, or None. James 3.5 and 3.6 have no such table; this creates none."""
        return None if CONTENT_START in self.missing() else self.content_starts.get(queue)

    def insert_starts(self, queue: QueueName, first: datetime) -> None:
        """Writes both starts before a queue's first row: first contentStart, the smaller one. If
        James 3.5 or 3.6 wrote browseStart alone, older rows may exist: a cleanup then writes
        contentStart by them.
        """
        if self.browse_starts.get(queue) is None:
            self.content_starts.insert_first(queue, first)
        crash.point("enqueue:content-start-written")
        self.browse_starts.insert_first(queue, first)

    def create(self, names: Sequence[str] = ()) -> tuple[str, ...]:
        """Creates the keyspace and those of `names` (empty: all tables) that are missing. Returns
        the names of the created tables.
        """
        names = names or ddl.queue_tables(self._settings.queue.table)
        created = ddl.create_queue_tables(self._session, names, self._settings.own.replication)
        self.__dict__.pop("existing", None)
        return created
