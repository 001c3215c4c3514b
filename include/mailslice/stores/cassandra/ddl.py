"""Creates James' tables of the queue view (tests/golden/ddl), and keyspaces, where missing."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from cassandra.protocol import ConfigurationException

from mailslice.model.errors import BadSetting
from mailslice.model.names import (
    BROWSE_START,
    CONTENT_START,
    DELETED_MAILS,
    EVENT_STORE,
    QueueTable,
)
from mailslice.stores.cassandra.references import columns_of, partition_key
from mailslice.stores.cassandra.session import CassandraSession

_UNCACHED = "caching = {'keys': 'ALL', 'rows_per_partition': 'NONE'}"
_CACHED = "caching = {'keys': 'ALL', 'rows_per_partition': '10'}"
_WINDOWED = (
    "compaction = {'class': 'TimeWindowCompactionStrategy', "
    "'compaction_window_unit': 'HOURS', 'compaction_window_size': '1'}"
)
_YOUNG = timedelta(minutes=1)
_REPLICATION = re.compile(
    r"\{\s*'[\w.-]+'\s*:\s*'?[\w.-]+'?\s*(?:,\s*'[\w.-]+'\s*:\s*'?[\w.-]+'?\s*)*\}", re.ASCII
)


def _enqueued(frozen: bool) -> str:
    def collection(inner: str) -> str:
        return f"frozen<{inner}>" if frozen else inner

    return f"""(
        queuename text,
        timerangestart timestamp,
        bucketid int,
        enqueueid uuid,
        enqueuedtime timestamp,
        name text,
        state text,
        sender text,
        recipients {collection("list<text>")},
        attributes {collection("map<text, blob>")},
        perrecipientspecificheaders {collection("list<frozen<tuple<text, text, text>>>")},
        errormessage text,
        remotehost text,
        remoteaddr text,
        lastupdated timestamp,
        headerblobid text,
        bodyblobid text,
        PRIMARY KEY ((queuename, timerangestart, bucketid), enqueueid)
    ) WITH {_WINDOWED} AND {_UNCACHED}"""


_TABLES: Mapping[str, str] = {
    QueueTable.V4.cql: _enqueued(frozen=True),
    QueueTable.V3.cql: _enqueued(frozen=False),
    DELETED_MAILS: f"""(
        queuename text,
        enqueueid uuid,
        PRIMARY KEY ((queuename, enqueueid))
    ) WITH compaction = {{'class': 'TimeWindowCompactionStrategy'}}
    AND bloom_filter_fp_chance = 0.01 AND {_UNCACHED}""",
    BROWSE_START: f"(queuename text PRIMARY KEY, browsestart timestamp) WITH {_UNCACHED}",
    CONTENT_START: f"(queuename text PRIMARY KEY, contentstart timestamp) WITH {_UNCACHED}",
    EVENT_STORE: f"""(
        aggregateid text,
        eventid int,
        snapshot int static,
        event text,
        PRIMARY KEY (aggregateid, eventid)
    ) WITH compaction = {{'class': 'LeveledCompactionStrategy'}} AND {_CACHED}""",
}


def queue_tables(table: QueueTable) -> tuple[str, ...]:
    """Names of the tables of a queue view that writes to `table`."""
    return (table.cql, DELETED_MAILS, BROWSE_START, CONTENT_START, EVENT_STORE)


def replication_of(session: CassandraSession, keyspace: str) -> str | None:
    """The keyspace's replication as a CQL map; None when there is no such keyspace."""
    query = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?"
    rows = session.execute(session.prepare(query), [keyspace.lower()])
    if not rows:
        return None
    return "{" + ", ".join(f"'{key}': '{value}'" for key, value in dict(rows[0][0]).items()) + "}"


def tables_of(session: CassandraSession, keyspace: str) -> set[str]:
    """The tables of a keyspace now. A new table is listed before it can be read."""
    return set(_changed(session, keyspace))


def gc_grace_of(session: CassandraSession, keyspace: str) -> dict[str, int]:
    """Table -> gc_grace_seconds, as they are now."""
    query = "SELECT table_name, gc_grace_seconds FROM system_schema.tables WHERE keyspace_name = ?"
    return dict(session.execute(session.prepare(query), [keyspace.lower()]))


def create_keyspace(session: CassandraSession, keyspace: str, replication: str) -> None:
    """Creates a missing keyspace. Without `replication`: one copy on one node, else BadSetting."""
    if replication_of(session, keyspace) is not None:
        return
    if not replication:
        nodes = len(session.cluster.metadata.all_hosts())
        if nodes > 1:
            raise BadSetting(
                f"keyspace {keyspace} is missing on {nodes} nodes of Cassandra: create it, or say "
                "MAILSLICE_OWN_REPLICATION, "
                "such as {'class': 'NetworkTopologyStrategy', 'dc1': 3}"
            )
        replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    if not _REPLICATION.fullmatch(replication.strip()):
        raise BadSetting(
            f"MAILSLICE_OWN_REPLICATION={replication!r} is not a CQL map, such as "
            f"{{'class': 'NetworkTopologyStrategy', 'dc1': 3}}"
        )
    cql = f"CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = {replication}"
    try:
        session.execute(cql)
    except ConfigurationException as error:
        raise BadSetting(f"MAILSLICE_OWN_REPLICATION={replication}: {error.message}") from error


def create_tables(
    session: CassandraSession, keyspace: str, required: Mapping[str, str]
) -> tuple[str, ...]:
    """Creates those of `required` (name -> columns and options) that are missing; returns their
    names. All of `required` can be read and written afterwards.

    Of several concurrent callers one creates a table. Cassandra tells the others that it exists
    before it can be used: a write in that moment would be confirmed and lost. So each caller waits
    until a young table answers.
    """
    existing = _changed(session, keyspace)
    missing = tuple(name for name in required if name not in existing)
    for name in missing:
        session.execute(f"CREATE TABLE IF NOT EXISTS {keyspace}.{name} {required[name]}")
    young = [name for name in required if existing.get(name, timedelta(0)) < _YOUNG]
    _await_readable(session, keyspace, young)
    return missing


def create_queue_tables(
    session: CassandraSession, names: Iterable[str], replication: str = ""
) -> tuple[str, ...]:
    """Creates James' keyspace and these tables where missing; returns the new tables' names."""
    keyspace = session.settings.keyspace
    create_keyspace(session, keyspace, replication)
    return create_tables(session, keyspace, {name: _TABLES[name] for name in names})


def _changed(session: CassandraSession, keyspace: str) -> dict[str, timedelta]:
    """Table -> time since it was created or altered, by Cassandra's clock."""
    query = (
        "SELECT table_name, WRITETIME(id), toUnixTimestamp(now()) "
        "FROM system_schema.tables WHERE keyspace_name = ?"
    )
    rows = session.execute(session.prepare(query), [keyspace.lower()])
    ages = ((name, now - (written or 0) / 1000) for name, written, now in rows)
    return {name: timedelta(milliseconds=age) for name, age in ages}


def _await_readable(session: CassandraSession, keyspace: str, names: Sequence[str]) -> None:
    """Reads one token of each, which is cheap: the session waits for a table of the schema."""
    columns = columns_of(session, keyspace.lower()) if names else {}
    for name in names:
        if key := partition_key(columns.get(name, ())):  # else the node does not know it yet
            session.execute(f"SELECT * FROM {keyspace}.{name} WHERE token({', '.join(key)}) = 0")
