"""Rows that a benchmark needs, as fast as one process can send them: ten inserts a request, which is what Cassandra takes in a batch without a warning."""

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
    many = session.prepare(f"BEGIN UNLOGGED BATCH {'; '.join([cql] * _A_REQUEST)}; APPLY BATCH")
    waiting, rest = iter(rows), list[Sequence[object]]()

    def full() -> Iterable[list[object]]:
        while len(some := list(islice(waiting, _A_REQUEST))) == _A_REQUEST:
            yield list(chain.from_iterable(some))
        rest.extend(some)

    return _A_REQUEST * session.run_many(many, full(), _IN_FLIGHT) + session.run_many(
        session.prepare(cql), rest, _IN_FLIGHT
    )
