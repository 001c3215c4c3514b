"""The one way to Cassandra: prepared statements, bounded parallel requests, errors of mailslice.

Tables are always named with their keyspace, so that a missing keyspace is not a failure to connect.
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
from mailslice.model.errors import ClockSkew, StoreUnavailable
from mailslice.model.settings import CassandraSettings
from mailslice.stores.cassandra import connecting, parallel
from mailslice.stores.cassandra.coordinator_retry import (
    PATIENCE_SECONDS,
    CoordinatorRetry,
    has_several_nodes,
)
from mailslice.stores.cassandra.failures import translated
from mailslice.stores.cassandra.packed import PackedReader

PAGE_ROWS = 5000

Params = Sequence[object]
Asked = TypeVar("Asked", bound=Params)
Row = tuple[Any, ...]


class CassandraSession:
    """A connected session; thread-safe; close it. Rows are plain tuples.

    Raises StoreUnavailable naming host:port within 15 s, BadSetting for refused credentials, an
    unknown data centre or bad TLS files.
    """

    def __init__(self, settings: CassandraSettings) -> None:
        # What the driver warns of is raised here, or mends itself.
        logging.getLogger("cassandra").setLevel(logging.CRITICAL)
        self.settings = settings
        self.address = connecting.address(settings)
        self.own_tables: dict[tuple[str, str], Any] = {}
        """Those of `own.table` that are known to be there, by keyspace and name."""
        self._prepared: dict[tuple[str, bool, bool, bool], PreparedStatement] = {}
        self._lock = threading.Lock()
        self.cluster, self._session = connecting.connect(settings)
        """The driver's cluster: for metadata only."""
        self.retry = CoordinatorRetry(self._session)

    def __enter__(self) -> "CassandraSession":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. May be called twice."""
        self.cluster.shutdown()

    @property
    def longest_statement(self) -> timedelta:
        """How long a statement that may be sent twice can take until it is done or has failed."""
        once, several = self.settings.timeout, has_several_nodes(self.cluster)
        return once + timedelta(seconds=PATIENCE_SECONDS) + once if several else once

    @cached_property
    def packed(self) -> PackedReader:
        """Rows as bytes, by a driver session of its own that is connected at its first use."""
        return PackedReader(self._connected_anew, self._pages)

    def prepare(
        self, cql: str, *, idempotent: bool = True, paged: bool = True, serial: bool = False
    ) -> PreparedStatement:
        """The prepared statement of `cql`, from the second time on without a request. `idempotent`
        False for LWT and counters: sent once, to one node.

        `paged` False for an IN of partition keys, whose answer is small: Cassandra reads the
        partitions of a paged one after each other, each by a pager of its own, and those of an
        unpaged one beside each other.

        `serial` for a read of one partition that must see a conditional write (LWT) whose answer
        did not come: a plain read may miss it, and the next LWT then finishes it.
        """
        key = (cql, idempotent, paged, serial)
        if (known := self._prepared.get(key)) is not None:
            return known
        # Not under the lock: a known statement must not wait for a node that hangs.
        statement = self._prepared_by_driver(cql)
        statement.is_idempotent = idempotent
        statement.serializers = [column.type.serialize for column in statement.column_metadata]
        if not idempotent:
            # The driver's own policy repeats on the next node what the first may have done.
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
            except Exception as error:  # noqa: BLE001 - raised there, unless it mends
                return self.retry.answer(
                    error, cql, lambda _: self._session.prepare(cql), repeatable=True
                )

    def execute(self, statement: Statement | str, params: Params = ()) -> list[Row]:
        """All rows, of a small answer; asked again of other coordinators. Raises as `error`."""
        return self.begin(statement, params).result()

    def begin(self, statement: Statement | str, params: Params = ()) -> "Pending":
        """As `execute`, without waiting: for the answer, ask for its `result()`."""
        with self.translating():
            send = partial(self._session.execute_async, statement, params or None)
            return Pending(self, statement, send)

    def ask(self, host: object, cql: str, params: Params = ()) -> list[Row]:
        """As `execute`, of this node alone: virtual tables speak of the node that answers."""
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
        """Sends without waiting, for the hot path. The future raises the driver's (see `error`),
        and has no time-out: whoever waits for it ends it (`Bridge.rows`).
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
        """Run the statement once for each of `params`, at most `in_flight` beside each other, and
        give (params, rows) a page at a time, as they come.

        An answer of several pages gives several pairs; one without rows gives one, empty. With
        `ordered`, in the order of `params`. Params are drawn as they are needed, and no more than a
        page for each request in flight is held. A page that did not come is asked for again, as by
        `execute`, and no page is given twice. The first error is raised, as by `execute`.
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
        """As `map`, by this session of the driver; `bind` makes its arguments of the params."""
        retry = partial(self.retry.page, statement)
        arguments = bind or (lambda one: (statement, one or None))
        jobs = (
            parallel.Job(one, partial(driver.execute_async, *arguments(one)), retry)
            for one in params
        )
        with self.translating():
            patience = self.settings.timeout.total_seconds() * 2 + 5
            pages = parallel.pages(jobs, in_flight, patience, ordered=ordered)
            yield from pages  # type: ignore[misc]

    def _connected_anew(self) -> Session:
        with self.translating():
            return self.cluster.connect()

    def run_many(self, statement: Statement, params: Iterable[Params], in_flight: int = 128) -> int:
        """Runs a writing statement for each of `params`; how many. The first error is raised."""
        return sum(1 for _ in self.map(statement, params, in_flight))

    def now_skew(self, clock: Clock = system_clock) -> timedelta:
        """How far the clock of that Cassandra node is ahead whose clock differs most from this
        machine's; negative when behind.

        All nodes that can be asked are; one that goes away meanwhile has no say. Raises
        StoreUnavailable when none answers.
        """
        skews: list[timedelta] = []
        problem: StoreUnavailable | None = None
        for host in self.connected() or self.cluster.metadata.all_hosts():
            try:
                skews.append(self.skew_of(host, clock))
            except StoreUnavailable as error:
                problem = error
        if not skews:
            raise problem or StoreUnavailable(
                f"Cassandra at {self.address} does not answer: no node is known"
            )
        return max(skews, key=abs)

    def require_clock(self, clock: Clock, allowed: timedelta, remedy: str) -> None:
        """Raises ClockSkew where `now_skew` is more than `allowed`, which `remedy` names."""
        skew = self.now_skew(clock)
        if abs(skew) > allowed:
            seconds, side = abs(skew).total_seconds(), "ahead of" if skew == abs(skew) else "behind"
            raise ClockSkew(f"Cassandra's clock is {seconds:.3f} s {side} this machine's; {remedy}")

    def skew_of(self, host: object, clock: Clock) -> timedelta:
        """How far this node's clock is ahead; zero within the time of the question."""
        before = clock()
        ((millis,),) = self.ask(host, "SELECT toUnixTimestamp(now()) FROM system.local")
        after = clock()
        server_time = instant(millis)
        if before - timedelta(milliseconds=1) <= server_time <= after:
            return timedelta(0)
        return server_time - (before + (after - before) / 2)

    def error(self, error: BaseException) -> BaseException:
        """The error of mailslice for one of the driver's; the same object for others."""
        return translated(error, self.address)

    @contextmanager
    def translating(self) -> Iterator[None]:
        """What is raised within is mailslice's, as by `error`."""
        try:
            yield
        except Exception as error:
            known = self.error(error)
            if known is error:
                raise
            raise known from error


def _bound(statement: PreparedStatement, params: Params) -> BoundStatement:
    """As the driver binds, at half the price: it is asked only what is wrong with a value."""
    bound = BoundStatement(statement)
    try:
        bound.values = [
            value
            if value is None or value is UNSET_VALUE
            else serialize(value, connecting.PROTOCOL_VERSION)
            for serialize, value in zip(statement.serializers, params, strict=True)
        ]
    except Exception:  # noqa: BLE001 - raised there
        return bound.bind(params)
    return bound


class Pending:
    """What was sent, and whom to ask again."""

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
            except Exception as error:  # noqa: BLE001 - raised there, unless it mends
                again = self._session.retry.page
                return list(again(self._statement, error, self._future, self._send))
