"""Simulates conditional writes (LWT) that Paxos accepts and does not answer, on one node.

A minority of replicas has accepted the proposal. The writer gets a time-out. No plain read shows
the write. The next Paxos round on that partition, of a conditional write or a SERIAL read, finishes
the write first. A cluster of one node cannot be brought into that state, so the write is held
back here and sent before the next such statement on the table.
"""

from __future__ import annotations

from typing import Any

from cassandra import ConsistencyLevel, WriteTimeout, WriteType
from cassandra.cluster import Session

from mailslice.stores.cassandra.coordinator_retry import text_of


class Unanswered:
    """A context manager that intercepts the statements of all sessions on one table."""

    def __init__(self, table: str) -> None:
        self._table = f".{table} "
        self._armed = False
        self._accepted: list[tuple[Any, ...]] = []

    def __enter__(self) -> Unanswered:
        self._send = Session.execute_async

        def execute(session: Session, *args: Any, **options: Any) -> Any:
            return self._execute(session, *args, **options)

        Session.execute_async = execute
        return self

    def __exit__(self, *_: object) -> None:
        Session.execute_async = self._send

    def arm(self) -> None:
        """Makes the next conditional write on the table accepted and unanswered."""
        self._armed = True

    def _execute(self, session: Session, statement: Any, *args: Any, **options: Any) -> Any:
        if self._table not in text_of(statement):
            return self._send(session, statement, *args, **options)
        conditional = " IF " in text_of(statement)
        if conditional and self._armed:
            self._armed = False
            self._accepted.append((statement, *args))
            return _TimedOut()
        if conditional or getattr(statement, "consistency_level", 0) == ConsistencyLevel.SERIAL:
            while self._accepted:
                self._send(session, *self._accepted.pop()).result()
        return self._send(session, statement, *args, **options)


class _TimedOut:
    """The future of a write that was not answered."""

    def result(self) -> Any:
        raise WriteTimeout(
            "no answer", consistency=ConsistencyLevel.SERIAL, write_type=WriteType.CAS
        )
