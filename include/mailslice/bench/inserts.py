"""Rows by the fastest way of one process: ten inserts a request, which Cassandra takes silently."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mailslice.stores.cassandra.session import CassandraSession

_A_REQUEST = 10
_IN_FLIGHT = 64


def insert_all(session: CassandraSession, cql: str, rows: Iterable[Sequence[object]]) -> int:
    """Run an INSERT for each of the rows; how many there were."""
    batch = session.prepare(f"BEGIN UNLOGGED BATCH {'; '.join([cql] * _A_REQUEST)}; APPLY BATCH")
    iterator, rest = iter(rows), list[Sequence[object]]()

    def full() -> Iterable[list[object]]:
        while len(chunk := list(islice(iterator, _A_REQUEST))) == _A_REQUEST:
            yield list(chain.from_iterable(chunk))
        rest.extend(chunk)

    return _A_REQUEST * session.run_many(batch, full(), _IN_FLIGHT) + session.run_many(
        session.prepare(cql), rest, _IN_FLIGHT
    )
