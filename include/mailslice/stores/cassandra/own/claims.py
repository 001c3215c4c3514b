"""counter_claims: who was about to change a mailbox's counters, and what became of it. A counter cannot be written twice and be the same."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from uuid import UUID

from cassandra.query import PreparedStatement

from mailslice.codec.row import epoch_ms, instant
from mailslice.stores.cassandra.session import CassandraSession

COUNTER_CLAIMS_TABLE = """(
    mailboxid uuid,
    run text,
    claimed_at timestamp,
    stored_count bigint,
    stored_unseen bigint,
    add_count bigint,
    add_unseen bigint,
    outcome text,
    PRIMARY KEY (mailboxid, run)
)"""

_LONGEST_TTL = timedelta(days=365 * 5)


@dataclass(frozen=True, slots=True)
class CounterClaim:
    """The one update that a run may send to a mailbox's counters: what was stored, and what is added. `outcome` None: nobody wrote how it ended."""

    run: str
    claimed_at: datetime
    stored_count: int
    stored_unseen: int
    add_count: int
    add_unseen: int
    outcome: str | None = None


class CounterClaims:
    """One claim for each run and mailbox, written before the update and never withdrawn."""

    def __init__(self, session: CassandraSession, keyspace: str) -> None:
        self._session = session
        self._name = f"{keyspace}.counter_claims"

    def claim(self, mailbox: UUID, claim: CounterClaim, ttl: timedelta) -> bool:
        """Write the claim IF NOT EXISTS; False when this run has claimed the mailbox before. What this raises leaves open whether it is written."""
        values = [
            mailbox,
            claim.run,
            epoch_ms(claim.claimed_at),
            claim.stored_count,
            claim.stored_unseen,
            claim.add_count,
            claim.add_unseen,
        ]
        return bool(self._session.execute(self._claim, [*values, _seconds(ttl)])[0][0])

    def settle(self, mailbox: UUID, run: str, outcome: str, ttl: timedelta) -> None:
        """Write how it ended."""
        self._session.execute(self._settle, [_seconds(ttl), outcome, mailbox, run])

    def list(self, mailbox: UUID) -> list[CounterClaim]:
        """All claims of a mailbox, the oldest first."""
        rows = (row for row in self._session.execute(self._read, [mailbox]) if row[1] is not None)
        return sorted(
            (CounterClaim(row[0], instant(row[1]), *row[2:]) for row in rows),
            key=lambda claim: claim.claimed_at,
        )

    @cached_property
    def _claim(self) -> PreparedStatement:
        columns = "mailboxid, run, claimed_at, stored_count, stored_unseen, add_count, add_unseen"
        return self._session.prepare(
            f"INSERT INTO {self._name} ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS USING TTL ?",
            idempotent=False,
        )

    @cached_property
    def _settle(self) -> PreparedStatement:
        return self._session.prepare(
            f"UPDATE {self._name} USING TTL ? SET outcome = ? WHERE mailboxid = ? AND run = ?"
        )

    @cached_property
    def _read(self) -> PreparedStatement:
        columns = "run, claimed_at, stored_count, stored_unseen, add_count, add_unseen, outcome"
        return self._session.prepare(f"SELECT {columns} FROM {self._name} WHERE mailboxid = ?")


def _seconds(ttl: timedelta) -> int:
    """Cassandra refuses what would expire after January 2038; a longer one is for ever."""
    return 0 if ttl > _LONGEST_TTL else max(1, int(ttl.total_seconds()))
