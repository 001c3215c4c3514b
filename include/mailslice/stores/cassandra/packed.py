"""Undecoded pages of rows, as bytes of the wire protocol, for scans of millions of rows.

The driver makes a Python object of every value, which costs more than Cassandra's own work. A page
here is a row count and bytes. `mailslice.engine.page_decoder` decodes it by column.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, TypeVar

# The pure Python handler: the other one decodes rows in C, which cannot be replaced.
from cassandra.protocol import ResultMessage, read_int
from cassandra.protocol import _ProtocolHandler as ProtocolHandler
from cassandra.query import BoundStatement, PreparedStatement

Asked = TypeVar("Asked", bound=Sequence[object])


@dataclass(frozen=True, slots=True)
class PackedPage:
    """`rows` rows. `data` has each value as its length (4 bytes, -1 = null) and its bytes."""

    rows: int
    data: bytes


NO_ROWS = PackedPage(0, b"")
"""The page of a writing statement."""


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
        self.parsed_rows = [PackedPage(read_int(f), f.read())]


class _PackedProtocol(ProtocolHandler):  # type: ignore[misc]
    """The driver's protocol with _PackedResult."""

    message_types_by_opcode = {  # noqa: RUF012 - as the driver's own
        **ProtocolHandler.message_types_by_opcode,
        ResultMessage.opcode: _PackedResult,
    }


class PackedReader:
    """Reads pages by its own driver session, which connects when needed. Thread-safe."""

    def __init__(
        self, connect: Callable[[], Any], pages: Callable[..., Iterator[tuple[Any, list[Any]]]]
    ) -> None:
        self._connect = connect
        self._pages = pages
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
        """(params, page), as `CassandraSession.map`. `raw`: the params are serialized already."""
        bind = partial(_bound, statement) if raw else None
        with self._lock:
            if self._driver is None:
                self._driver = self._connect()
                self._driver.client_protocol_handler = _PackedProtocol
        pages = self._pages(self._driver, statement, params, in_flight, ordered=ordered, bind=bind)
        for values, rows in pages:
            yield values, rows[0] if rows else NO_ROWS


def _bound(statement: PreparedStatement, values: Sequence[object]) -> tuple[BoundStatement]:
    bound = BoundStatement(statement)
    bound.values = list(values)
    return (bound,)
