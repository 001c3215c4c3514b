"""The dead letters of a queue: each message as the broker holds it, and why it was dead-lettered.

The cause is in the broker's `x-death`, or in a header of the copy that a worker published, or a
missing blob shows it. James writes no reason: among its rejects, missing content is the only cause
that can be recognised.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mailslice.admin.evidence import contents_answered
from mailslice.codec import message as codec
from mailslice.codec.headers import moment, partition_in
from mailslice.codec.row import instant
from mailslice.model.dead_letters import MAX_CHECKED_OUT, Cause
from mailslice.model.errors import Undecodable
from mailslice.model.mail import BlobId, EnqueueId, Partition, QueueName
from mailslice.model.names import HEADER_DIED, HEADER_REASON, HEADER_REDRIVE_COUNT, RabbitNames
from mailslice.stores import Stores
from mailslice.stores.cassandra.own import DeadLetterNotes
from mailslice.stores.rabbitmq.checkout import CheckedOutMessage, check_out

_CONTENT_MISSING, _CLEANED = "content missing", "cleaned"
"""How the reason in a worker's header begins: its blobs are missing, or the mail was cleaned."""
_BROKER_CAUSES = {"expired": Cause.EXPIRED, "delivery_limit": Cause.DELIVERY_LIMIT}


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter, without its body. `position` counts from the head of the queue, `size` is
    bytes of the body.

    `key` identifies the letter across peeks: a digest of its body, its death and its redrive count.
    Identical letters share a key. `enqueue_id` and the fields after it are None when the body is no
    mail; `problem` then says why. `redrives` is the count in the letter's header.
    """

    position: int
    key: str
    died_at: datetime | None
    death: str | None
    reason: str | None
    redrives: int
    size: int
    problem: str | None = None
    enqueue_id: EnqueueId | None = None
    name: str | None = None
    sender: str | None = None
    blobs: tuple[BlobId, BlobId] | None = None
    partition: Partition | None = None


@dataclass(frozen=True, slots=True)
class ClassifiedLetter:
    """A letter and its cause. `redrives`: the larger of the counts in header and note. `marked`: it
    has a deleted mark. `content`: whether both blobs exist; None: unknown.
    """

    letter: Letter
    cause: Cause
    redrives: int
    marked: bool
    content: bool | None


@dataclass(frozen=True, slots=True)
class PeekedLetters:
    """Letters from the head of the queue; `unseen` counts the letters behind them.

    `exists` is False where the queue has no dead letter queue (James 3.5). `keeps_order`: the peek
    left the letters in place; a quorum queue puts them at its end instead, in the same order.
    """

    letters: tuple[Letter, ...]
    unseen: int
    exists: bool
    keeps_order: bool = True


def peek(stores: Stores, queue: QueueName, limit: int = MAX_CHECKED_OUT) -> PeekedLetters:
    """Check out at most `limit` letters for a moment and return them all to the queue.

    A kill at any moment loses nothing. Raises StoreUnavailable when another consumer has the queue,
    Refused for a queue that a checkout would harm.
    """
    names = RabbitNames(queue)
    with check_out(stores.settings.rabbitmq, names.dead_letter_queue, limit) as checkout:
        if checkout is None:
            return PeekedLetters((), 0, exists=False)
        letters = tuple(
            letter_of(message, position, names.work_queue)
            for position, message in enumerate(checkout.messages(limit))
        )
        return PeekedLetters(
            letters,
            checkout.ready_count(),
            exists=True,
            keeps_order=stores.management.keeps_order(names.dead_letter_queue),
        )


def letter_of(message: CheckedOutMessage, position: int, work_queue: str) -> Letter:
    """The letter that a message is. Any client may write headers: each value's type is checked."""
    death = _death(message.headers, work_queue)
    when, why, reason = death.get("time"), death.get("reason"), message.headers.get(HEADER_REASON)
    redrives = message.headers.get(HEADER_REDRIVE_COUNT)
    common: dict[str, Any] = {
        "position": position,
        "key": _key(message, death),
        "died_at": instant(when)
        if isinstance(when, datetime)
        else moment(message.headers.get(HEADER_DIED)),
        "death": str(why) if why is not None else None,
        "reason": reason if isinstance(reason, str) else None,
        "redrives": redrives if isinstance(redrives, int) and redrives > 0 else 0,
        "size": len(message.body),
    }
    try:
        item = codec.decode(message.body)
    except Undecodable as error:
        return Letter(**common, problem=str(error))
    return Letter(
        **common,
        enqueue_id=item.enqueue_id,
        name=item.mail.name,
        sender=item.mail.sender,
        blobs=(item.header_blob_id, item.body_blob_id),
        partition=partition_in(message.headers),
    )


def classify(stores: Stores, queue: QueueName, letters: Sequence[Letter]) -> list[ClassifiedLetter]:
    """The letters with causes, in order, by marks, notes and content. Raises StoreUnavailable."""
    ids = [letter.enqueue_id for letter in letters if letter.enqueue_id is not None]
    table = DeadLetterNotes.existing(stores.cassandra, stores.settings) if ids else None
    notes = table.by_ids(queue, ids) if table is not None else {}
    redrives = {enqueue_id: note.redrives for enqueue_id, note in notes.items()}
    marked = stores.tables.deleted.marked(queue, ids) if ids else set()
    silent = (one for one in letters if one.death not in _BROKER_CAUSES and one.reason is None)
    content = content_exists(stores, (one for one in silent if one.enqueue_id not in marked))

    def classified(letter: Letter) -> ClassifiedLetter:
        id_, exists = letter.enqueue_id, content.get(letter.key)
        redriven = max(letter.redrives, redrives.get(id_, 0) if id_ is not None else 0)
        return ClassifiedLetter(letter, cause_of(letter, exists), redriven, id_ in marked, exists)

    return [classified(letter) for letter in letters]


def content_exists(stores: Stores, letters: Iterable[Letter]) -> dict[str, bool | None]:
    """Letter's key -> whether both blobs exist; None: no answer. Raises as `missing_content`."""
    mails = {letter.key: letter.blobs for letter in letters if letter.blobs is not None}
    parts, silent = contents_answered(stores.settings, mails)
    return {key: None if key in silent else all(part) for key, part in parts.items()}


def cause_of(letter: Letter, content: bool | None) -> Cause:
    """The cause, by the letter and whether its content exists (None: unknown)."""
    reason = letter.reason
    if letter.problem is not None:
        return Cause.BAD_JSON
    if letter.death in _BROKER_CAUSES:
        return _BROKER_CAUSES[letter.death]
    if reason is not None and reason.startswith(_CLEANED):
        return Cause.CLEANED
    if content is False or (reason is not None and reason.startswith(_CONTENT_MISSING)):
        return Cause.MISSING_BLOB
    return Cause.REJECTED if reason is not None or letter.death == "rejected" else Cause.OTHER


def _death(headers: Mapping[str, Any], work_queue: str) -> Mapping[str, Any]:
    """The newest death in the work queue, else in any queue. RabbitMQ lists the newest first."""
    deaths = headers.get("x-death")
    listed = deaths if isinstance(deaths, list) else []
    known: list[Mapping[str, Any]] = [death for death in listed if isinstance(death, dict)]
    return next((death for death in known if death.get("queue") == work_queue), (known or [{}])[0])


def _key(message: CheckedOutMessage, death: Mapping[str, Any]) -> str:
    """A digest. Most headers are left out: the broker counts its own deliveries in some of them."""
    facts = [death.get(name) for name in ("queue", "reason", "time", "count")]
    facts += [message.headers.get(name) for name in (HEADER_REASON, HEADER_REDRIVE_COUNT)]
    text = json.dumps([*map(str, facts), str(message.timestamp)]).encode()
    return hashlib.blake2b(text + b"\0" + message.body, digest_size=16).hexdigest()
