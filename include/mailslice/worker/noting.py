"""Why a mail was dead-lettered, kept where dead_letters finds it: a reject carries no header. Best effort, after the fact: no mail waits for it."""

from __future__ import annotations

import asyncio
import logging

from mailslice.codec import message as codec
from mailslice.model.errors import MailsliceError, Undecodable
from mailslice.stores.cassandra.own import DeadLetterNotes
from mailslice.stores.rabbitmq.consumer import Message
from mailslice.worker.wiring import Wiring

log = logging.getLogger(__name__)
_PATIENCE_SECONDS = 5.0


async def note_dead_letter(wiring: Wiring, message: Message, reason: str) -> None:
    """Remember the reason. A store that is down, or slow, costs the note and nothing else."""
    try:
        enqueue_id = codec.decode(message.body).enqueue_id
    except Undecodable:
        return  # it has no id to be found by; its body says enough
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            notes = await asyncio.to_thread(_notes, wiring)
            await wiring.bridge.rows(
                notes.note_future(wiring.queue, enqueue_id, reason, wiring.clock())
            )
    except (MailsliceError, TimeoutError) as error:
        log.info(
            "the reason of a dead letter was not kept: %s",
            error or "time is up",
            extra={"action": "dead_letter_note", "enqueue_id": str(enqueue_id)},
        )


def _notes(wiring: Wiring) -> DeadLetterNotes:
    notes = wiring.stores.dead_letter_notes
    notes.prepare()
    return notes
