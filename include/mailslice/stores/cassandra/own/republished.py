"""republished_mails: the ledger of decisions to publish a lost mail again. A row is claimed before the publish, so that asked twice it is published once.

A row that stayed `claimed`, or became `unknown`, belongs to a publish that nobody saw confirmed: it is told, and never repeated without being asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property
from itertools import islice

from cassandra.query import PreparedStatement

from mailslice.codec.row import epoch_ms, instant
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.stores.cassandra.session import CassandraSession, Row

REPUBLISHED_MAILS_TABLE = """(
    queuename text,
    enqueueid uuid,
    decision text,
    run text,
    state text,
    who text,
    at timestamp,
    PRIMARY KEY ((queuename, enqueueid))
)"""
_IDS_A_REQUEST = 100
_LONGEST_TTL = timedelta(days=365 * 5)


class PublishState(StrEnum):
    """How far a decision came."""

    CLAIMED = "claimed"
    """About to be published, or its process died before it said so."""
    PUBLISHED = "published"
    """The broker confirmed it."""
    UNKNOWN = "unknown"
    """Sent, and not confirmed."""


@dataclass(frozen=True, slots=True)
class Republished:
    """The newest decision on a mail. `decision` names this very attempt, `run` the run it belongs to."""

    enqueue_id: EnqueueId
    decision: str
    run: str
    state: PublishState
    who: str
    at: datetime


class RepublishedMails:
    """One row a mail: the newest decision. LWT, so that of two runs one alone may publish."""

    def __init__(self, session: CassandraSession, keyspace: str) -> None:
        self._session = session
        self._name = f"{keyspace}.republished_mails"

    def claim(
        self, queue: QueueName, wanted: Republished, instead_of: str, ttl: timedelta
    ) -> Republished:
        """Take the mail for `wanted`, in place of the decision `instead_of` (empty: of none); the decision that stands now: `wanted` when it was taken."""
        seconds = 0 if ttl > _LONGEST_TTL else max(1, int(ttl.total_seconds()))
        values = [wanted.decision, wanted.run, wanted.state.value, wanted.who, epoch_ms(wanted.at)]
        if instead_of:
            taken = bool(
                self._session.execute(
                    self._replace, [seconds, *values, queue, wanted.enqueue_id, instead_of]
                )[0][0]
            )
        else:
            taken = bool(
                self._session.execute(self._insert, [queue, wanted.enqueue_id, *values, seconds])[
                    0
                ][0]
            )
        if taken:
            return wanted
        # A decision that went by its TTL in between leaves nothing to read: then the next run decides anew.
        return self.read(queue, wanted.enqueue_id) or wanted.__class__(
            wanted.enqueue_id, "", "", PublishState.UNKNOWN, "", wanted.at
        )

    def settle(
        self,
        queue: QueueName,
        decision: Republished,
        state: PublishState,
        at: datetime,
        ttl: timedelta,
    ) -> bool:
        """Say how the claimed decision ended; False when it does not stand any more."""
        seconds = 0 if ttl > _LONGEST_TTL else max(1, int(ttl.total_seconds()))
        values = [decision.decision, decision.run, state.value, decision.who, epoch_ms(at)]
        return bool(
            self._session.execute(
                self._replace, [seconds, *values, queue, decision.enqueue_id, decision.decision]
            )[0][0]
        )

    def read(self, queue: QueueName, enqueue_id: EnqueueId) -> Republished | None:
        """The newest decision on a mail, or None."""
        rows = self._session.execute(self._some, [queue, [enqueue_id]])
        return _row(rows[0]) if rows else None

    def some(
        self, queue: QueueName, ids: Iterable[EnqueueId], in_flight: int = 8
    ) -> dict[EnqueueId, Republished]:
        """Those of `ids` on which something was decided."""
        remaining = iter(ids)

        def chunks() -> Iterator[list[object]]:
            while chunk := list(islice(remaining, _IDS_A_REQUEST)):
                yield [queue, chunk]

        found = (
            _row(row)
            for _, rows in self._session.map(self._some, chunks(), in_flight)
            for row in rows
        )
        return {each.enqueue_id: each for each in found}

    @cached_property
    def _insert(self) -> PreparedStatement:
        return self._session.prepare(
            f"INSERT INTO {self._name} (queuename, enqueueid, decision, run, state, who, at) VALUES (?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS USING TTL ?",
            idempotent=False,
        )

    @cached_property
    def _replace(self) -> PreparedStatement:
        return self._session.prepare(
            f"UPDATE {self._name} USING TTL ? SET decision = ?, run = ?, state = ?, who = ?, at = ? WHERE queuename = ? AND enqueueid = ? IF decision = ?",
            idempotent=False,
        )

    @cached_property
    def _some(self) -> PreparedStatement:
        return self._session.prepare(
            f"SELECT enqueueid, decision, run, state, who, at FROM {self._name} WHERE queuename = ? AND enqueueid IN ?",
            paged=False,
        )


def _row(values: Row) -> Republished:
    enqueue_id, decision, run, state, who, at = values
    return Republished(
        EnqueueId(enqueue_id),
        str(decision),
        str(run),
        PublishState(state),
        str(who or ""),
        instant(at),
    )
