"""The arguments of a consuming process, for the parent (`supervisor`) and the process (`child`)."""

import logging
from dataclasses import dataclass
from datetime import timedelta

from mailslice.model.mail import QueueName
from mailslice.model.settings import Settings

DRAIN = timedelta(seconds=30)
_LONGEST_DRAIN = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class ConsumerTask:
    """What one consuming process does. It is pickled, so it holds no open connection or file."""

    settings: Settings
    queue: QueueName
    handler: str
    prefetch: int
    concurrency: int
    drain: timedelta = DRAIN
    log_level: int = logging.INFO
    number: int = 0


def drain_for(settings: Settings, handler_spec: str) -> timedelta:
    """How long handlers may finish: 30 s. For the relay its answer time-out, up to 10 minutes: a
    mail that was sent whole, and has no answer, is sent again.
    """
    if handler_spec != "relay":
        return DRAIN
    return max(DRAIN, min(settings.relay.answer_timeout, _LONGEST_DRAIN))
