"""Proof `drained`: the broker was empty after the slices were closed (I5).

Two readings 15 s apart show work queue, hop queue and all delay levels at zero, and no alarm
(docs/reference/rabbitmq.md). Each run of queue_size takes a sample, and each apply of a cleanup.
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


def take_sample(
    stores: Stores, queue: QueueName, clock: Clock, *, sleep: Callable[[float], None] = time.sleep
) -> QueueSample | None:
    """A sample if the queue is empty now and APART later; else None. Waits only if it is empty now.

    None also if the clock was set back meanwhile: the first time may not have come yet.
    """
    if (first := _empty_at(stores, queue, clock)) is None:
        return None
    sleep(APART.total_seconds())
    second = _empty_at(stores, queue, clock)
    return QueueSample(first, second) if second is not None and second - first >= APART else None


def _empty_at(stores: Stores, queue: QueueName, clock: Clock) -> datetime | None:
    """The time if the queue is empty now; None if it is not, or the broker did not answer."""
    at = clock()
    try:
        return at if shows_no_messages(stores.management, queue) else None
    except MailsliceError as error:
        log.info("the broker could not be asked whether %s is empty: %s", queue, error)
        return None
