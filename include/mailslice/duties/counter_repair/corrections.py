"""Corrects counters: second read, claim, last read of all replicas, one update for each mailbox.

If the outcome of an update is unknown it is reported so, and this run never repeats the update. The
last read needs all replicas, because a replica that is down may hide an update of James: then the
mailbox is skipped. All this runs in the process of the apply step: Spark could run it twice.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import chain
from threading import Lock
from typing import NamedTuple
from uuid import UUID

from mailslice.duties.counter_repair import decide
from mailslice.duties.counter_repair.fingerprints import (
    MessageDigest,
    layout_of,
    message_digest,
    messages_of,
)
from mailslice.duties.counter_repair.planned import CounterPlan, Drift
from mailslice.duties.counter_repair.scan_task import ids_of
from mailslice.engine.page_decoder import decode
from mailslice.maintenance.progress import Progress
from mailslice.maintenance.run import Run
from mailslice.model import crash
from mailslice.model.batches import batches
from mailslice.model.errors import BadSetting, StoreUnavailable
from mailslice.stores import Stores
from mailslice.stores.cassandra.mailboxes import Counters
from mailslice.stores.cassandra.own import CounterClaim

_IDS_A_READ = 100
_READS_IN_FLIGHT = 8


def reread_mailbox(
    stores: Stores, mailbox: UUID, also: Sequence[bytes], *, trust_projection: bool
) -> MessageDigest:
    """The mailbox's messages now, in the truth or (`trust_projection`) in the projection.

    imapUidTable has no index by mailbox. So the ids come from the projection and from `also`, the
    messages that only the truth had when planned. This misses a message that arrived since the
    first read and is not projected yet. Its counter update is missing then, too.
    """
    tables, packed = stores.mailboxes, stores.cassandra.packed
    layout = layout_of(tables.message_columns)
    pages = (decode(page, layout) for _, page in packed.pages(tables.of_mailbox, [[mailbox]], 1))
    if trust_projection:
        return sum((message_digest(columns, tables.flags) for columns in pages), MessageDigest())
    projected = chain.from_iterable(ids_of(messages_of(page), "messageid") for page in pages)
    requested = (
        [[UUID(bytes=key) for key in ids], mailbox]
        # Without duplicates: a message may have two rows.
        for ids in batches(dict.fromkeys(chain(projected, also)), _IDS_A_READ)
    )
    digests = (
        message_digest(decode(page, layout), tables.flags)
        for _, page in packed.pages(tables.of_messages, requested, _READS_IN_FLIGHT)
    )
    return sum(digests, MessageDigest())


DONE, SKIPPED, FAILED, UNKNOWN, REMAINING = "applied", "skipped", "failed", "unknown", "left"


class MailboxOutcome(NamedTuple):
    """The outcome of one mailbox. `why`: the reason, unless it was corrected."""

    verdict: str
    why: str = ""


class MailboxCorrector:
    """Corrects mailboxes of one plan. Thread-safe."""

    def __init__(self, run: Run, plan: CounterPlan) -> None:
        self._run, self._plan = run, plan
        self._throttle = run.throttle("cassandra")
        self._tables = run.stores.mailboxes
        self._claims = run.stores.own.counter_claims
        self._ttl = run.settings.duty.claim_ttl
        self._tables.prepare_to_add()

    def mailbox(self, drift: Drift, unprojected: Sequence[bytes]) -> MailboxOutcome:
        """Correct one mailbox. `unprojected`: its messages that only the truth had when planned.

        Raises LockLost. A store that fails or refuses gives the verdict `failed` before the update,
        `unknown` from then on.
        """
        self._throttle.take()
        self._run.require_lock()
        try:
            return self._mailbox(drift, unprojected)
        except (StoreUnavailable, BadSetting) as error:
            return MailboxOutcome(FAILED, str(error))

    def _mailbox(self, drift: Drift, unprojected: Sequence[bytes]) -> MailboxOutcome:
        if (outcome := self._earlier_claims(drift)) is not None:
            return outcome
        if not self._tables.exists(drift.mailbox):
            return MailboxOutcome(SKIPPED, decide.NO_MAILBOX)
        stored = self._tables.counters(drift.mailbox)
        digest = self._reread(drift, unprojected)
        highest_modseq = self._tables.highest_modseq(drift.mailbox)
        why = decide.refused(drift, stored, digest, highest_modseq, self._plan.made_at)
        if why is None:
            why = self._differs(drift.mailbox, stored)
        if why is not None:
            return MailboxOutcome(SKIPPED, why)
        crash.point("apply:before-claim")
        add, now = drift.add, self._run.clock()
        claim = CounterClaim(
            self._plan.run, now, stored.count, stored.unseen, add.count, add.unseen
        )
        if not self._claims.claim(drift.mailbox, claim, self._ttl):
            # Another process of this run is working on the mailbox.
            return MailboxOutcome(UNKNOWN, decide.UNKNOWN_UPDATE)
        crash.point("apply:after-claim")
        return self._update(drift, stored)

    def _reread(self, drift: Drift, unprojected: Sequence[bytes] | None = None) -> MessageDigest:
        if unprojected is None:
            of_plan = self._plan.unprojected(self._run, [drift.mailbox])
            unprojected = of_plan.get(drift.mailbox, ())
        trust = self._plan.trust_projection
        return reread_mailbox(self._run.stores, drift.mailbox, unprojected, trust_projection=trust)

    def _update(self, drift: Drift, stored: Counters) -> MailboxOutcome:
        if (why := self._differs(drift.mailbox, stored)) is not None:
            self._claims.settle(drift.mailbox, self._plan.run, decide.WITHDRAWN, self._ttl)
            return MailboxOutcome(SKIPPED, why)
        self._run.require_lock()
        try:
            self._tables.add(drift.mailbox, drift.add.count, drift.add.unseen)
        except Exception as error:  # noqa: BLE001 - it was sent: any error leaves it unknown
            self._try_to_settle(drift.mailbox, decide.UNKNOWN)
            return MailboxOutcome(UNKNOWN, f"{decide.UNKNOWN_UPDATE}: {error}")
        crash.point("apply:after-update")
        self._try_to_settle(drift.mailbox, decide.APPLIED)
        return MailboxOutcome(DONE)

    def _differs(self, mailbox: UUID, stored: Counters) -> str | None:
        """Why all replicas cannot confirm the counters; None if they do."""
        try:
            everywhere = self._tables.counters_of_all_replicas(mailbox)
        except StoreUnavailable:
            return decide.AWAY
        return None if everywhere == stored else decide.MOVED

    def _try_to_settle(self, mailbox: UUID, outcome: str) -> None:
        """Record the outcome of an update that was sent.

        If that fails the update still happened. A claim without an outcome counts as unknown.
        """
        with suppress(StoreUnavailable, BadSetting):
            self._claims.settle(mailbox, self._plan.run, outcome, self._ttl)

    def _earlier_claims(self, drift: Drift) -> MailboxOutcome | None:
        """The outcome that claims of this run or an earlier one decide; None: none of them does."""
        for claim in self._claims.list(drift.mailbox):
            if claim.run == self._plan.run:
                return self._of_this_run(drift, claim)
            if decide.is_open(claim) and not self._is_over(drift, claim):
                return MailboxOutcome(SKIPPED, decide.EARLIER_OPEN)
        return None

    def _of_this_run(self, drift: Drift, claim: CounterClaim) -> MailboxOutcome:
        """A claim allows one update: this run sends no second one, even if the first failed."""
        if claim.outcome == decide.APPLIED:
            return self._done_by(claim)
        if claim.outcome == decide.WITHDRAWN:
            return MailboxOutcome(SKIPPED, decide.NOT_SENT)
        try:
            everywhere = self._tables.counters_of_all_replicas(drift.mailbox)
        except StoreUnavailable:
            return MailboxOutcome(UNKNOWN, decide.UNKNOWN_UPDATE)
        # James may have changed the counters by the same number: then the messages changed, too.
        if decide.was_done(claim, everywhere) and self._reread(drift) == drift.digest:
            self._try_to_settle(drift.mailbox, decide.APPLIED)
            return self._done_by(claim)
        return MailboxOutcome(UNKNOWN, decide.UNKNOWN_UPDATE)

    def _done_by(self, claim: CounterClaim) -> MailboxOutcome:
        """DONE if the update belongs to this plan, SKIPPED if to an earlier plan of this run."""
        if decide.is_of_plan(claim, self._plan.made_at):
            return MailboxOutcome(DONE)
        return MailboxOutcome(SKIPPED, decide.EARLIER_PLAN)

    def _is_over(self, drift: Drift, claim: CounterClaim) -> bool:
        """Whether an earlier run's update can no longer change a counter.

        It is older than SENT_FOR, and all replicas answer with the same counters.
        """
        if self._run.clock() - claim.claimed_at < decide.SENT_FOR:
            return False
        try:
            everywhere = self._tables.counters_of_all_replicas(drift.mailbox)
        except StoreUnavailable:
            return False
        if everywhere != self._tables.counters(drift.mailbox):
            return False
        outcome = decide.APPLIED if decide.was_done(claim, everywhere) else decide.OVER
        self._claims.settle(drift.mailbox, claim.run, outcome, self._ttl)
        return True


AT_ONCE = 1_000
THREADS = 8
NOT_REACHED = "the step ended before it"
_MAX_FAILURES = 20
"""After this many failures in a row the store counts as down, and other mailboxes are left."""


class CounterWork:
    """Corrects the mailboxes of one plan."""

    def __init__(
        self,
        run: Run,
        plan: CounterPlan,
        progress: Progress,
        *,
        corrector: Callable[[Run, CounterPlan], MailboxCorrector] = MailboxCorrector,
        threads: int = THREADS,
        max_failures: int = _MAX_FAILURES,
    ) -> None:
        self._run, self._plan, self._progress = run, plan, progress
        self._corrector = corrector(run, plan)
        self._threads, self._max_failures = threads, max_failures
        self._outcomes: dict[UUID, MailboxOutcome] = {}
        self._unknown = self._failures = 0
        self._counting = Lock()
        self._ended = False

    def correct_all(self, drifts: Sequence[Drift]) -> None:
        """Correct the mailboxes. Reports `unknown` and all outcomes, even after an exception."""
        # A new try decides every mailbox again, so the report of the earlier try is dropped.
        self._run.report(unknown=0, outcomes={})
        try:
            with ThreadPoolExecutor(self._threads) as pool:
                for chunk in batches(drifts, AT_ONCE):
                    unprojected = self._plan.unprojected(self._run, [d.mailbox for d in chunk])
                    list(pool.map(partial(self._correct, unprojected), chunk))
        finally:
            not_reached = MailboxOutcome(REMAINING, NOT_REACHED)
            outcomes = {
                str(drift.mailbox): list(self._outcomes.get(drift.mailbox, not_reached))
                for drift in drifts
            }
            self._run.report(outcomes=outcomes)

    def _correct(self, unprojected: Mapping[UUID, Sequence[bytes]], drift: Drift) -> None:
        """Correct one mailbox, unless it is too late to begin one. Thread-safe."""
        if self._ended:
            return
        try:
            outcome = self._too_late() or self._corrector.mailbox(
                drift, unprojected.get(drift.mailbox, ())
            )
        except BaseException:
            self._ended = True
            raise
        with self._counting:
            self._count(drift.mailbox, outcome)

    def _too_late(self) -> MailboxOutcome | None:
        if self._run.out_of_time():
            return MailboxOutcome(REMAINING, decide.TIME_OVER)
        if self._failures >= self._max_failures:
            return MailboxOutcome(REMAINING, f"{self._failures} mailboxes before it failed")
        return None

    def _count(self, mailbox: UUID, outcome: MailboxOutcome) -> None:
        self._outcomes[mailbox] = outcome
        if outcome.verdict == REMAINING:
            return
        failed = outcome.verdict in {FAILED, UNKNOWN}
        self._failures = self._failures + 1 if failed else 0
        if outcome.verdict == UNKNOWN:
            self._unknown += 1
            self._run.report(unknown=self._unknown)
        if failed:
            self._progress.fail(str(mailbox), outcome.why)
        elif outcome.verdict == SKIPPED:
            self._progress.skip(outcome.why)
        elif outcome.verdict == DONE:
            self._progress.done()
