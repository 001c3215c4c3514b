"""Pages of rows as they came over the wire, undecoded: for scans that look at millions of rows and can decode a page at a time, column by column.

The driver makes one Python object of every value, which costs more than Cassandra's own work. A page here is its row count and its bytes; whoever asked
knows the columns and decodes them (`mailslice.spark.packed_rows`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from cassandra.protocol import ResultMessage, read_int
from cassandra.protocol import (
    _ProtocolHandler as ProtocolHandler,
)  # the pure one: the other decodes rows in C, where nothing can be put in its place
from cassandra.query import BoundStatement, PreparedStatement

from mailslice.stores.cassandra import parallel

if TYPE_CHECKING:
    from mailslice.stores.cassandra.session import CassandraSession

Asked = TypeVar("Asked", bound=Sequence[object])


@dataclass(frozen=True, slots=True)
class PackedPage:
    """So many rows, one after the other; a value is its length (4 bytes, -1 = null) and its bytes, as the native protocol has them."""

    rows: int
    data: bytes


NO_ROWS = PackedPage(0, b"")
"""What a statement that writes gives."""


class _PackedResult(ResultMessage):  # type: ignore[misc]  # the driver has no types
    """A result whose rows stay bytes."""

    def recv_results_rows(
        self,
        f: Any,
        protocol_version: int,  # noqa: ARG002
        user_type_map: object,
        result_metadata: Any,
        column_encryption_policy: object,  # noqa: ARG002
    ) -> None:
        self.recv_results_metadata(f, user_type_map)
        columns = self.column_metadata or result_metadata
        self.column_names = [column[2] for column in columns]
        self.column_types = [column[3] for column in columns]
        rows = read_int(f)
        self.parsed_rows = [PackedPage(rows, f.read())]


class _PackedProtocol(ProtocolHandler):  # type: ignore[misc]
    """The driver's protocol with such results."""

    message_types_by_opcode = {  # noqa: RUF012 - as the driver's own
        **ProtocolHandler.message_types_by_opcode,
        ResultMessage.opcode: _PackedResult,
    }


class PackedReader:
    """Reads pages by a driver session of its own, on the same cluster, at the same consistency. Thread-safe; ends with the session's cluster."""

    def __init__(self, session: CassandraSession) -> None:
        self._session = session
        self._lock = Lock()
        self._driver: Any = None

    def pages(
        self,
        statement: PreparedStatement,
        params: Iterable[Asked],
        in_flight: int,
        *,
        ordered: bool = False,
        raw: bool = False,
    ) -> Iterator[tuple[Asked, PackedPage]]:
        """(params, page) as they come, at most `in_flight` requests beside each other; every one of `params` gives at least one page, which may be empty.

        With `ordered`, in the order of `params`. With `raw`, params are the bytes of their values already. Raises as `CassandraSession.execute`.
        """
        driver = self._connected()
        again = partial(self._session.again.page, statement)
        jobs = (
            parallel.Job(
                each,
                partial(
                    driver.execute_async, *(_bound(statement, each) if raw else (statement, each))
                ),
                again,
            )
            for each in params
        )
        run = parallel.in_order if ordered else parallel.as_they_come
        patience = self._session.settings.timeout.total_seconds() * 2 + 5
        with self._session.translating():
            for asked, rows in run(jobs, in_flight, patience):
                yield asked, rows[0] if rows else NO_ROWS  # type: ignore[misc]  # not tuples of values: a page

    def _connected(self) -> Any:
        with self._lock:
            if self._driver is None:
                with self._session.translating():
                    self._driver = self._session.cluster.connect()
                self._driver.client_protocol_handler = _PackedProtocol
            return self._driver


def _bound(statement: PreparedStatement, values: Sequence[object]) -> tuple[BoundStatement]:
    bound = BoundStatement(statement)
    bound.values = list(values)
    return (bound,)
