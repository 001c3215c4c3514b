"""Decides by two reads of a mailbox whether a drift may be applied. Pure: no store, no clock.

Users go on writing meanwhile. Each append or deletion changes truth and counter by the same number,
in some order. If two reads, `settle` apart, give the same result, no such change was half done
during them, and a later change adds to both. So the difference between the two is right.

Equal reads are not enough if messages come and go. The first read may see half of an append, and
the second may see it half undone. An append that is not projected yet may hide the end of a
deletion. Each append takes a modSeq first. So James' highest modSeq, read before the first read and
after the second, must be equal, too. (tests/unit/duties/counter_repair/test_walk.py found both.)
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
"""After this time a counter update is done or never will be.

Cassandra drops an update that it has not begun after counter_write_request_timeout, 5 s.
"""


def refused(
    drift: Drift, stored: Counters, digest: MessageDigest, highest_modseq: int, first_read: datetime
) -> str | None:
    """Why the drift must not be applied, by the second read.

    None if both reads agree and nothing is newer than the beginning of the first read. The caller
    reads `highest_modseq` after `stored` and `digest`.
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
    """Whether `stored`, the counters of all replicas, prove that the claimed update was done."""
    return stored == Counters(
        claim.stored_count + claim.add_count, claim.stored_unseen + claim.add_unseen
    )


def is_of_plan(claim: CounterClaim, made_at: datetime) -> bool:
    """Whether the claim was made by the plan of `made_at`: a cleared run is planned again."""
    return claim.claimed_at >= made_at


def is_open(claim: CounterClaim) -> bool:
    """Whether the outcome of the claimed update is not recorded."""
    return claim.outcome not in {APPLIED, WITHDRAWN, OVER}


APPLIED, WITHDRAWN, OVER, UNKNOWN = "applied", "not sent", "over", "unknown"
"""Outcomes of a claim. `over`: the update was done or not, but it can change the counters of no
replica any more.
"""
