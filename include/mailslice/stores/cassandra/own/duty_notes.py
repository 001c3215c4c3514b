"""counter_claims, queue_samples, slice_statistics: notes that duties keep from run to run."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from mailslice.codec.row import epoch_ms
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.stores.cassandra.own.table import OwnTable, ttl_seconds
from mailslice.stores.cassandra.table import Statement, insert, select
from mailslice.stores.own.codec import RowCodec


@dataclass(frozen=True, slots=True)
class CounterClaim:
    """The one update that a run may send to a mailbox's counters. `outcome` None: unknown."""

    run: str
    claimed_at: datetime
    stored_count: int
    stored_unseen: int
    add_count: int
    add_unseen: int
    outcome: str | None = None


_CLAIMS = RowCodec(CounterClaim)
_CLAIMED = ("mailboxid", *_CLAIMS.columns[:-1])


class CounterClaims(OwnTable):
    """One claim for each run and mailbox, written before the update and never withdrawn."""

    TABLE = "counter_claims"
    SCHEMA = """
        mailboxid uuid, run text, claimed_at timestamp, stored_count bigint, stored_unseen bigint,
        add_count bigint, add_unseen bigint, outcome text, PRIMARY KEY (mailboxid, run)
    """

    _claim = Statement(insert(_CLAIMED, "IF NOT EXISTS USING TTL ?"), idempotent=False)
    _settle = Statement(
        "UPDATE {table} USING TTL ? SET outcome = ? WHERE mailboxid = ? AND run = ?"
    )
    _list = Statement(select(_CLAIMS.columns, "mailboxid = ?"))

    def claim(self, mailbox: UUID, claim: CounterClaim, ttl: timedelta) -> bool:
        """Writes the claim. False: the run has claimed it before. After an error: unknown."""
        values = _CLAIMS.values(claim)[:-1]  # without the outcome, which `settle` writes
        return self._apply(self._claim, [mailbox, *values, ttl_seconds(ttl)])

    def settle(self, mailbox: UUID, run: str, outcome: str, ttl: timedelta) -> None:
        self._session.execute(self._settle, [ttl_seconds(ttl), outcome, mailbox, run])

    def list(self, mailbox: UUID) -> list[CounterClaim]:
        """All claims of a mailbox, the oldest first."""
        rows = self._session.execute(self._list, [mailbox])
        # An outcome is written later, so it outlives the rest of its claim.
        claims = [_CLAIMS.record(row) for row in rows if row[1] is not None]
        return sorted(claims, key=lambda claim: claim.claimed_at)


@dataclass(frozen=True, slots=True)
class QueueSample:
    """The queue was empty in both passes, 15 s apart. A proof may count from `first_pass`."""

    first_pass: datetime
    second_pass: datetime


_SAMPLES = RowCodec(QueueSample)


class QueueSamples(OwnTable):
    """One row a queue. The sample with the newest first pass wins, in any order of writes."""

    TABLE = "queue_samples"
    SCHEMA = """
        queuename text, first_pass timestamp, second_pass timestamp, PRIMARY KEY (queuename)
    """

    _insert = Statement(insert(("queuename", *_SAMPLES.columns), "USING TIMESTAMP ?"))
    _read = Statement(select(_SAMPLES.columns, "queuename = ?"))

    def save(self, queue: QueueName, sample: QueueSample) -> None:
        """Stores the sample, unless the stored one has a later first pass."""
        first, second = _SAMPLES.values(sample)
        self._session.execute(self._insert, [queue, first, second, first * 1000])

    def get(self, queue: QueueName) -> QueueSample | None:
        """The newest sample, or None when the queue was never seen empty."""
        row = self._row(self._read, [queue])
        return None if row is None else _SAMPLES.record(row)


@dataclass(frozen=True, slots=True)
class SliceStatistic:
    """Live and dead rows of a closed slice at `cleaned_at`."""

    slice_start: datetime
    live: int
    dead: int
    cleaned_at: datetime
    survivors: tuple[EnqueueId, ...] = ()


_STATISTICS = RowCodec(SliceStatistic)


class SliceStatistics(OwnTable):
    """The closed slices of a queue, by time."""

    TABLE = "slice_statistics"
    SCHEMA = """
        queuename text, slice_start timestamp, live bigint, dead bigint,
        survivors frozen<list<uuid>>, cleaned_at timestamp, PRIMARY KEY (queuename, slice_start)
    """

    _insert = Statement(insert(("queuename", *_STATISTICS.columns)))
    _list = Statement(select(_STATISTICS.columns, "queuename = ?"))
    _delete = Statement("DELETE FROM {table} WHERE queuename = ? AND slice_start < ?")

    def save(self, queue: QueueName, statistic: SliceStatistic) -> None:
        """Write the row, over an earlier one of the slice."""
        self._session.execute(self._insert, [queue, *_STATISTICS.values(statistic)])

    def list(self, queue: QueueName) -> Iterator[SliceStatistic]:
        """All rows of the queue, oldest slice first, a page at a time."""
        return map(_STATISTICS.record, self._session.stream(self._list, [queue]))

    def delete_before(self, queue: QueueName, slice_start: datetime) -> None:
        """Deletes the rows of slices before this one, which contentStart has passed."""
        self._session.execute(self._delete, [queue, epoch_ms(slice_start)])
