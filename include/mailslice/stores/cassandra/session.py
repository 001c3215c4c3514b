"""The only way to Cassandra: prepared statements, bounded concurrent requests, mailslice's errors.

Statements name tables with their keyspace, so that a missing keyspace is no failure to connect.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property, partial
from typing import Any, TypeVar

from cassandra import ConsistencyLevel
from cassandra.cluster import ResponseFuture, Session
from cassandra.policies import FallthroughRetryPolicy
from cassandra.query import UNSET_VALUE, BoundStatement, PreparedStatement, Statement

from mailslice.codec.row import instant
from mailslice.model.clock import Clock, system_clock
from mailslice.model.closing import Closing
from mailslice.model.errors import ClockSkew, StoreUnavailable
from mailslice.model.settings import CassandraSettings
from mailslice.stores.cassandra import connection, parallel
from mailslice.stores.cassandra.coordinator_retry import (
    CONVICTION_SECONDS,
    CoordinatorRetry,
    has_several_nodes,
)
from mailslice.stores.cassandra.failures import translated
from mailslice.stores.cassandra.packed import PackedReader

PAGE_ROWS = 5000
_MAX_SKEW = timedelta(seconds=30)
_SKEWED = "allowed are 30s, as workers go by the time that is given: set the clocks right"
_OF_THE_SCHEMA = ("CREATE ", "ALTER ", "DROP ")
_SCHEMA_TIME_OUTS = 6
"""How many time-outs a change of the schema gets: Cassandra makes one at a time, and each waits
until all nodes have it."""

Params = Sequence[object]
Asked = TypeVar("Asked", bound=Params)
Row = tuple[Any, ...]


class CassandraSession(Closing):
    """A connected session. Thread-safe; close it. Rows are plain tuples.

    Raises StoreUnavailable naming host:port within 15 s, BadSetting for refused credentials, an
    unknown data centre or bad TLS files.
    """

    def __init__(self, settings: CassandraSettings) -> None:
        # What the driver logs is raised here, or needs no action.
        logging.getLogger("cassandra").setLevel(logging.CRITICAL)
        self.settings = settings
        self.address = connection.address(settings)
        self.own_tables: dict[tuple[str, str], Any] = {}
        """The tables of `own.table` that are known to exist, by keyspace and name."""
        self._prepared: dict[tuple[str, bool, bool, bool], PreparedStatement] = {}
        self._lock = threading.Lock()
        self.cluster, self._session = connection.connect(settings)
        """The driver's cluster: for metadata only."""
        self.retry = CoordinatorRetry(self._session)

    def close(self) -> None:
        """Closes all connections. May be called twice."""
        self.cluster.shutdown()

    @property
    def longest_statement(self) -> timedelta:
        """How long a repeatable statement can take until it is done or has failed."""
        once, several = self.settings.timeout, has_several_nodes(self.cluster)
        return once + timedelta(seconds=CONVICTION_SECONDS) + once if several else once

    @cached_property
    def packed(self) -> PackedReader:
        """Reads rows as bytes, by its own driver session, which connects at the first use."""
        return PackedReader(self.translating()(self.cluster.connect), self._pages)

    def prepare(
        self, cql: str, *, idempotent: bool = True, paged: bool = True, serial: bool = False
    ) -> PreparedStatement:
        """The prepared statement of `cql`; only the first call sends a request. `idempotent` False
        is for LWT and counters: the statement is sent once, to one node.

        `paged` False is for an IN of partition keys with a small answer. Cassandra reads the
        partitions of a paged query one by one, and those of an unpaged query concurrently.

        `serial` is for a read of one partition that must see a conditional write (LWT) without an
        answer: a plain read may miss it, and the next LWT then finishes it.
        """
        key = (cql, idempotent, paged, serial)
        if (known := self._prepared.get(key)) is not None:
            return known
        # Not under the lock: other statements must not wait for a node that hangs.
        statement = self._prepared_by_driver(cql)
        statement.is_idempotent = idempotent
        statement.serializers = [column.type.serialize for column in statement.column_metadata]
        if not idempotent:
            # The driver's default policy would repeat it at another node, and it may be done.
            statement.retry_policy = FallthroughRetryPolicy()
        statement.fetch_size = PAGE_ROWS if paged else None
        if serial:
            statement.consistency_level = ConsistencyLevel.SERIAL
        with self._lock:
            return self._prepared.setdefault(key, statement)

    def _prepared_by_driver(self, cql: str) -> PreparedStatement:
        with self.translating():
            try:
                return self._session.prepare(cql)
            except Exception as error:  # noqa: BLE001 - `answer` raises it, unless a retry helps
                return self.retry.answer(
                    error, cql, lambda _: self._session.prepare(cql), repeatable=True
                )

    def execute(self, statement: Statement | str, params: Params = ()) -> list[Row]:
        """All rows of a small answer. Retries at other coordinators. Raises as `error`."""
        return self.begin(statement, params).result()

    def begin(self, statement: Statement | str, params: Params = ()) -> "Pending":
        """As `execute`, without waiting: `result()` gives the answer."""
        with self.translating():
            schema = isinstance(statement, str) and statement.lstrip().startswith(_OF_THE_SCHEMA)
            timeout = self.settings.timeout.total_seconds() * (_SCHEMA_TIME_OUTS if schema else 1)
            send = partial(self._session.execute_async, statement, params or None, timeout=timeout)
            return Pending(self, statement, send)

    def ask(self, host: object, cql: str, params: Params = ()) -> list[Row]:
        """As `execute`, at this node alone: a virtual table describes the node that answers."""
        with self.translating():
            return list(self._session.execute(cql, params or None, host=host))

    def connected(self) -> frozenset[object]:
        """The nodes that `ask` reaches: those of the local data centre that are up."""
        return frozenset(self._session.get_pool_state())

    def stream(self, statement: Statement | str, params: Params = ()) -> Iterator[Row]:
        """All rows, a page at a time."""
        for _, rows in self.map(statement, [params], in_flight=1):
            yield from rows

    def submit(self, statement: PreparedStatement, params: Params = ()) -> ResponseFuture:
        """Sends without waiting, for the hot path. The future raises the driver's errors (see
        `error`) and has no time-out: the caller must add one (`Bridge.rows`).
        """
        with self.translating():
            return self._session.execute_async(_bound(statement, params), timeout=None)

    def map(
        self,
        statement: Statement | str,
        params: Iterable[Asked],
        in_flight: int = 64,
        *,
        ordered: bool = False,
    ) -> Iterator[tuple[Asked, list[Row]]]:
        """Runs the statement for each of `params`, at most `in_flight` at once. Gives each page as
        (params, rows), as pages arrive; with `ordered`, in the order of `params`.

        An answer of several pages gives several pairs; one without rows gives one, empty. Draws
        params as needed, and holds at most one page for each request in flight. Retries a page that
        failed, as `execute` does, and gives no page twice. Raises the first error, as `execute`.
        """
        yield from self._pages(self._session, statement, params, in_flight, ordered=ordered)

    def _pages(
        self,
        driver: Session,
        statement: Statement | str,
        params: Iterable[Asked],
        in_flight: int,
        *,
        ordered: bool,
        bind: Callable[[Params], Sequence[object]] | None = None,
    ) -> Iterator[tuple[Asked, list[Any]]]:
        """As `map`, by this driver session. `bind` makes the arguments of a request from params."""
        retry = partial(self.retry.page, statement)
        arguments = bind or (lambda values: (statement, values or None))
        jobs = (
            parallel.Job(values, partial(driver.execute_async, *arguments(values)), retry)
            for values in params
        )
        with self.translating():
            patience = self.settings.timeout.total_seconds() * 2 + 5
            pages = parallel.pages(jobs, in_flight, patience, ordered=ordered)
            yield from pages  # type: ignore[misc]

    def run_many(self, statement: Statement, params: Iterable[Params], in_flight: int = 128) -> int:
        """Runs a writing statement for all `params`; returns how many. Raises the first error."""
        return sum(1 for _ in self.map(statement, params, in_flight))

    def skews(self, clock: Clock = system_clock) -> list[tuple[timedelta, object]]:
        """How far each connected node's clock is ahead of this machine's (negative: behind), and
        the node. The smallest difference is first.

        Asks one node after the other, and ignores one that goes away meanwhile. Raises
        StoreUnavailable if none answers.
        """
        skews: list[tuple[timedelta, object]] = []
        problem = StoreUnavailable(f"Cassandra at {self.address} does not answer: no node is known")
        for host in self.connected() or self.cluster.metadata.all_hosts():
            try:
                skews.append((self.skew_of(host, clock), host))
            except StoreUnavailable as error:
                problem = error
        if not skews:
            raise problem
        return sorted(skews, key=lambda skew: abs(skew[0]))

    def require_clock(
        self, clock: Clock, allowed: timedelta = _MAX_SKEW, remedy: str = _SKEWED, share: float = 1
    ) -> None:
        """Raises ClockSkew unless a `share` of the nodes is within `allowed`; `remedy` ends it."""
        skews = self.skews(clock)
        skew, node = skews[int((len(skews) - 1) * share)]
        if abs(skew) > allowed:
            by = f"{abs(skew).total_seconds():.3f} s {'behind' if skew.days < 0 else 'ahead of'}"
            raise ClockSkew(f"Cassandra's clock is {by} this machine's (node {node}); {remedy}")

    def skew_of(self, host: object, clock: Clock) -> timedelta:
        """How far this node's clock is ahead; zero if that is within the time of the request."""
        before = clock()
        ((millis,),) = self.ask(host, "SELECT toUnixTimestamp(now()) FROM system.local")
        after = clock()
        server_time = instant(millis)
        if before - timedelta(milliseconds=1) <= server_time <= after:
            return timedelta(0)
        return server_time - (before + (after - before) / 2)

    def error(self, error: BaseException) -> BaseException:
        """Translates the driver's error into mailslice's. Returns other errors unchanged."""
        return translated(error, self.address)

    @contextmanager
    def translating(self) -> Iterator[None]:
        """Errors in the block are raised as translated by `error`."""
        try:
            yield
        except Exception as error:
            known = self.error(error)
            if known is error:
                raise
            raise known from error


def _bound(statement: PreparedStatement, params: Params) -> BoundStatement:
    """As the driver binds, at half the cost. After an error the driver's bind raises the reason."""
    bound = BoundStatement(statement)
    try:
        bound.values = [
            value
            if value is None or value is UNSET_VALUE
            else serialize(value, connection.PROTOCOL_VERSION)
            for serialize, value in zip(statement.serializers, params, strict=True)
        ]
    except Exception:  # noqa: BLE001 - the driver's bind raises it
        return bound.bind(params)
    return bound


class Pending:
    """A sent request, and how to repeat it."""

    def __init__(
        self, session: CassandraSession, statement: Statement | str, send: parallel.Send
    ) -> None:
        self._session = session
        self._statement = statement
        self._send = send
        self._future = send()

    def result(self) -> list[Row]:
        """All rows. Raises as `CassandraSession.execute`."""
        with self._session.translating():
            try:
                return list(self._future.result())
            except Exception as error:  # noqa: BLE001 - `page` raises it, unless a retry helps
                retry_page = self._session.retry.page
                return list(retry_page(self._statement, error, self._future, self._send))
