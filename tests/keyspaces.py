"""Keyspaces of tests: new ones, and those of earlier tests, emptied.

To make the tables of a deployment costs Cassandra a second of CPU, to drop them two; to empty those
that a test wrote to costs a tenth.
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
_EMPTIED_SECONDS = 30
_TRIES = 10


@dataclass
class Keyspaces:
    """Two keyspaces: James' and mailslice's own."""

    name: str
    schema: frozenset[str] = frozenset()
    """As all tables were made; empty: none was."""
    writes: Mapping[str, int] = field(default_factory=dict)
    """Table -> writes until it was last known to be empty."""

    @property
    def both(self) -> tuple[str, str]:
        """Their names."""
        return self.name, f"{self.name}_own"


class KeyspacePool:
    """Keyspaces of one test process, with all tables of V4 and no rows.

    What is given back is emptied with TRUNCATE, which leaves no tombstone, whatever its time. It is
    dropped instead when its schema is no more as it was made, or when anything is written to it
    before it is taken again: a process of the earlier test still lives.
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
        """Two keyspaces with all tables, all empty: those of an earlier test, else new ones."""
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
        """`give_back` follows, in another thread: `take` waits for it."""
        self._returning += 1

    def give_back(self, used: Keyspaces) -> None:
        """Empty them for another test, or drop them."""
        emptied = None
        try:
            if self._schema(used) == used.schema:
                for table, count in self._writes(used).items():
                    if count != used.writes[table]:
                        self._session.execute(f"TRUNCATE {table}")
                used.writes = self._writes(used)
                emptied = used
            else:
                self.drop(used)
        finally:
            self._emptied.put(emptied)

    def drop(self, used: Keyspaces) -> None:
        """Drop both, where they are there."""
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
        """All that Cassandra knows of their tables; one that was made anew has another id."""
        return frozenset(
            str(row)
            for kind in _SCHEMA
            for name in of.both
            for row in self._session.execute(
                f"SELECT * FROM system_schema.{kind} WHERE keyspace_name = '{name}'"
            )
        )

    def _writes(self, of: Keyspaces) -> dict[str, int]:
        """Table -> how many writes it had since it was made."""
        return {f"{n}.{row.table_name}": row.count for n in of.both for row in self._latencies(n)}

    def _latencies(self, keyspace: str) -> list[Any]:
        """Cassandra looks at all keyspaces. It fails where another test drops one meanwhile."""
        query = (
            "SELECT table_name, count FROM system_views.local_write_latency "
            f"WHERE keyspace_name = '{keyspace}' ALLOW FILTERING"  # before 5.0 it must be said
        )
        for _ in range(_TRIES - 1):
            with suppress(NoHostAvailable):
                return list(self._session.execute(query))
            time.sleep(0.2)
        return list(self._session.execute(query))
