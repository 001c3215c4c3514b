"""republished_mails: the ledger of decisions to publish a lost mail again; dead_letter_notes.

A row is claimed before the publish, so that two requests publish the mail once. A row that stayed
`claimed`, or became `unknown`, belongs to a publish without a confirm. mailslice reports it, and
never repeats it unasked.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from mailslice.model.mail import EnqueueId, QueueName
from mailslice.stores.cassandra.own.table import OwnTable, ttl_seconds
from mailslice.stores.cassandra.table import Statement, assignments, insert, select
from mailslice.stores.own.codec import RowCodec


class PublishState(StrEnum):
    """The progress of a decision."""

    CLAIMED = "claimed"
    """The publish follows, or the process died before it recorded the outcome."""
    PUBLISHED = "published"
    """The broker confirmed the publish."""
    UNKNOWN = "unknown"
    """The publish was sent, and not confirmed."""


@dataclass(frozen=True, slots=True)
class Republished:
    """The newest decision on a mail. `decision` is the id of the attempt, `run` that of its run."""

    enqueue_id: EnqueueId
    decision: str
    run: str
    state: PublishState
    who: str
    at: datetime


_ROWS = RowCodec(Republished, enqueue_id="enqueueid")


class RepublishedMails(OwnTable):
    """One row a mail: the newest decision. Writes are LWT: of two runs only one may publish."""

    TABLE = "republished_mails"
    SCHEMA = """
        queuename text, enqueueid uuid, decision text, run text, state text, who text, at timestamp,
        PRIMARY KEY ((queuename, enqueueid))
    """

    _insert = Statement(
        insert(("queuename", *_ROWS.columns), "IF NOT EXISTS USING TTL ?"), idempotent=False
    )
    _replace = Statement(
        f"UPDATE {{table}} USING TTL ? SET {assignments(_ROWS.columns[1:])} "
        "WHERE queuename = ? AND enqueueid = ? IF decision = ?",
        idempotent=False,
    )
    _by_ids = Statement(select(_ROWS.columns, "queuename = ? AND enqueueid IN ?"), paged=False)

    def claim(
        self, queue: QueueName, requested: Republished, instead_of: str, ttl: timedelta
    ) -> Republished:
        """Replaces decision `instead_of` (empty: none) by `requested`. Returns the stored one."""
        if instead_of:
            taken = self._put(queue, requested, instead_of, ttl)
        else:
            values = [queue, *_ROWS.values(requested), ttl_seconds(ttl)]
            taken = self._apply(self._insert, values)
        if taken:
            return requested
        # A decision that expired in between cannot be read: the next run decides again.
        stored = self.get(queue, requested.enqueue_id)
        return stored or replace(requested, decision="", run="", state=PublishState.UNKNOWN, who="")

    def settle(
        self,
        queue: QueueName,
        decision: Republished,
        state: PublishState,
        at: datetime,
        ttl: timedelta,
    ) -> bool:
        """Writes how the claimed decision ended. False: another decision has replaced it."""
        return self._put(queue, replace(decision, state=state, at=at), decision.decision, ttl)

    def get(self, queue: QueueName, enqueue_id: EnqueueId) -> Republished | None:
        return self.by_ids(queue, [enqueue_id]).get(enqueue_id)

    def by_ids(self, queue: QueueName, ids: Iterable[EnqueueId]) -> dict[EnqueueId, Republished]:
        decisions = map(_ROWS.record, self._rows_by_ids(self._by_ids, queue, ids))
        return {decision.enqueue_id: decision for decision in decisions}

    def _put(
        self, queue: QueueName, decision: Republished, instead_of: str, ttl: timedelta
    ) -> bool:
        enqueue_id, *values = _ROWS.values(decision)
        params = [ttl_seconds(ttl), *values, queue, enqueue_id, instead_of]
        return self._apply(self._replace, params)


_TTL = f"USING TTL {365 * 86400}"


@dataclass(frozen=True, slots=True)
class DeadLetterNote:
    """The redrives of one dead letter."""

    redrives: int = 0
    redriven_at: datetime | None = None


_NOTES = RowCodec(DeadLetterNote)
_NOTED = ("enqueueid", *_NOTES.columns)


class DeadLetterNotes(OwnTable):
    """One row a mail. It expires a year after its last write."""

    TABLE = "dead_letter_notes"
    SCHEMA = """
        queuename text, enqueueid uuid, redrives int, redriven_at timestamp,
        PRIMARY KEY ((queuename, enqueueid))
    """

    _insert = Statement(insert(("queuename", *_NOTED), _TTL))
    _by_ids = Statement(select(_NOTED, "queuename = ? AND enqueueid IN ?"), paged=False)

    def count_redrive(
        self, queue: QueueName, enqueue_id: EnqueueId, redrives: int, at: datetime
    ) -> None:
        """Records redrive number `redrives` before its publish, so that a crash loses no count."""
        note = DeadLetterNote(redrives, at)
        self._session.execute(self._insert, [queue, enqueue_id, *_NOTES.values(note)])

    def by_ids(self, queue: QueueName, ids: Iterable[EnqueueId]) -> dict[EnqueueId, DeadLetterNote]:
        rows = self._rows_by_ids(self._by_ids, queue, ids)
        return {enqueue_id: _NOTES.record(values) for enqueue_id, *values in rows}
