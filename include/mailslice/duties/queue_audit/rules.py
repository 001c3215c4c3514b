"""The verdict on one mail, from what is known of it and of the queues. Pure: no clock, no store."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from mailslice.admin.evidence import OVERDUE, is_overdue
from mailslice.maintenance.json_model import JsonModel
from mailslice.model.mail import EnqueueId
from mailslice.model.verdicts import Verdict

CONTENT_MATTERS = frozenset(
    {Verdict.WAITING, Verdict.DELAYED, Verdict.LOST, Verdict.LOST_OR_GHOST, Verdict.UNKNOWN}
)
"""Verdicts that a missing content would change to bare."""


class BrokerCounts(JsonModel):
    """RabbitMQ's figures of a mail queue; None is unknown, never zero.

    `delayed`: in delay levels and the hop queue, or parked. `head`: when the oldest message was
    published, a hint.
    """

    ready: int | None = None
    unacknowledged: int | None = None
    consumers: int | None = None
    delayed: int | None = None
    dead_letters: int | None = None
    head: datetime | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of the queue. Mappings lead from enqueue ids to words for people.

    `in_flight`: with a worker that lives. `done`: completed by a worker, by its own record.
    `quarantined`: set aside. `dead_letters`: None when they could not be read. `census`: ids of the
    work queue's ready messages, None without one; `unproved`: why a mail that it did not find may
    be somewhere all the same.
    """

    now: datetime
    shared: bool
    counts: BrokerCounts
    in_flight: Mapping[EnqueueId, str] = field(default_factory=dict)
    done: Mapping[EnqueueId, str] = field(default_factory=dict)
    quarantined: Mapping[EnqueueId, str] = field(default_factory=dict)
    dead_letters: frozenset[EnqueueId] | None = frozenset()
    census: frozenset[EnqueueId] | None = None
    unproved: str | None = None


@dataclass(frozen=True, slots=True)
class MailFacts:
    """One live mail. `due`: when its delay ends; `was_delayed`: at the first read, or since."""

    enqueue_id: EnqueueId
    enqueued: datetime
    due: datetime | None = None
    was_delayed: bool = False


def classify(facts: MailFacts, evidence: Evidence) -> tuple[Verdict, str]:
    """The verdict and why. It does not consider whether the content exists."""
    enqueue_id = facts.enqueue_id
    in_census = evidence.census is not None and enqueue_id in evidence.census
    if enqueue_id in evidence.quarantined:
        return Verdict.HELD, evidence.quarantined[enqueue_id]
    if enqueue_id in evidence.in_flight and not in_census:
        return Verdict.IN_FLIGHT, evidence.in_flight[enqueue_id]
    if enqueue_id in evidence.done:
        why = f"{evidence.done[enqueue_id]}, and its deleted mark is missing"
        duplicate = "; its message is in the work queue once more, and would be delivered again"
        return Verdict.GHOST, why + (duplicate if in_census else "")
    if in_census:
        return Verdict.WAITING, "its message is in the work queue"
    return _not_in_work_queue(facts, evidence)


def _not_in_work_queue(facts: MailFacts, evidence: Evidence) -> tuple[Verdict, str]:
    if evidence.dead_letters is not None and facts.enqueue_id in evidence.dead_letters:
        return Verdict.DEAD_LETTERED, "its message is in the dead letter queue"
    delayed = evidence.counts.delayed
    if facts.due is not None and not is_overdue(facts.due, evidence.now, delayed):
        due, count = f"due at {facts.due:%Y-%m-%dT%H:%M:%SZ}", delayed or "an unknown number of"
        waiting = f"{count} messages wait in delay levels; `mailslice queue flush` delivers them"
        if is_overdue(facts.due, evidence.now, 0):
            return Verdict.UNKNOWN, f"was {due} and has not come; {waiting}"
        return Verdict.DELAYED, due
    return _in_no_queue(facts, evidence)


def _in_no_queue(facts: MailFacts, evidence: Evidence) -> tuple[Verdict, str]:
    if facts.was_delayed and facts.due is None:
        return Verdict.UNKNOWN, "its delay ended while the audit looked: it is on its way"
    if evidence.dead_letters is None:
        return Verdict.UNKNOWN, "the dead letters could not be looked through"
    if evidence.census is None:
        return Verdict.UNKNOWN, _without_census(facts, evidence.counts)
    if evidence.unproved is not None:
        return Verdict.UNKNOWN, f"its message is in no queue, but {evidence.unproved}"
    late = "" if facts.due is None else f"; it was delayed until {facts.due:%Y-%m-%dT%H:%M:%SZ}"
    nowhere = "its message is in no queue and with no consumer"
    if evidence.shared:
        why = "James may have delivered it without marking it"
        return Verdict.LOST_OR_GHOST, f"{nowhere}; {why}{late}"
    return Verdict.LOST, f"{nowhere}, and no worker has it as done{late}"


def _without_census(facts: MailFacts, counts: BrokerCounts) -> str:
    """A guess from the figures. They prove nothing about a single mail."""
    proves = "a census (--census) proves it"
    if counts.ready is None or counts.unacknowledged is None:
        return "RabbitMQ gives no figures of its work queue; take a census (--census)"
    if (counts.ready, counts.unacknowledged, counts.delayed) == (0, 0, 0):
        return f"RabbitMQ's figures show no message at all: lost, or a ghost; {proves}"
    held = f"{counts.unacknowledged} are unacknowledged at {counts.consumers} consumers"
    counted = f"{counts.ready} messages are ready and {held}"
    if counts.head is not None and facts.enqueued + OVERDUE < counts.head:
        return (
            f"{counted}; the oldest is of {counts.head:%Y-%m-%dT%H:%M:%SZ}, later than this mail: "
            f"unless it was delayed or redriven it may be lost; {proves}"
        )
    return f"{counted}; a census (--census) shows whether this mail is among them"
