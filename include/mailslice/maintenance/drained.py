"""Proof `drained`: the broker was empty after the slices were closed (I5).

Two samples 15 s apart, each with work queue, hop queue and all delay levels at zero and no alarm
(docs/reference/rabbitmq.md). queue_size takes them all day, a cleanup when it applies. Who takes
them waits only if the first was empty.
"""

import logging
import time
from collections.abc import Callable
from datetime import datetime

from mailslice.model.clock import Clock
from mailslice.model.errors import MailsliceError
from mailslice.model.mail import QueueName
from mailslice.stores import Stores
from mailslice.stores.cassandra.own import QueueSample
from mailslice.stores.rabbitmq.management import APART, shows_no_messages

log = logging.getLogger(__name__)


def sample_once(stores: Stores, queue: QueueName, clock: Clock) -> datetime | None:
    """The time if the queue is empty now; None if it is not, or the broker did not answer."""
    at = clock()
    try:
        return at if shows_no_messages(stores.management, queue) else None
    except MailsliceError as error:
        log.info("the broker could not be asked whether %s is empty: %s", queue, error)
        return None


def second_pass(
    stores: Stores,
    queue: QueueName,
    first: datetime | None,
    clock: Clock,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> QueueSample | None:
    """Both samples if the queue was empty at `first` and is empty APART later; else None."""
    if first is None:
        return None
    sleep(max(0.0, (first + APART - clock()).total_seconds()))
    second = sample_once(stores, queue, clock)
    return QueueSample(first, second) if second is not None else None
