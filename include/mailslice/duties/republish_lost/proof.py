"""Whether a mail that an audit called lost may be published now; asked in plan and in apply."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import groupby, islice
from uuid import UUID

from mailslice.admin.evidence import (
    done_by_stages,
    held,
    in_delay_queues,
    is_overdue,
    missing_content,
    still_live,
)
from mailslice.duties.republish_lost.params import Params
from mailslice.engine.partition_scan import instant
from mailslice.maintenance.run import Run
from mailslice.model.mail import EnqueueId, Partition, ViewRow
from mailslice.model.names import QueueTable
from mailslice.model.verdicts import MailVerdict, Verdict
from mailslice.stores.cassandra.own import PublishState, Republished
from mailslice.stores.rabbitmq.checkout import dead_letter_ids
from mailslice.view.configuration import view_shape

_BATCH = 100


class SkipReason(StrEnum):
    """Why a mail is not published."""

    DOUBTFUL = Verdict.LOST_OR_GHOST.value
    """James may have delivered it; only with accept_duplicates."""
    YOUNGER = "younger"
    DONE = "done or gone"
    """It has a mark, or no row, or lies behind browseStart."""
    DELAYED = Verdict.DELAYED.value
    HELD = Verdict.HELD.value
    IN_FLIGHT = Verdict.IN_FLIGHT.value
    DEAD_LETTERED = Verdict.DEAD_LETTERED.value
    BARE = Verdict.BARE.value
    GHOST = Verdict.GHOST.value
    """A worker's own record, or the mail's stage marks, say since that it is done."""
    ALREADY = "already republished"
    BY_THIS_RUN = "already republished by this run"
    """By an earlier try of it: applied, not skipped."""
    OUTCOME_UNKNOWN = "outcome unknown"
    """An earlier publish was not confirmed; only with repeat_unknown."""


_PUBLISHED = (SkipReason.ALREADY, SkipReason.BY_THIS_RUN)
OnSkip = Callable[[str, SkipReason], None]
"""Called with the enqueue id of each mail that is not published, and why."""


@dataclass(frozen=True, slots=True)
class Proved:
    """A mail that may be published: its row, and the due time of a delay whose copy is gone."""

    mail: MailVerdict
    row: ViewRow
    due: datetime | None


class Prover:
    """Proves mails of one queue. Facts about the whole queue are of when it was made.

    Raises StoreUnavailable when the dead letters cannot be read: a mail among them is not lost.
    """

    def __init__(self, run: Run, on_skip: OnSkip) -> None:
        stores, queue = run.stores, run.queue
        self._run, self._on_skip = run, on_skip
        self._params = run.params(Params)
        self._window = view_shape(stores).window
        self._dead_letters = dead_letter_ids(run.settings, queue)
        records = stores.own.worker_records.list(queue)
        self._in_flight = {mail.enqueue_id for record in records for mail in record.held}
        self._done = {enqueue_id for record in records for enqueue_id in record.done}
        self._quarantined = held(stores, queue)
        self.in_delay_queues = in_delay_queues(stores.management, queue)

    def prove(self, mails: Iterable[MailVerdict]) -> Iterator[list[Proved]]:
        """Those that may be published, of a hundred mails at a time."""
        remaining = iter(mails)
        while batch := list(islice(remaining, _BATCH)):
            yield self._prove(batch)

    def is_live(self, proved: Proved) -> bool:
        return bool(self._live_rows({proved.row.enqueue_id: proved.mail}))

    def earlier_decision(self, decision: Republished) -> SkipReason | None:
        """What a decision that the audit did not know of says; None: it may be repeated."""
        if decision.state is PublishState.PUBLISHED:
            by_this_run = decision.run == self._run.request.run
            return SkipReason.BY_THIS_RUN if by_this_run else SkipReason.ALREADY
        return None if self._params.repeat_unknown else SkipReason.OUTCOME_UNKNOWN

    def _prove(self, mails: Sequence[MailVerdict]) -> list[Proved]:
        queue, stores = self._run.queue, self._run.stores
        by_id = {
            EnqueueId(UUID(mail.enqueue_id)): mail
            for mail in mails
            if not self._skips(mail, self._by_audit(mail))
        }
        rows = self._live_rows(by_id)
        due = stores.own.delayed_mails.waiting(queue, rows)
        decisions = stores.own.republished_mails.by_ids(queue, by_id)
        done = self._done | done_by_stages(stores, queue, rows).keys()
        bare = missing_content(self._run.settings, list(rows.values()))
        proved = []
        for enqueue_id, mail in by_id.items():
            row, when = rows.get(enqueue_id), due.get(enqueue_id)
            ghost, incomplete = enqueue_id in done, enqueue_id in bare
            why = self._unknown_to_audit(mail, decisions.get(enqueue_id))
            if why not in _PUBLISHED:
                why = self._by_facts(enqueue_id, row, when, ghost=ghost, bare=incomplete) or why
            if not self._skips(mail, why) and row is not None:
                proved.append(Proved(mail, row, when))
        return proved

    def _skips(self, mail: MailVerdict, why: SkipReason | None) -> bool:
        if why is not None:
            self._on_skip(mail.enqueue_id, why)
        return why is not None

    def _by_audit(self, mail: MailVerdict) -> SkipReason | None:
        """On a queue that James shares now lost is `lost or ghost`, whatever it was then."""
        if mail.verdict == Verdict.BARE:
            return SkipReason.BARE
        older_than = self._params.older_than
        if older_than is not None and instant(mail.enqueued_ms) > self._run.clock() - older_than:
            return SkipReason.YOUNGER
        doubtful = mail.verdict == Verdict.LOST_OR_GHOST or self._run.settings.queue.shared
        return SkipReason.DOUBTFUL if doubtful and not self._params.accept_duplicates else None

    def _unknown_to_audit(
        self, mail: MailVerdict, decision: Republished | None
    ) -> SkipReason | None:
        """A decision that the audit knew of does not count: its census did not find the mail."""
        if decision is None or decision.decision == mail.decision:
            return None
        return self.earlier_decision(decision)

    def _live_rows(self, by_id: Mapping[EnqueueId, MailVerdict]) -> dict[EnqueueId, ViewRow]:
        def partition(enqueue_id: EnqueueId) -> tuple[str, int, int]:
            mail = by_id[enqueue_id]
            return mail.table, mail.slice_ms, mail.bucket

        tables, queue = self._run.stores.tables, self._run.queue
        rows: dict[EnqueueId, ViewRow] = {}
        for (table, start, bucket), ids in groupby(sorted(by_id, key=partition), key=partition):
            where = (QueueTable(table), Partition(instant(start), bucket))
            rows |= still_live(tables, queue, self._window, where, list(ids))
        return rows

    def _by_facts(
        self,
        enqueue_id: EnqueueId,
        row: ViewRow | None,
        due: datetime | None,
        *,
        ghost: bool,
        bare: bool,
    ) -> SkipReason | None:
        delayed = due is not None and not is_overdue(due, self._run.clock(), self.in_delay_queues)
        reasons = (
            (row is None, SkipReason.DONE),
            (enqueue_id in self._quarantined, SkipReason.HELD),
            (enqueue_id in self._in_flight, SkipReason.IN_FLIGHT),
            (enqueue_id in self._dead_letters, SkipReason.DEAD_LETTERED),
            (delayed, SkipReason.DELAYED),
            (ghost, SkipReason.GHOST),
            (bare, SkipReason.BARE),
        )
        return next((reason for applies, reason in reasons if applies), None)
