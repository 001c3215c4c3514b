"""What becomes of each letter: pure, but for the look at rows, which is given. The order of the rules is the order of their weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from mailslice.admin.dead_letters import Judged
from mailslice.codec.addresses import NULL_SENDER, same
from mailslice.duties.dead_letters.params import Params
from mailslice.model.dead_letters import Cause
from mailslice.model.mail import EnqueueId, Place

DELETED, UNDECODABLE, ASKED = "deleted already", "no mail: exported before it goes", "asked for"
NOT_ASKED, FILTERED, LIMITED = (
    "no redrive was asked for",
    "the filter leaves it out",
    "the limit was reached",
)
TOO_OFTEN, WAITING, TWICE = (
    "redriven often enough",
    "it is delayed: a copy waits",
    "another letter of this mail is redriven",
)
NO_CONTENT, DEALT_WITH = "its content is missing", "neither row nor deleted mark: it was dealt with"
_AT_A_TIME = 500


class Action(StrEnum):
    """What one letter gets."""

    KEEP = "keep"
    DROP = "drop"
    EXPORT = "export"
    REDRIVE = "redrive"


@dataclass(frozen=True, slots=True)
class Decision:
    """One letter, what becomes of it and why."""

    judged: Judged
    action: Action
    why: str


@dataclass(frozen=True, slots=True)
class Standing:
    """What was read of candidates: those with a row that counts, those whose copy waits in a delay level, those whose content is there."""

    rows: Mapping[EnqueueId, Place]
    """Where each row is."""
    delayed: frozenset[EnqueueId]
    content: frozenset[str]
    """Keys."""


def decide(
    found: Sequence[Judged],
    params: Params,
    now: datetime,
    standing: Callable[[Sequence[Judged]], Standing],
) -> list[Decision]:
    """A decision a letter, in their order. `standing` reads what must be known of candidates; it is asked for no more of them than the limit needs."""
    first = {each.letter.position: _at_sight(each, params, now) for each in found}
    redriven: set[EnqueueId] = set()
    candidates = [each for each in found if first[each.letter.position] is None]
    for at in range(0, len(candidates), _AT_A_TIME):
        some = candidates[at : at + _AT_A_TIME]
        known = standing(some) if len(redriven) < params.limit else None
        for each in some:
            first[each.letter.position] = _candidate(each, params, known, redriven)
    return [decision for each in found if (decision := first[each.letter.position]) is not None]


def _at_sight(each: Judged, params: Params, now: datetime) -> Decision | None:
    """The decision that needs no look at rows; None for a candidate of the redrive."""
    if each.cause is Cause.BAD_JSON:
        return Decision(each, Action.EXPORT, UNDECODABLE)
    if each.marked:
        return Decision(each, Action.DROP, DELETED)
    if not params.redrive:
        return Decision(each, Action.KEEP, NOT_ASKED)
    if not matches(each, params, now):
        return Decision(each, Action.KEEP, FILTERED)
    if each.redrives >= params.most_redrives:
        return Decision(each, Action.KEEP, TOO_OFTEN)
    return None


def matches(each: Judged, params: Params, now: datetime) -> bool:
    """Whether the filter lets it through."""
    sender = None if params.sender == NULL_SENDER else params.sender
    return (
        (params.cause is None or each.cause is params.cause)
        and (params.name is None or each.letter.name == params.name)
        and (params.sender is None or same(each.letter.sender, sender))
        and (
            params.older_than is None
            or (each.letter.died_at is not None and now - each.letter.died_at >= params.older_than)
        )
    )


def _candidate(
    each: Judged, params: Params, known: Standing | None, redriven: set[EnqueueId]
) -> Decision:
    enqueue_id = each.letter.enqueue_id
    if enqueue_id is None or known is None or len(redriven) >= params.limit:
        return Decision(each, Action.KEEP, LIMITED)
    if enqueue_id in redriven:
        return Decision(each, Action.KEEP, TWICE)
    if enqueue_id in known.delayed:
        return Decision(each, Action.KEEP, WAITING)
    if enqueue_id not in known.rows and not params.force_cleaned:
        return Decision(each, Action.KEEP, DEALT_WITH)
    if each.letter.key not in known.content:
        return Decision(each, Action.KEEP, NO_CONTENT)
    redriven.add(enqueue_id)
    return Decision(each, Action.REDRIVE, ASKED)
