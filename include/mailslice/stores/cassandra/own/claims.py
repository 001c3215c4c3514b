"""counter_claims: who was about to change a mailbox's counters, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from mailslice.stores.cassandra.own.table import OwnTable, ttl_seconds
from mailslice.stores.cassandra.table import Statement, insert, select
from mailslice.stores.own.codec import RowCodec


@dataclass(frozen=True, slots=True)
class CounterClaim:
    """The one update that a run may send to a mailbox's counters. `outcome` None: not known."""

    run: str
    claimed_at: datetime
    stored_count: int
    stored_unseen: int
    add_count: int
    add_unseen: int
    outcome: str | None = None


_ROWS = RowCodec(CounterClaim)


class CounterClaims(OwnTable):
    """One claim for each run and mailbox, written before the update and never withdrawn."""

    TABLE = "counter_claims"
    SCHEMA = """
        mailboxid uuid, run text, claimed_at timestamp, stored_count bigint, stored_unseen bigint,
        add_count bigint, add_unseen bigint, outcome text, PRIMARY KEY (mailboxid, run)
    """

    _claim = Statement(
        insert(("mailboxid", *_ROWS.columns[:-1]), "IF NOT EXISTS USING TTL ?"), idempotent=False
    )
    _settle = Statement(
        "UPDATE {table} USING TTL ? SET outcome = ? WHERE mailboxid = ? AND run = ?"
    )
    _list = Statement(select(_ROWS.columns, "mailboxid = ?"))

    def claim(self, mailbox: UUID, claim: CounterClaim, ttl: timedelta) -> bool:
        """Write the claim; False when the run has claimed it before. After an error: unknown."""
        values = _ROWS.values(claim)[:-1]  # the outcome comes later
        return self._apply(self._claim, [mailbox, *values, ttl_seconds(ttl)])

    def settle(self, mailbox: UUID, run: str, outcome: str, ttl: timedelta) -> None:
        """Write how it ended."""
        self._session.execute(self._settle, [ttl_seconds(ttl), outcome, mailbox, run])

    def list(self, mailbox: UUID) -> list[CounterClaim]:
        """All claims of a mailbox, the oldest first."""
        rows = self._session.execute(self._list, [mailbox])
        claims = (_ROWS.record(row) for row in rows if row[1] is not None)  # only settled: no claim
        return sorted(claims, key=lambda claim: claim.claimed_at)
