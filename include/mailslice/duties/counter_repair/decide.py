"""Whether a drift may be applied, by what two reads saw. Pure: no store, no clock.

Why a difference of two reads that agree is right although others go on writing: whoever adds or
removes a message changes truth and counter by the same number, in some order. A mailbox that looks
the same twice, `settle` apart, has no such change half done; what comes later adds to both.

Looking the same is not enough where messages come and go: an append that one read saw half may be
half undone again in the other, and one that is not projected yet hides the end of a deletion. Each
append takes a modSeq first, so James' own highest modSeq, read before the first read and after the
second, tells. (tests/unit/duties/counter_repair/test_walk.py found both.)
"""

from datetime import datetime, timedelta

from mailslice.duties.counter_repair.fingerprints import MessageDigest, ticks
from mailslice.duties.counter_repair.planned import Drift
from mailslice.stores.cassandra.mailboxes import Counters
from mailslice.stores.cassandra.own import CounterClaim

MOVED = "the mailbox moved between the two reads"
NEWER = "something in the mailbox is newer than the first read"
RIGHT_NOW = "the counters are right by now"
NO_MAILBOX = "the mailbox is gone"
AWAY = "a replica is away"
NOT_SENT = "an earlier try of this run claimed the mailbox and sent nothing"
EARLIER_PLAN = "this run corrected it by an earlier plan: start a new run"
EARLIER_OPEN = "an update of an earlier run may still come"
TIME_OVER = "the time was over"
UNKNOWN_UPDATE = "nobody knows whether the update was done"
SENT_FOR = timedelta(seconds=30)
"""Longer than Cassandra keeps a counter update that it has not begun: 5 s.

That is counter_write_request_timeout. After this long it is done or never will be.
"""


def refused(
    drift: Drift, stored: Counters, digest: MessageDigest, highest_modseq: int, first_read: datetime
) -> str | None:
    """Why the drift must not be applied, by the second read.

    None when both reads agree and nothing is newer than the beginning of the first.

    `highest_modseq` is read after `stored` and `digest`.
    """
    if (stored.count, stored.unseen) == (digest.count, digest.unseen):
        return RIGHT_NOW
    if stored != drift.stored or (digest.count, digest.unseen) != (drift.count, drift.unseen):
        return MOVED
    if (
        digest.newest > ticks(first_read)
        or digest.modseq > drift.modseq
        or highest_modseq != drift.given_modseq
    ):
        return NEWER
    return None if digest == drift.digest else MOVED


def was_done(claim: CounterClaim, stored: Counters) -> bool:
    """Whether the counters that all replicas have prove that the claimed update was done."""
    return stored == Counters(
        claim.stored_count + claim.add_count, claim.stored_unseen + claim.add_unseen
    )


def is_of_plan(claim: CounterClaim, made_at: datetime) -> bool:
    """Whether this run's claim is by the plan made then. A run may be planned again (a clear)."""
    return claim.claimed_at >= made_at


def is_open(claim: CounterClaim) -> bool:
    """Whether nobody wrote how the claimed update ended."""
    return claim.outcome not in {APPLIED, WITHDRAWN, OVER}


APPLIED, WITHDRAWN, OVER, UNKNOWN = "applied", "not sent", "over", "unknown"
"""Outcomes of a claim.

`over`: whether it was done is not known, but it is in the counters that all replicas show, or never
will be.
"""
