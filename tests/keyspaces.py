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
                # Read before: what is written meanwhile shows when it is taken.
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
        rows = self._latencies(of)
        return {f"{row.keyspace_name}.{row.table_name}": row.count for row in rows}

    def _latencies(self, of: Keyspaces) -> list[Any]:
        """Cassandra looks at all tables of all keyspaces, 20 to 40 ms of CPU for a thousand: once
        for a range of names, once each for names with IN. It fails where another test drops one.
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
