"""Repeats a request at another node if one node does not answer: one lost node stops no duty.

A coordinator still reads from a replica that has just died until its failure detector convicts that
node: 10 to 40 s. A scan of a token range has no speculative read, so it times out at each such
coordinator. So requests that may be sent twice are repeated at nodes that answer, until the
conviction must have come; a write keeps the timestamp of its first try. Retries after a refusal
(too few live replicas) end within seconds: two lost nodes stop all readers.

A new table is in the schema a moment before it can be read. A request in that moment is repeated,
even with a single node.
"""

import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar

from cassandra import OperationTimedOut, Timeout
from cassandra.cluster import Cluster, NoHostAvailable, ResponseFuture, ResultSet, Session
from cassandra.pool import Host
from cassandra.query import BoundStatement, PreparedStatement, SimpleStatement, Statement
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_exponential_jitter

from mailslice.model.errors import StoreUnavailable
from mailslice.stores.cassandra.failures import causes, translated

Answer = TypeVar("Answer")
AnyStatement: TypeAlias = Statement | PreparedStatement | str

PINNED = "pinned"
"""Profile of requests to one node: the default one repeats them, without pause, on an overload."""
CONVICTION_SECONDS = 60.0
"""A dead node is convicted by then: phi reaches 8 in 18 s, and 12 (usual in clouds) in 28 s."""
REFUSALS = 4
SCHEMA_DELAY_SECONDS = 10.0
_PING_SECONDS = 2.0
_SILENT_SECONDS = 5.0
_PING = "SELECT key FROM system.local"
_NOT_IN_SCHEMA = re.compile(r"Unknown CF|unconfigured table|does(?: not|n't) exist", re.IGNORECASE)
_NAME = r'(?:"([^"]+)"|(\w+))'
_NAMED_TABLE = re.compile(rf"\b(?:FROM|INTO|UPDATE|EXISTS)\s+{_NAME}\.{_NAME}", re.IGNORECASE)


class Timestamps:
    """Increasing write times (µs) for the driver. A repeated write keeps its first one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0
        self._pinned = threading.local()

    def __call__(self) -> int:
        if (pinned := getattr(self._pinned, "value", None)) is not None:
            return int(pinned)
        now = time.time_ns() // 1000
        with self._lock:
            if now <= self._last:
                now = self._last + 1
            self._last = now
        return now

    @contextmanager
    def pinned(self, timestamp_us: int | None) -> Iterator[None]:
        """Requests of this thread get this write time (µs) meanwhile; None: each a new one."""
        self._pinned.value = timestamp_us
        try:
            yield
        finally:
            self._pinned.value = None


def text_of(statement: AnyStatement) -> str:
    if isinstance(statement, BoundStatement):
        statement = statement.prepared_statement
    if isinstance(statement, PreparedStatement | SimpleStatement):
        return str(statement.query_string)
    return str(statement)


def may_be_repeated(statement: AnyStatement) -> bool:
    """Whether the statement is marked idempotent; a text, whether it is a SELECT."""
    if isinstance(statement, str):
        return statement.lstrip()[:6].upper() == "SELECT"
    return bool(statement.is_idempotent)


def has_several_nodes(cluster: Cluster) -> bool:
    return len(cluster.metadata.all_hosts()) > 1


class CoordinatorRetry:
    """Second tries, for one session of the driver."""

    def __init__(self, driver: Session) -> None:
        self._driver = driver
        self._silent_until: dict[Host, float] = {}
        """Nodes that did not answer, and until when they get no ping, which would take seconds."""

    def page(
        self,
        statement: AnyStatement,
        error: BaseException,
        first: ResponseFuture,
        send: Callable[..., ResponseFuture],
    ) -> ResultSet:
        """The result of `send(host=node)` after `first` failed with `error`; or its last error."""

        def ask(node: Host | None) -> ResultSet:
            with self._driver.cluster.timestamp_generator.pinned(first.message.timestamp):
                future = send(host=node, execution_profile=PINNED)
            return future.result()

        return self.answer(error, text_of(statement), ask, repeatable=may_be_repeated(statement))

    def answer(
        self,
        error: BaseException,
        cql: str,
        ask: Callable[[Host | None], Answer],
        *,
        repeatable: bool,
    ) -> Answer:
        """The result of `ask(node)` after `error`. Not `repeatable`: only awaits a late table."""
        errors = [error]

        def try_next_node() -> Answer:
            if len(errors) == 1:
                errors.append(error)
                raise error  # stands for the first try, so that the policy below treats it alike
            return ask(self._node(errors[-1]) if has_several_nodes(self._driver.cluster) else None)

        def may_try_again(problem: BaseException) -> bool:
            errors.append(problem)
            if _is_schema_delay(problem):
                is_safe = repeatable or cql.lstrip()[:6].upper() == "CREATE"
                return is_safe and self._has_schema(cql)
            is_away = isinstance(translated(problem, ""), StoreUnavailable)
            return repeatable and is_away and has_several_nodes(self._driver.cluster)

        tries = Retrying(
            retry=retry_if_exception(may_try_again),
            stop=_StopCondition(),
            wait=wait_exponential_jitter(0.1, 3, jitter=0.1),
            reraise=True,
        )
        return tries(try_next_node)

    def _node(self, error: BaseException) -> Host:
        """A node that answers now, another than that of `error` if possible. NoHostAvailable."""
        nodes, now = list(self._driver.get_pool_state()), time.monotonic()
        responsive = [node for node in nodes if self._silent_until.get(node, 0.0) <= now]
        others = [node for node in nodes if node not in responsive]
        answering = self._ping(responsive) or self._ping(others)
        if not answering:
            raise NoHostAvailable("no node answers", {}) from error
        others = [node for node in answering if node != getattr(error, "last_host", None)]
        return random.choice(others or answering)

    def _ping(self, nodes: Sequence[Host]) -> list[Host]:
        ping = partial(self._driver.execute_async, _PING, timeout=_PING_SECONDS)
        pings = [(node, ping(host=node)) for node in nodes]
        answering = []
        for node, future in pings:
            try:
                future.result()
            except Exception:  # noqa: BLE001 - any error means that the node does not answer
                self._silent_until[node] = time.monotonic() + _SILENT_SECONDS
            else:
                self._silent_until.pop(node, None)
                answering.append(node)
        return answering

    def _has_schema(self, cql: str) -> bool:
        """Whether the schema has the table that `cql` names; for CREATE TABLE, its keyspace."""
        named = _NAMED_TABLE.search(cql)
        if named is None:
            return False
        names = named.group(1, 2), named.group(3, 4)
        keyspace, table = (quoted or plain.lower() for quoted, plain in names)
        where, params = "tables WHERE keyspace_name = %s AND table_name = %s", [keyspace, table]
        if cql.lstrip()[:6].upper() == "CREATE":
            where, params = "keyspaces WHERE keyspace_name = %s", [keyspace]
        with suppress(Exception):
            query = f"SELECT keyspace_name FROM system_schema.{where}"
            return bool(list(self._driver.execute(query, params)))
        return False


class _StopCondition:
    """The stop condition: a minute of time-outs, or a few refusals (3 s)."""

    def __init__(self) -> None:
        self._refusals = 0

    def __call__(self, state: RetryCallState) -> bool:
        error: Any = state.outcome and state.outcome.exception()
        seconds = state.seconds_since_start or 0.0
        if _is_schema_delay(error):
            return seconds > SCHEMA_DELAY_SECONDS
        if isinstance(error, OperationTimedOut | Timeout):
            return seconds > CONVICTION_SECONDS
        self._refusals += 1
        return self._refusals > REFUSALS


def _is_schema_delay(error: BaseException) -> bool:
    return any(_NOT_IN_SCHEMA.search(str(cause)) for cause in causes(error))
