"""Decides what becomes of each letter, by the first rule that matches.

Pure, except that `read_facts` reads the stores.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from mailslice.admin.dead_letters import ClassifiedLetter
from mailslice.codec.addresses import NULL_SENDER, same_address
from mailslice.duties.dead_letters.params import Params
from mailslice.model.batches import batches
from mailslice.model.dead_letters import Cause
from mailslice.model.mail import EnqueueId, Partition

DELETED, UNDECODABLE, ASKED = "deleted already", "no mail: exported before it goes", "asked for"
NOT_ASKED, DUPLICATE = "no redrive was asked for", "another letter of this mail is redriven"
FILTERED, LIMITED = "the filter leaves it out", "the limit was reached"
TOO_OFTEN, WAITING = "redriven often enough", "it is delayed: a copy waits"
NO_CONTENT, CONTENT_UNKNOWN = "its content is missing", "content unknown"
DEALT_WITH = "neither row nor deleted mark: it was dealt with"
_AT_A_TIME = 500


class LetterAction(StrEnum):
    """The action on one letter."""

    KEEP = "keep"
    DROP = "drop"
    EXPORT = "export"
    REDRIVE = "redrive"


@dataclass(frozen=True, slots=True)
class LetterDecision:
    """One letter, the action on it, and the reason."""

    classified: ClassifiedLetter
    action: LetterAction
    why: str


@dataclass(frozen=True, slots=True)
class RedriveFacts:
    """Facts about candidates of a redrive.

    `rows`: the partition of each mail's row, if that is at browseStart or later. `delayed`: mails
    with a copy in a delay level. `content`: a letter's key -> whether its content exists; None: the
    content store gives no answer.
    """

    rows: Mapping[EnqueueId, Partition]
    delayed: frozenset[EnqueueId]
    content: Mapping[str, bool | None]


def decide(
    letters: Sequence[ClassifiedLetter],
    params: Params,
    now: datetime,
    read_facts: Callable[[Sequence[ClassifiedLetter]], RedriveFacts],
) -> list[LetterDecision]:
    """One decision for each letter, in their order.

    `read_facts` is called with batches of candidates, until `limit` of them are redriven.
    """
    decided = [_without_facts(classified, params, now) for classified in letters]
    redriven: set[EnqueueId] = set()
    candidates = [at for at, decision in enumerate(decided) if decision is None]
    for batch in batches(candidates, _AT_A_TIME):
        wants_facts = len(redriven) < params.limit
        facts = read_facts([letters[at] for at in batch]) if wants_facts else None
        for at in batch:
            why = _reason_to_keep(letters[at], params, facts, redriven)
            decided[at] = (LetterAction.REDRIVE, ASKED) if why is None else (LetterAction.KEEP, why)
    return [
        LetterDecision(classified, *decision)
        for classified, decision in zip(letters, decided, strict=True)
        if decision is not None
    ]


def _without_facts(
    classified: ClassifiedLetter, params: Params, now: datetime
) -> tuple[LetterAction, str] | None:
    """The decision, if it needs no facts; None for a candidate of the redrive."""
    if classified.cause is Cause.BAD_JSON:
        return LetterAction.EXPORT, UNDECODABLE
    if classified.marked:
        return LetterAction.DROP, DELETED
    if not params.redrive:
        return LetterAction.KEEP, NOT_ASKED
    if not matches(classified, params, now):
        return LetterAction.KEEP, FILTERED
    return (LetterAction.KEEP, TOO_OFTEN) if is_redriven_often(classified, params) else None


def matches(classified: ClassifiedLetter, params: Params, now: datetime) -> bool:
    letter, older_than = classified.letter, params.older_than
    sender = None if params.sender == NULL_SENDER else params.sender
    return (
        (params.cause is None or classified.cause is params.cause)
        and (params.name is None or letter.name == params.name)
        and (params.sender is None or same_address(letter.sender, sender))
        and (
            older_than is None
            or (letter.died_at is not None and now - letter.died_at >= older_than)
        )
    )


def is_redriven_often(classified: ClassifiedLetter, params: Params) -> bool:
    """Whether the mail stays a dead letter, because it was redriven `most_redrives` times."""
    return classified.redrives >= params.most_redrives


def _reason_to_keep(
    classified: ClassifiedLetter,
    params: Params,
    facts: RedriveFacts | None,
    redriven: set[EnqueueId],
) -> str | None:
    enqueue_id = classified.letter.enqueue_id
    if enqueue_id is None or facts is None or len(redriven) >= params.limit:
        return LIMITED
    if enqueue_id in redriven:
        return DUPLICATE
    why = reason_not_to_redrive(facts, classified, enqueue_id, params)
    if why is None:
        redriven.add(enqueue_id)
    return why


def reason_not_to_redrive(
    facts: RedriveFacts, classified: ClassifiedLetter, enqueue_id: EnqueueId, params: Params
) -> str | None:
    """Why the mail must not be redriven; None if it may be. Asked in plan and again in apply."""
    if enqueue_id in facts.delayed:
        return WAITING
    if enqueue_id not in facts.rows and not params.force_cleaned:
        return DEALT_WITH
    has_content = facts.content[classified.letter.key]
    return {True: None, False: NO_CONTENT, None: CONTENT_UNKNOWN}[has_content]
