"""James' tables of mailboxes (James ADR-23).

imapUidTable is the truth, messageIdTable its projection by mailbox, mailboxCounters what users see.
mailslice never creates these tables. It writes counters by one update only, which adds a
difference and is sent once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from uuid import UUID

from cassandra.query import PreparedStatement

from mailslice.model.errors import Refused
from mailslice.model.names import (
    IMAP_UID_TABLE,
    MAILBOX,
    MAILBOX_COUNTERS,
    MESSAGE_ID_TABLE,
    MODSEQ,
)
from mailslice.stores.cassandra.ddl import tables_of
from mailslice.stores.cassandra.references import Column, columns_of
from mailslice.stores.cassandra.session import CassandraSession
from mailslice.stores.cassandra.table import Statement, Table, insert, select

SEEN = "flagseen"
FLAGS = ("flaganswered", "flagdeleted", "flagdraft", "flagflagged", "flagrecent", SEEN, "flaguser")
USER_FLAGS = "userflags"
_NEEDED = ("messageid", "mailboxid", "uid", "modseq", SEEN)
_KEYS = {
    IMAP_UID_TABLE: "messageid",
    MESSAGE_ID_TABLE: "mailboxid",
    MAILBOX: "id",
    MAILBOX_COUNTERS: "mailboxid",
    MODSEQ: "mailboxid",
}
"""The partition key of each table."""
_MANY_CELLS = ("set<", "list<", "map<")
"""Prefixes of types with a cell for each member: their column has no single write time."""


@dataclass(frozen=True, slots=True)
class Counters:
    """A mailbox's counters. Without a row both are 0, as in James."""

    count: int
    unseen: int


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message's row in the truth or the projection: the columns that both have, and the newest
    write time of its cells (microseconds; 0: unknown), collections excepted.
    """

    values: Mapping[str, Any]
    written_us: int

    @property
    def message(self) -> UUID | None:
        """The message's id. None: a projection's row of which only later flags are left."""
        message_id: UUID | None = self.values["messageid"]
        return message_id

    @property
    def state(self) -> dict[str, object]:
        """What must be equal in both tables: flags and modSeq."""
        flags = {name: bool(self.values[name]) for name in FLAGS if name in self.values}
        user_flags = frozenset(self.values.get(USER_FLAGS) or ())
        return {**flags, USER_FLAGS: user_flags, "modseq": self.values["modseq"] or 0}


class MailboxTables(Table):
    """The mailbox tables. Scans take (low, high) tokens, and give `message_columns`."""

    _modseq = Statement(f"SELECT nextmodseq FROM {{keyspace}}.{MODSEQ} WHERE mailboxid = ?")
    _exists = Statement(f"SELECT id FROM {{keyspace}}.{MAILBOX} WHERE id = ?")
    _counters = Statement(
        f"SELECT count, unseen FROM {{keyspace}}.{MAILBOX_COUNTERS} WHERE mailboxid = ?"
    )
    _add = Statement(
        f"UPDATE {{keyspace}}.{MAILBOX_COUNTERS} SET count = count + ?, unseen = unseen + ? "
        "WHERE mailboxid = ?",
        idempotent=False,
    )
    _unproject = Statement("DELETE FROM {table} USING TIMESTAMP ? WHERE mailboxid = ? AND uid = ?")

    def __init__(self, session: CassandraSession) -> None:
        super().__init__(session, session.settings.keyspace, MESSAGE_ID_TABLE)

    def require(self, *, truth: bool = True) -> None:
        """Raises Refused naming missing tables or columns. `truth`: imapUidTable is needed, too."""
        messages = {MESSAGE_ID_TABLE, *([IMAP_UID_TABLE] if truth else [])}
        existing = tables_of(self._session, self._keyspace)
        if missing := sorted({MAILBOX, MAILBOX_COUNTERS, *messages} - existing):
            raise Refused(
                f"keyspace {self._keyspace} of Cassandra at {self._session.address} has no table "
                f"{', '.join(missing)}: James' mailbox tables are needed, "
                "and mailslice never creates them; is MAILSLICE_CASSANDRA_KEYSPACE right?"
            )
        for table in sorted(messages, reverse=True):
            if lacking := [name for name in _NEEDED if name not in self._columns(table)]:
                raise Refused(
                    f"{self._keyspace}.{table} has no column {', '.join(lacking)}: it is not the "
                    "table that James makes"
                )

    @cached_property
    def flags(self) -> tuple[str, ...]:
        """Columns of the flags that both tables have; of one if the other is missing."""
        return tuple(name for name in FLAGS if name in self.common_columns)

    @cached_property
    def common_columns(self) -> tuple[str, ...]:
        """All columns that both tables have, keys included."""
        tables = [self._columns(table) for table in (IMAP_UID_TABLE, MESSAGE_ID_TABLE)]
        return tuple(sorted(set.intersection(*(columns for columns in tables if columns))))

    @cached_property
    def message_columns(self) -> tuple[str, ...]:
        """Columns of scans: message id, mailbox id, uid, modSeq, flags, and user flags if any."""
        user_flags = [USER_FLAGS] if USER_FLAGS in self.common_columns else []
        return ("messageid", "mailboxid", "uid", "modseq", *self.flags, *user_flags)

    def scan(self, table: str) -> PreparedStatement:
        """Reads a token range of `table`: messages, or ids with counters or highest modSeqs."""
        others = {
            MAILBOX: ("id",),
            MAILBOX_COUNTERS: ("mailboxid", "count", "unseen"),
            MODSEQ: ("mailboxid", "nextmodseq"),
        }
        columns, token = others.get(table) or self.message_columns, f"token({_KEYS[table]})"
        return self._select(table, columns, f"{token} > ? AND {token} <= ?")

    def _select(self, table: str, columns: Iterable[str], where: str) -> PreparedStatement:
        cql = select(columns, where).replace("{table}", f"{{keyspace}}.{table}")
        return self.prepare_statement(cql)

    @cached_property
    def of_mailbox(self) -> PreparedStatement:
        """The projection's messages of one mailbox: (mailbox id)."""
        return self.prepare_statement(select(self.message_columns, "mailboxid = ?"))

    @cached_property
    def of_messages(self) -> PreparedStatement:
        """The truth's rows of messages in one mailbox: (message ids, mailbox id)."""
        where = "messageid IN ? AND mailboxid = ?"
        return self._select(IMAP_UID_TABLE, self.message_columns, where)

    def of_users(self, users: Iterable[str]) -> dict[UUID, str]:
        """Mailbox -> user (lower case), of these users. Scans the table of mailboxes."""
        names = {user.lower() for user in users}
        statement = self.prepare_statement(f"SELECT id, mailboxbase FROM {{keyspace}}.{MAILBOX}")
        rows = self._session.stream(statement)
        # The base is a user-defined type, which the driver gives as a named tuple.
        owned = ((mailbox, getattr(base, "user", None) or "") for mailbox, base in rows)
        return {mailbox: user.lower() for mailbox, user in owned if user.lower() in names}

    @cached_property
    def has_modseqs(self) -> bool:
        """Whether James' table of modSeqs exists."""
        return MODSEQ in tables_of(self._session, self._keyspace)

    def highest_modseq(self, mailbox: UUID) -> int:
        """The highest modSeq that James assigned in the mailbox; 0 if none is written."""
        rows = self._session.execute(self._modseq, [mailbox]) if self.has_modseqs else []
        return int(rows[0][0] or 0) if rows else 0

    def exists(self, mailbox: UUID) -> bool:
        return bool(self._session.execute(self._exists, [mailbox]))

    def counters(self, mailbox: UUID) -> Counters:
        return _counters(self._session.execute(self._counters, [mailbox]))

    def counters_of_all_replicas(self, mailbox: UUID) -> Counters:
        """The counters at consistency ALL. StoreUnavailable: a replica is away, and may differ."""
        return _counters(self._of_all_replicas(self._counters, [mailbox]))

    def prepare_to_add(self) -> None:
        """Prepares the update, so that a failure to prepare comes before the claim."""
        self._add  # noqa: B018 - a cached property

    def add(self, mailbox: UUID, count: int, unseen: int) -> None:
        """Adds to both counters by one update that is sent once: the driver neither retries it, nor
        tries another host, nor sends it speculatively.

        After any error the update may have been done, or may still be done.
        """
        self._session.execute(self._add, [count, unseen, mailbox])

    def projected(self, mailbox: UUID, uid: int) -> MessageRow | None:
        return self._message(self._session.execute(self._projected, [mailbox, uid]))

    def truth(self, message: UUID, mailbox: UUID, uid: int) -> MessageRow | None:
        return self._message(self._session.execute(self._truth, [message, mailbox, uid]))

    def project(self, row: MessageRow, timestamp_us: int) -> None:
        """Writes a row of the projection with this write time."""
        values = [row.values[name] for name in self.common_columns]
        self._session.execute(self._project, [*values, timestamp_us])

    def unproject(self, mailbox: UUID, uid: int, timestamp_us: int) -> None:
        """Deletes what was written into a row of the projection up to this write time."""
        self._session.execute(self._unproject, [timestamp_us, mailbox, uid])

    def _message(self, rows: Sequence[tuple[Any, ...]]) -> MessageRow | None:
        if not rows:
            return None
        columns = self.common_columns
        values = dict(zip(columns, rows[0], strict=False))
        times = (time for time in rows[0][len(columns) :] if time is not None)
        return MessageRow(values, max(times, default=0))

    def _columns(self, table: str) -> set[str]:
        return {column.name for column in self._schema(table)}

    def _schema(self, table: str) -> Sequence[Column]:
        return columns_of(self._session, self._keyspace.lower()).get(table, ())

    def _written(self, table: str) -> list[str]:
        """Columns of a row with the write times of its cells: each may be written alone."""
        regular = [column for column in self._schema(table) if column.kind == "regular"]
        timed = [column.name for column in regular if not column.type.startswith(_MANY_CELLS)]
        return [*self.common_columns, *(f"WRITETIME({name})" for name in timed)]

    @cached_property
    def _projected(self) -> PreparedStatement:
        columns = self._written(MESSAGE_ID_TABLE)
        return self.prepare_statement(select(columns, "mailboxid = ? AND uid = ?"))

    @cached_property
    def _truth(self) -> PreparedStatement:
        where = "messageid = ? AND mailboxid = ? AND uid = ?"
        return self._select(IMAP_UID_TABLE, self._written(IMAP_UID_TABLE), where)

    @cached_property
    def _project(self) -> PreparedStatement:
        return self.prepare_statement(insert(self.common_columns, "USING TIMESTAMP ?"))


def _counters(rows: Sequence[tuple[Any, ...]]) -> Counters:
    return Counters(int(rows[0][0] or 0), int(rows[0][1] or 0)) if rows else Counters(0, 0)
