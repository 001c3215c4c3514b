"""What one node could not answer is asked of another: one node away must stop no duty.

A coordinator chooses the replicas that it reads from, and goes on to choose one that has just died
until its failure detector convicts it: 10 to 40 s. A scan of a token range has no speculative read
to help it, so it runs out of time, and does so again at the next coordinator that has not convicted
yet. So what may be sent twice is, at nodes that do answer, until the conviction must have come; a
write with the timestamp of its first try. A refusal (too few replicas are alive) is believed much
sooner: two nodes away stop whoever reads.

And a table is in the schema a moment before it can be read: whoever meets that moment waits, even
where there is one node only.
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
"""For what is sent to one node: the driver repeats it, without a pause, while it is overloaded."""
PATIENCE_SECONDS = 60.0
"""Longest time of a dead node unconvicted: phi is 8 in 18 s, 12 (usual in clouds) in 28 s."""
REFUSALS = 4
LATE_SECONDS = 10.0
_PING_SECONDS = 2.0
_MUTE_SECONDS = 5.0
_PING = "SELECT key FROM system.local"
_LATE = re.compile(r"Unknown CF|unconfigured table|does(?: not|n't) exist", re.IGNORECASE)
_NAME = r'(?:"([^"]+)"|(\w+))'
_NAMED = re.compile(rf"\b(?:FROM|INTO|UPDATE|EXISTS)\s+{_NAME}\.{_NAME}", re.IGNORECASE)


class Timestamps:
    """Write times (µs) for the driver, ever later. A write that is repeated keeps its own."""

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
        """What this thread sends meanwhile has this write time (us); None: a new one each."""
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
    """Whether the statement says so of itself; a text, when it reads."""
    if isinstance(statement, str):
        return statement.lstrip()[:6].upper() == "SELECT"
    return bool(statement.is_idempotent)


def has_several_nodes(cluster: Cluster) -> bool:
    return len(cluster.metadata.all_hosts()) > 1


class CoordinatorRetry:
    """Second tries, for one session of the driver."""

    def __init__(self, driver: Session) -> None:
        self._driver = driver
        self._mute: dict[Host, float] = {}
        """Nodes that did not answer, and until when they are not pinged, which takes seconds."""

    def page(
        self,
        statement: AnyStatement,
        error: BaseException,
        first: ResponseFuture,
        send: Callable[..., ResponseFuture],
    ) -> ResultSet:
        """What `send(host=node)` gives after `first` ended with `error`; else its last error."""

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
        """What `ask(node)` gives after `error`. Not `repeatable`: waits for a late table only."""
        errors = [error]

        def once() -> Answer:
            if len(errors) == 1:
                errors.append(error)
                raise error  # the first try: what follows it is as after any other
            return ask(self._node(errors[-1]) if has_several_nodes(self._driver.cluster) else None)

        def is_worth_it(problem: BaseException) -> bool:
            errors.append(problem)
            if _is_late(problem):
                return (repeatable or cql.lstrip()[:6].upper() == "CREATE") and self._shows(cql)
            is_away = isinstance(translated(problem, ""), StoreUnavailable)
            return repeatable and is_away and has_several_nodes(self._driver.cluster)

        tries = Retrying(
            retry=retry_if_exception(is_worth_it),
            stop=_Patience(),
            wait=wait_exponential_jitter(0.1, 3, jitter=0.1),
            reraise=True,
        )
        return tries(once)

    def _node(self, error: BaseException) -> Host:
        """A node that answers now, another than that of `error` if possible. NoHostAvailable."""
        nodes, now = list(self._driver.get_pool_state()), time.monotonic()
        spoken = [node for node in nodes if self._mute.get(node, 0.0) <= now]
        others = [node for node in nodes if node not in spoken]
        answering = self._answering(spoken) or self._answering(others)
        if not answering:
            raise NoHostAvailable("no node answers", {}) from error
        others = [node for node in answering if node != getattr(error, "last_host", None)]
        return random.choice(others or answering)

    def _answering(self, nodes: Sequence[Host]) -> list[Host]:
        ping = partial(self._driver.execute_async, _PING, timeout=_PING_SECONDS)
        asked = [(node, ping(host=node)) for node in nodes]
        answering = []
        for node, future in asked:
            try:
                future.result()
            except Exception:  # noqa: BLE001 - whatever it is, the node does not answer
                self._mute[node] = time.monotonic() + _MUTE_SECONDS
            else:
                self._mute.pop(node, None)
                answering.append(node)
        return answering

    def _shows(self, cql: str) -> bool:
        """Whether the schema has the table that is named, for CREATE TABLE its keyspace."""
        named = _NAMED.search(cql)
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


class _Patience:
    """When to give up: after a minute of time-outs, or a few refusals (3 s)."""

    def __init__(self) -> None:
        self._refusals = 0

    def __call__(self, state: RetryCallState) -> bool:
        error: Any = state.outcome and state.outcome.exception()
        seconds = state.seconds_since_start or 0.0
        if _is_late(error):
            return seconds > LATE_SECONDS
        if isinstance(error, OperationTimedOut | Timeout):
            return seconds > PATIENCE_SECONDS
        self._refusals += 1
        return self._refusals > REFUSALS


def _is_late(error: BaseException) -> bool:
    return any(_LATE.search(str(cause)) for cause in causes(error))
