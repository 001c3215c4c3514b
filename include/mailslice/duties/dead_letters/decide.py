"""Decides what becomes of each letter, by the first rule that matches.

Pure, except that `read_facts` reads the stores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from mailslice.admin.dead_letters import ClassifiedLetter
from mailslice.codec.addresses import NULL_SENDER, same
from mailslice.duties.dead_letters.params import Params
from mailslice.model.dead_letters import Cause
from mailslice.model.mail import EnqueueId, Partition

DELETED, UNDECODABLE, ASKED = "deleted already", "no mail: exported before it goes", "asked for"
NOT_ASKED, FILTERED, LIMITED = (
    "no redrive was asked for",
    "the filter leaves it out",
    "the limit was reached",
)
TOO_OFTEN, WAITING, DUPLICATE = (
    "redriven often enough",
    "it is delayed: a copy waits",
    "another letter of this mail is redriven",
)
NO_CONTENT, DEALT_WITH = "its content is missing", "neither row nor deleted mark: it was dealt with"
_AT_A_TIME = 500


class LetterAction(StrEnum):
    """What one letter gets."""

    KEEP = "keep"
    DROP = "drop"
    EXPORT = "export"
    REDRIVE = "redrive"


@dataclass(frozen=True, slots=True)
class LetterDecision:
    """One letter, what becomes of it and why."""

    classified: ClassifiedLetter
    action: LetterAction
    why: str


@dataclass(frozen=True, slots=True)
class RedriveFacts:
    """What was read about candidates of a redrive.

    `rows`: those with a row that counts. `delayed`: those with a copy in a delay level. `content`:
    those whose content exists.
    """

    rows: Mapping[EnqueueId, Partition]
    """Where each row is."""
    delayed: frozenset[EnqueueId]
    content: frozenset[str]
    """Keys."""


def decide(
    letters: Sequence[ClassifiedLetter],
    params: Params,
    now: datetime,
    read_facts: Callable[[Sequence[ClassifiedLetter]], RedriveFacts],
) -> list[LetterDecision]:
    """One decision for each letter, in their order.

    `read_facts` reads the facts of candidates, and of no more of them than the limit needs.
    """
    first = {
        classified.letter.position: _at_sight(classified, params, now) for classified in letters
    }
    redriven: set[EnqueueId] = set()
    candidates = [classified for classified in letters if first[classified.letter.position] is None]
    for at in range(0, len(candidates), _AT_A_TIME):
        batch = candidates[at : at + _AT_A_TIME]
        known = read_facts(batch) if len(redriven) < params.limit else None
        for classified in batch:
            first[classified.letter.position] = _candidate(classified, params, known, redriven)
    return [
        decision
        for classified in letters
        if (decision := first[classified.letter.position]) is not None
    ]


def _at_sight(classified: ClassifiedLetter, params: Params, now: datetime) -> LetterDecision | None:
    """The decision that needs no look at rows; None for a candidate of the redrive."""
    if classified.cause is Cause.BAD_JSON:
        return LetterDecision(classified, LetterAction.EXPORT, UNDECODABLE)
    if classified.marked:
        return LetterDecision(classified, LetterAction.DROP, DELETED)
    if not params.redrive:
        return LetterDecision(classified, LetterAction.KEEP, NOT_ASKED)
    if not matches(classified, params, now):
        return LetterDecision(classified, LetterAction.KEEP, FILTERED)
    if classified.redrives >= params.most_redrives:
        return LetterDecision(classified, LetterAction.KEEP, TOO_OFTEN)
    return None


def matches(classified: ClassifiedLetter, params: Params, now: datetime) -> bool:
    """Whether the filter lets it through."""
    sender = None if params.sender == NULL_SENDER else params.sender
    return (
        (params.cause is None or classified.cause is params.cause)
        and (params.name is None or classified.letter.name == params.name)
        and (params.sender is None or same(classified.letter.sender, sender))
        and (
            params.older_than is None
            or (
                classified.letter.died_at is not None
                and now - classified.letter.died_at >= params.older_than
            )
        )
    )


def _candidate(
    classified: ClassifiedLetter,
    params: Params,
    known: RedriveFacts | None,
    redriven: set[EnqueueId],
) -> LetterDecision:
    enqueue_id = classified.letter.enqueue_id
    if enqueue_id is None or known is None or len(redriven) >= params.limit:
        return LetterDecision(classified, LetterAction.KEEP, LIMITED)
    if enqueue_id in redriven:
        return LetterDecision(classified, LetterAction.KEEP, DUPLICATE)
    if enqueue_id in known.delayed:
        return LetterDecision(classified, LetterAction.KEEP, WAITING)
    if enqueue_id not in known.rows and not params.force_cleaned:
        return LetterDecision(classified, LetterAction.KEEP, DEALT_WITH)
    if classified.letter.key not in known.content:
        return LetterDecision(classified, LetterAction.KEEP, NO_CONTENT)
    redriven.add(enqueue_id)
    return LetterDecision(classified, LetterAction.REDRIVE, ASKED)
