"""Which mails are among the dead letters: a census of ids, by holding everything on one channel and then closing it (`held`)."""

from __future__ import annotations

from collections.abc import Iterator

from mailslice.codec import message
from mailslice.model.errors import StoreUnavailable, Undecodable
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.model.names import RabbitNames
from mailslice.model.settings import Settings
from mailslice.stores.rabbitmq.held import MOST, hold


def dead_letter_ids(settings: Settings, queue: QueueName) -> set[EnqueueId]:
    """The enqueue ids on the dead letter queue; empty when there is no such queue. A message that is not a mail has no id. Raises as `dead_letters`."""
    return {found for found in map(_enqueue_id, dead_letters(settings, queue)) if found is not None}


def dead_letters(settings: Settings, queue: QueueName) -> Iterator[bytes]:
    """The bodies of all messages on the dead letter queue, which stay there; none when there is no such queue. To be read to the end.

    Raises StoreUnavailable, after the last one, when not everything could be held (another consumer, or more than MOST): no census proves nothing.
    Holds a few megabytes here and 5 KB a message in the broker, for some seconds.
    """
    name = RabbitNames(queue).dead_letter_queue
    with hold(settings.rabbitmq, name, patience=2.0) as held:
        if held is None:
            return
        for each in held.messages():
            yield each.body
        if left := held.left():
            raise StoreUnavailable(
                f"queue {name}: {left} messages could not be held for a census, which holds {MOST} at most; redrive or drop some first"
            )


def _enqueue_id(body: bytes) -> EnqueueId | None:
    try:
        return message.decode(body).enqueue_id
    except Undecodable:
        return None
