"""Pages of rows as they came over the wire, undecoded: for scans of millions of rows.

The driver makes one Python object of every value, which costs more than Cassandra's own work. A
page here is its row count and its bytes; `mailslice.engine.page_decoder` decodes it by column.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, TypeVar

# The pure handler: the other decodes rows in C, where nothing can be put in its place.
from cassandra.protocol import ResultMessage, read_int
from cassandra.protocol import _ProtocolHandler as ProtocolHandler
from cassandra.query import BoundStatement, PreparedStatement

Asked = TypeVar("Asked", bound=Sequence[object])


@dataclass(frozen=True, slots=True)
class PackedPage:
    """So many rows; a value is its length (4 bytes, -1 = null) and its bytes, as on the wire."""

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
        self.parsed_rows = [PackedPage(read_int(f), f.read())]


class _PackedProtocol(ProtocolHandler):  # type: ignore[misc]
    """The driver's protocol with such results."""

    message_types_by_opcode = {  # noqa: RUF012 - as the driver's own
        **ProtocolHandler.message_types_by_opcode,
        ResultMessage.opcode: _PackedResult,
    }


class PackedReader:
    """Reads pages by a driver session of its own, connected when needed. Thread-safe."""

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
        """(params, page), as `CassandraSession.map`; `raw` params are the bytes of their values."""
        bind = partial(_bound, statement) if raw else None
        with self._lock:
            if self._driver is None:
                self._driver = self._connect()
                self._driver.client_protocol_handler = _PackedProtocol
        pages = self._pages(self._driver, statement, params, in_flight, ordered=ordered, bind=bind)
        for asked, rows in pages:
            yield asked, rows[0] if rows else NO_ROWS


def _bound(statement: PreparedStatement, values: Sequence[object]) -> tuple[BoundStatement]:
    bound = BoundStatement(statement)
    bound.values = list(values)
    return (bound,)
