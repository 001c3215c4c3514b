"""Dead letters that a worker publishes: a confirmed copy, then the ack of the message."""

import logging
from collections.abc import Callable

from mailslice.codec.headers import x_death
from mailslice.model import crash
from mailslice.model.mail import QueuedMail
from mailslice.model.names import HEADER_DIED, HEADER_REASON
from mailslice.stores.rabbitmq.consumer import Message
from mailslice.worker.io.context import QueueContext
from mailslice.worker.io.message_copy import MessageCopy
from mailslice.worker.logs import about

log = logging.getLogger(__name__)


async def dead_letter(
    context: QueueContext,
    message: Message,
    reason: str,
    item: QueuedMail | None = None,
    *,
    settle: Callable[[], object] | None = None,
    **facts: object,
) -> None:
    """Publishes a confirmed copy to the dead letter exchange, then acknowledges the message.

    An AMQP reject is never answered (ADR 53). `settle` is called in place of the ack. `facts` are
    fields of the mail event. `item` None: it is no mail. Raises StoreUnavailable before the ack.
    """
    subject = "a message that is no mail" if item is None else str(item.enqueue_id)
    text = "dead letter: %s: %s"
    log.warning(text, subject, reason, extra=about("dead_letter", subject, queue=context.queue))
    # A header that cannot be encoded (half of a surrogate pair) would keep the mail here for ever.
    readable = reason.encode("utf-8", "replace").decode()
    now = context.clock()
    death = {HEADER_REASON: readable[:500], HEADER_DIED: int(now.timestamp())}
    await context.publish_dead_letter(MessageCopy.of(message, x_death(context.names, now) | death))
    crash.point("dead-letter:copied")
    (settle or message.ack)()
    context.events.emit("dead_letter", item, why=reason, **facts)
    await message.link.flushed()
    crash.point("dead-letter:sent")
