"""A letter in the plan's file, in the report, and in its export.

An undecodable letter is exported before it leaves the queue: body and headers, below
`dead-letters/QUEUE/`, named by their content.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from mailslice.codec.shown import shown
from mailslice.duties.dead_letters.decide import LetterAction, LetterDecision
from mailslice.maintenance.artifacts import Artifacts, iso, json_value
from mailslice.maintenance.run import Run
from mailslice.model.dead_letters import Cause
from mailslice.model.errors import StoreUnavailable
from mailslice.model.names import file_name
from mailslice.stores.rabbitmq.checkout import CheckedOutMessage

_PER_CAUSE, _LONGEST = 5, 200


def folder_of(queue: str) -> str:
    """The folder of a queue's exports below the artifacts; a run's folder would be pruned."""
    return f"dead-letters/{file_name(queue)}"


def export_letter(context: Run, message: CheckedOutMessage, key: str) -> str:
    """Write body and headers, read the body back; return the file's name, the same on a retry."""
    artifacts, digest = context.folder.artifacts, hashlib.sha256(message.body).hexdigest()
    name = f"{folder_of(context.queue)}/{digest[:32]}.body"
    details = {
        "key": key,
        "sha256": digest,
        "run": context.request.run,
        "queue": context.queue,
        "timestamp": iso(message.timestamp),
        "headers": jsonable(message.headers),
    }
    artifacts.write(name, message.body)
    artifacts.write(
        f"{folder_of(context.queue)}/{digest[:32]}-{key[:12]}.json",
        json.dumps(details, default=json_value, indent=1).encode() + b"\n",
    )
    if not is_exported(artifacts, name):
        raise StoreUnavailable(
            f"the export {artifacts.uri(name)} does not read back as it was written: "
            "its letter stays"
        )
    return name


def is_exported(artifacts: Artifacts, name: str) -> bool:
    """Whether the file is there and holds what its name says."""
    data = artifacts.read(name)
    return data is not None and hashlib.sha256(data).hexdigest().startswith(
        name.rpartition("/")[2].partition(".")[0]
    )


def jsonable(value: object) -> object:
    """A header value as JSON values. Clients send bytes, also as names, in tables and arrays."""
    match value:
        case bytes():
            return value.decode("utf-8", "backslashreplace")
        case Mapping():
            return {str(jsonable(name)): jsonable(item) for name, item in value.items()}
        case list():
            return [jsonable(item) for item in value]
        case _:
            return value


@dataclass(frozen=True, slots=True)
class PlannedLetter:
    """A letter and its action, without addresses. Ids and times are text, empty if unknown."""

    position: int
    key: str
    action: str
    why: str
    cause: str
    enqueue_id: str
    name: str
    died_at: str
    redrives: int
    size: int

    @classmethod
    def of(cls, decision: LetterDecision) -> Self:
        classified, letter = decision.classified, decision.classified.letter
        return cls(
            letter.position,
            letter.key,
            decision.action.value,
            decision.why,
            classified.cause.value,
            "" if letter.enqueue_id is None else str(letter.enqueue_id),
            shown(letter.name or ""),
            iso(letter.died_at) or "",
            classified.redrives,
            letter.size,
        )

    @property
    def is_acted_on(self) -> bool:
        return self.action != LetterAction.KEEP


def ages_by_cause(decisions: Sequence[LetterDecision], now: datetime) -> dict[str, Any]:
    """Cause -> count, and when the oldest and the newest letter died, if known."""
    report: dict[str, Any] = {}
    for cause in Cause:
        died = [one.classified.letter.died_at for one in decisions if one.classified.cause is cause]
        known = sorted(when for when in died if when is not None)
        if died:
            oldest = round((now - known[0]).total_seconds()) if known else None
            report[cause.value] = {
                "count": len(died),
                "oldest": iso(known[0]) if known else None,
                "newest": iso(known[-1]) if known else None,
                "oldestAgeSeconds": oldest,
            }
    return report


def sample(decisions: Sequence[LetterDecision], now: datetime) -> list[dict[str, Any]]:
    """The first letters of each cause, without addresses."""
    taken = dict.fromkeys(Cause, 0)
    letters = []
    for decision in decisions:
        cause = decision.classified.cause
        taken[cause] += 1
        if taken[cause] <= _PER_CAUSE:
            letters.append(_report_entry(decision, now))
    return letters


def _report_entry(decision: LetterDecision, now: datetime) -> dict[str, Any]:
    classified, letter = decision.classified, decision.classified.letter
    problem, died = letter.problem or letter.reason, letter.died_at
    return {
        "position": letter.position,
        "enqueueId": None if letter.enqueue_id is None else str(letter.enqueue_id),
        "name": None if letter.name is None else shown(letter.name)[:_LONGEST],
        "cause": classified.cause.value,
        "reason": None if problem is None else shown(problem)[:_LONGEST],
        "diedAt": iso(died),
        "ageSeconds": None if died is None else round((now - died).total_seconds()),
        "redrives": classified.redrives,
        "action": decision.action.value,
        "why": decision.why,
    }
