"""The base class of single tables: CQL without a keyspace, prepared at its first use."""

from collections.abc import Iterable
from typing import ClassVar

from cassandra import ConsistencyLevel
from cassandra.query import PreparedStatement

from mailslice.stores.cassandra.session import CassandraSession, Params, Row


class Table:
    """A table of one session. All CQL of the table is in its subclass."""

    ON_EVENT_LOOP: ClassVar[tuple[str, ...]] = ()
    """Names of the statements that an event loop sends."""

    def __init__(self, session: CassandraSession, keyspace: str, table: str) -> None:
        self._session = session
        self._keyspace = keyspace
        self._name = f"{keyspace}.{table}"

    def prepare(self) -> None:
        """Prepares ON_EVENT_LOOP: at its first use it would block the loop for a round trip."""
        for name in self.ON_EVENT_LOOP:
            getattr(self, name)

    def prepare_statement(self, cql: str, **options: bool) -> PreparedStatement:
        """Prepares `cql` with `{table}` and `{keyspace}` filled in. Options as of the session."""
        cql = cql.replace("{table}", self._name).replace("{keyspace}", self._keyspace)
        return self._session.prepare(cql, **options)

    def _of_all_replicas(self, statement: PreparedStatement, params: Params) -> list[Row]:
        """The rows at consistency ALL. StoreUnavailable: a replica is away, and may differ."""
        bound = statement.bind(params)
        bound.consistency_level = ConsistencyLevel.ALL
        bound.is_idempotent = False  # no repeat: another coordinator needs the same lost replica
        return self._session.execute(bound)


class Statement:
    """CQL as an attribute of a Table. The first access prepares the statement."""

    def __init__(self, cql: str, **options: bool) -> None:
        self._cql = cql
        self._options = options

    def __set_name__(self, _owner: type, name: str) -> None:
        self._attribute = name

    def __get__(self, table: Table, _owner: type) -> PreparedStatement:
        prepared = table.prepare_statement(self._cql, **self._options)
        table.__dict__[self._attribute] = prepared  # precedes this descriptor from now on
        return prepared


def insert(columns: Iterable[str], using: str = "") -> str:
    """INSERT of these columns. `using` follows the values."""
    names = tuple(columns)
    marks = ", ".join("?" * len(names))
    return f"INSERT INTO {{table}} ({', '.join(names)}) VALUES ({marks}) {using}".rstrip()


def select(columns: Iterable[str], where: str = "") -> str:
    """SELECT of these columns. `where` is the condition, with further clauses."""
    return f"SELECT {', '.join(columns)} FROM {{table}}" + (f" WHERE {where}" if where else "")


def assignments(columns: Iterable[str]) -> str:
    """`a = ?, b = ?`, for UPDATE."""
    return ", ".join(f"{name} = ?" for name in columns)


def applied(rows: list[Row]) -> bool:
    """Whether a conditional write was applied, by its answer."""
    return bool(rows[0][0])
