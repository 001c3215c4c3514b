"""Correct the counters of one mailbox: second read, claim, last look at all replicas, one update.

Whatever is not known is said, and never tried again by this run. What James added on a replica that
is away comes with it: the last look asks all replicas, and a mailbox of which one is away is left.
All of it runs in the process of the apply step: Spark could run it a second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from mailslice.duties.counter_repair import decide
from mailslice.duties.counter_repair.planned import CounterPlan, Drift
from mailslice.duties.counter_repair.second_read import reread_mailbox
from mailslice.maintenance.run import Run
from mailslice.model import crash
from mailslice.model.errors import BadSetting, StoreUnavailable
from mailslice.stores.cassandra.mailboxes import Counters
from mailslice.stores.cassandra.own import CounterClaim

DONE, SKIPPED, FAILED, UNKNOWN, REMAINING = "applied", "skipped", "failed", "unknown", "left"


class MailboxOutcome(NamedTuple):
    """What became of one mailbox, and why where it is not plain."""

    verdict: str
    why: str = ""


class MailboxCorrector:
    """Corrects mailboxes of one plan; threads may share it."""

    def __init__(self, run: Run, plan: CounterPlan) -> None:
        self._run, self._plan = run, plan
        self._throttle = run.throttle("cassandra")
        self._tables = run.stores.mailboxes
        self._claims = run.stores.own.counter_claims
        self._ttl = run.settings.duty.retention
        self._tables.prepare_to_add()

    def mailbox(self, drift: Drift, unprojected: Sequence[bytes]) -> MailboxOutcome:
        """One mailbox. `unprojected`: its messages that the plan found in the truth alone.

        Raises LockLost, and nothing for a store that fails or refuses: before the update that is
        `failed`, from then on `unknown`.
        """
        self._throttle.take()
        self._run.require_lock()
        try:
            return self._mailbox(drift, unprojected)
        except (StoreUnavailable, BadSetting) as error:
            return MailboxOutcome(FAILED, str(error))

    def _mailbox(self, drift: Drift, unprojected: Sequence[bytes]) -> MailboxOutcome:
        if (settled := self._earlier_claims(drift)) is not None:
            return settled
        if not self._tables.exists(drift.mailbox):
            return MailboxOutcome(SKIPPED, decide.NO_MAILBOX)
        stored = self._tables.counters(drift.mailbox)
        trust = self._plan.trust_projection
        digest = reread_mailbox(
            self._run.stores, drift.mailbox, unprojected, trust_projection=trust
        )
        highest_modseq = self._tables.given_modseq(drift.mailbox)
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
            # Another process of this very run is at work.
            return MailboxOutcome(UNKNOWN, decide.UNKNOWN_UPDATE)
        crash.point("apply:after-claim")
        return self._update(drift, stored)

    def _update(self, drift: Drift, stored: Counters) -> MailboxOutcome:
        self._run.require_lock()
        if (why := self._differs(drift.mailbox, stored)) is not None:
            self._claims.settle(drift.mailbox, self._plan.run, decide.WITHDRAWN, self._ttl)
            return MailboxOutcome(SKIPPED, why)
        try:
            self._tables.add(drift.mailbox, drift.add.count, drift.add.unseen)
        except Exception as error:  # noqa: BLE001 - it was sent: whatever came back, nobody knows
            self._try_to_settle(drift.mailbox, decide.UNKNOWN)
            return MailboxOutcome(UNKNOWN, f"{decide.UNKNOWN_UPDATE}: {error}")
        crash.point("apply:after-update")
        self._try_to_settle(drift.mailbox, decide.APPLIED)
        return MailboxOutcome(DONE)

    def _differs(self, mailbox: UUID, stored: Counters) -> str | None:
        """Why the counters are not those that all replicas have; None when they are."""
        try:
            everywhere = self._tables.counters_of_all_replicas(mailbox)
        except StoreUnavailable:
            return decide.AWAY
        return None if everywhere == stored else decide.MOVED

    def _try_to_settle(self, mailbox: UUID, outcome: str) -> None:
        """The update is out: whether its outcome could be written changes nothing of it.

        A claim without one counts as unknown.
        """
        try:
            self._claims.settle(mailbox, self._plan.run, outcome, self._ttl)
        except (StoreUnavailable, BadSetting):
            return

    def _earlier_claims(self, drift: Drift) -> MailboxOutcome | None:
        """What claims of this run, or of one that ended early, make of it; None: it is free."""
        for claim in self._claims.list(drift.mailbox):
            if claim.run == self._plan.run:
                return self._of_this_run(drift, claim)
            if decide.is_open(claim) and not self._is_over(drift, claim):
                return MailboxOutcome(SKIPPED, decide.EARLIER_OPEN)
        return None

    def _of_this_run(self, drift: Drift, claim: CounterClaim) -> MailboxOutcome:
        """A claim is for one update: this run sends no second one, whatever became of the first."""
        if claim.outcome == decide.APPLIED:
            return MailboxOutcome(DONE)
        if claim.outcome == decide.WITHDRAWN:
            return MailboxOutcome(SKIPPED, decide.NOT_SENT)
        if decide.was_done(claim, self._tables.counters_of_all_replicas(drift.mailbox)):
            self._try_to_settle(drift.mailbox, decide.APPLIED)
            return MailboxOutcome(DONE)
        return MailboxOutcome(UNKNOWN, decide.UNKNOWN_UPDATE)

    def _is_over(self, drift: Drift, claim: CounterClaim) -> bool:
        """Whether nothing of an earlier run's update can come any more.

        It is old enough, and every replica was asked what it has.
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
