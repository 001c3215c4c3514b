"""Whether a mail that an audit called lost may be published now: looked at anew, when planning and once more when applying."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import groupby, islice
from uuid import UUID

from mailslice.duties.republish_lost.params import Params
from mailslice.duty.context import StepContext
from mailslice.model.mail import EnqueueId, Place, ViewRow
from mailslice.model.names import QueueTable
from mailslice.model.verdicts import Verdict
from mailslice.queue.configuration import view_shape
from mailslice.queue.proofs import done_by_stages, held, is_overdue, missing_content, still_live
from mailslice.spark.slices import instant
from mailslice.spark.verdict_files import Judged
from mailslice.stores import Stores
from mailslice.stores.cassandra.own import PublishState, Republished
from mailslice.stores.rabbitmq.census import dead_letter_ids

_AT_A_TIME = 100


class Skipped(StrEnum):
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
    OUTCOME_UNKNOWN = "outcome unknown"
    """An earlier publish was not seen confirmed; only with repeat_unknown."""


@dataclass(frozen=True, slots=True)
class Proved:
    """A mail that may be published: what the audit said of it, its row, and the due time of a delay whose copy is gone."""

    judged: Judged
    row: ViewRow
    due: datetime | None


@dataclass
class Prover:
    """Proves mails of one queue, with what is known of the whole queue as of its making. `skipped` counts reasons, `unknown` names mails without an outcome."""

    context: StepContext
    params: Params
    window: timedelta
    dead_letters: set[EnqueueId]
    in_flight: frozenset[EnqueueId]
    done: frozenset[EnqueueId]
    held: Mapping[EnqueueId, str]
    in_delay_queues: int | None
    skipped: Counter[str] = field(default_factory=Counter)
    unknown: list[str] = field(default_factory=list)
    published_before: int = 0
    """By an earlier try of this very run."""

    @classmethod
    def of(cls, context: StepContext) -> Prover:
        """Look at the queue. Raises StoreUnavailable when the dead letters cannot be looked through: a mail among them is not lost."""
        stores, queue = context.stores, context.queue
        records = stores.own.worker_records.list(queue)
        return cls(
            context,
            context.params(Params),
            view_shape(stores).window,
            dead_letter_ids(context.settings, queue),
            frozenset(
                mail.enqueue_id
                for record in records
                if record.is_alive
                for mail in record.in_flight
                if not mail.returned
            ),
            frozenset(enqueue_id for record in records for enqueue_id in record.done),
            held(stores, queue),
            in_delay_queues(stores, context),
        )

    def prove(self, mails: Iterable[Judged]) -> Iterator[list[Proved]]:
        """Those that may be published, a hundred at a time; the others are counted."""
        remaining = iter(mails)
        while some := list(islice(remaining, _AT_A_TIME)):
            yield self._prove(some)

    def _prove(self, mails: Sequence[Judged]) -> list[Proved]:
        queue, stores = self.context.queue, self.context.stores
        wanted = {
            EnqueueId(UUID(mail.enqueue_id)): mail
            for mail in mails
            if not self._skip(self._by_the_audit(mail))
        }
        rows = self._live(wanted)
        due = stores.own.delayed_mails.waiting(queue, rows)
        decisions = stores.own.republished_mails.some(queue, wanted)
        done = self.done | done_by_stages(stores, queue, rows).keys()
        missing = missing_content(self.context.settings, list(rows.values()))
        proved = []
        for one, mail in wanted.items():
            decision = self._unknown_to_the_audit(mail, decisions.get(one))
            if decision is not None and decision.state is PublishState.PUBLISHED:
                if decision.run == self.context.request.run:
                    self.published_before += 1
                else:
                    self._skip(Skipped.ALREADY)
                continue
            why = self._why_not(
                one, rows.get(one), due.get(one), ghost=one in done, bare=one in missing
            )
            if why is None and decision is not None:
                why = self.standing(decision)
            if not self._skip(why):
                proved.append(Proved(mail, rows[one], due.get(one)))
        return proved

    def _skip(self, why: Skipped | None) -> bool:
        if why is not None:
            self.skipped[why.value] += 1
        return why is not None

    def _by_the_audit(self, mail: Judged) -> Skipped | None:
        """By what the audit said. On a queue that James shares today, lost is `lost or ghost`, whatever the setting was then."""
        if mail.verdict == Verdict.BARE:
            return Skipped.BARE
        if (
            self.params.older_than is not None
            and instant(mail.enqueued_ms) > self.context.clock() - self.params.older_than
        ):
            return Skipped.YOUNGER
        doubtful = mail.verdict == Verdict.LOST_OR_GHOST or self.context.settings.queue.shared
        return Skipped.DOUBTFUL if doubtful and not self.params.accept_duplicates else None

    def _live(self, wanted: Mapping[EnqueueId, Judged]) -> dict[EnqueueId, ViewRow]:
        def where(one: EnqueueId) -> tuple[str, int, int]:
            return wanted[one].table, wanted[one].slice_ms, wanted[one].bucket

        rows: dict[EnqueueId, ViewRow] = {}
        for (table, start, bucket), ids in groupby(sorted(wanted, key=where), key=where):
            place = (QueueTable(table), Place(instant(start), bucket))
            rows |= still_live(
                self.context.stores.tables, self.context.queue, self.window, place, list(ids)
            )
        return rows

    def _why_not(
        self, one: EnqueueId, row: ViewRow | None, due: datetime | None, *, ghost: bool, bare: bool
    ) -> Skipped | None:
        """By what is known of the mail now."""
        delayed = due is not None and not is_overdue(
            due, self.context.clock(), self.in_delay_queues
        )
        reasons = (
            (row is None, Skipped.DONE),
            (one in self.held, Skipped.HELD),
            (one in self.in_flight, Skipped.IN_FLIGHT),
            (one in self.dead_letters, Skipped.DEAD_LETTERED),
            (delayed, Skipped.DELAYED),
            (ghost, Skipped.GHOST),
            (bare, Skipped.BARE),
        )
        return next((reason for holds, reason in reasons if holds), None)

    @staticmethod
    def _unknown_to_the_audit(mail: Judged, decision: Republished | None) -> Republished | None:
        """A decision that the audit knew of is older than its census, which found the mail nowhere since: it does not count any more."""
        return None if decision is None or decision.decision == mail.decision else decision

    def standing(self, decision: Republished) -> Skipped | None:
        """What an earlier decision that the audit did not know of means for this run; counts nothing but the mails without an outcome."""
        if decision.state is PublishState.PUBLISHED:
            return Skipped.ALREADY
        if self.params.repeat_unknown:
            return None
        self.unknown.append(str(decision.enqueue_id))
        return Skipped.OUTCOME_UNKNOWN


def in_delay_queues(stores: Stores, context: StepContext) -> int | None:
    """Messages in the delay levels, on their hop between them, and parked; None when nobody knows."""
    management = stores.management
    depths = [
        management.depth(name)
        for name in management.waiting_queues(context.queue)
        if management.queue_exists(name)
    ]
    return None if None in depths else sum(depth.total for depth in depths if depth is not None)
