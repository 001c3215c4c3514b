"""Keyspaces of tests: new ones, and emptied ones of earlier tests.

Creating the tables of a deployment costs Cassandra a second of CPU, dropping them costs two.
Emptying the tables that a test wrote to costs 0.1 s.
"""

from __future__ import annotations

import queue
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cassandra.cluster import NoHostAvailable

from mailslice.model.settings import load_settings
from mailslice.stores import open_stores

_ONE_COPY = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
_SCHEMA = ("keyspaces", "tables", "columns", "dropped_columns", "types", "indexes")
_EMPTIED_SECONDS = 180
_TRIES = 10


@dataclass
class Keyspaces:
    """Two keyspaces: James' and mailslice's own."""

    name: str
    schema: frozenset[str] = frozenset()
    """The schema as the tables were created; empty without tables."""
    writes: Mapping[str, int] = field(default_factory=dict)
    """Table -> number of its writes when it was last known to be empty."""

    @property
    def both(self) -> tuple[str, str]:
        """The names of both keyspaces."""
        return self.name, f"{self.name}_own"


class KeyspacePool:
    """Keyspaces of one test process, with all tables of V4 and no rows.

    Keyspaces that are given back are emptied with TRUNCATE, which leaves no tombstone. They are
    dropped instead if their schema has changed, or if anything is written to them before they are
    taken again: then a process of the earlier test still lives.
    """

    def __init__(self, session: Any, stack: Mapping[str, str]) -> None:
        self._session = session
        self._stack = stack
        self._emptied: queue.SimpleQueue[Keyspaces | None] = queue.SimpleQueue()
        self._returning = 0

    def new(self) -> Keyspaces:
        """Two keyspaces without a table."""
        made = Keyspaces(f"t{uuid.uuid4().hex[:12]}")
        for name in made.both:
            self._session.execute(
                f"CREATE KEYSPACE {name} WITH replication = {_ONE_COPY} AND durable_writes = false"
            )
        return made

    def take(self) -> Keyspaces:
        """Two keyspaces with all tables and no rows: of an earlier test, or else new ones."""
        while self._returning:
            emptied = self._emptied.get(timeout=_EMPTIED_SECONDS)
            self._returning -= 1
            if emptied is None:
                continue
            if self._writes(emptied) == emptied.writes:
                return emptied
            self.drop(emptied)
        return self._with_tables(self.new())

    def expect(self) -> None:
        """Announces a `release` in another thread, for which `take` waits."""
        self._returning += 1

    def release(self, used: Keyspaces) -> None:
        """Empties the keyspaces for another test, or drops them."""
        emptied = None
        try:
            if self._schema(used) == used.schema:
                # Read first, so that `take` notices writes during the TRUNCATE.
                written, used.writes = used.writes, self._writes(used)
                for table, count in used.writes.items():
                    if count != written[table]:
                        self._session.execute(f"TRUNCATE {table}")
                emptied = used
            else:
                self.drop(used)
        finally:
            self._emptied.put(emptied)

    def drop(self, used: Keyspaces) -> None:
        """Drops both keyspaces if they exist."""
        for name in used.both:
            self._session.execute(f"DROP KEYSPACE IF EXISTS {name}")

    def _with_tables(self, made: Keyspaces) -> Keyspaces:
        james, own = made.both
        names = {"MAILSLICE_CASSANDRA_KEYSPACE": james, "MAILSLICE_OWN_KEYSPACE": own}
        settings = load_settings({**self._stack, **names}, state_file=Path("/nonexistent"))
        with open_stores(settings) as stores:
            stores.tables.create()
            assert stores.own
        made.schema, made.writes = self._schema(made), self._writes(made)
        return made

    def _schema(self, of: Keyspaces) -> frozenset[str]:
        """Cassandra's description of the tables, with ids: a recreated table has another id."""
        return frozenset(
            str(row)
            for kind in _SCHEMA
            for name in of.both
            for row in self._session.execute(
                f"SELECT * FROM system_schema.{kind} WHERE keyspace_name = '{name}'"
            )
        )

    def _writes(self, of: Keyspaces) -> dict[str, int]:
        """Table -> number of writes since it was created."""
        rows = self._latencies(of)
        return {f"{row.keyspace_name}.{row.table_name}": row.count for row in rows}

    def _latencies(self, of: Keyspaces) -> list[Any]:
        """Cassandra reads all tables of all keyspaces, 20 to 40 ms of CPU for a thousand: once for
        a range of names, but once for each name with IN. It fails if a test drops one.
        """
        query = (
            "SELECT keyspace_name, table_name, count FROM system_views.local_write_latency "
            "WHERE keyspace_name >= '{}' AND keyspace_name <= '{}' ALLOW FILTERING"
        ).format(*of.both)
        for _ in range(_TRIES - 1):
            with suppress(NoHostAvailable):
                return list(self._session.execute(query))
            time.sleep(0.2)
        return list(self._session.execute(query))
