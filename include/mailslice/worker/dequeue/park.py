"""Parks messages that wait for a store: a confirmed copy into the park queue, then the ack.

A waiting message occupies the prefetch window, and RabbitMQ closes the channel of a consumer that
does not acknowledge it in time. So a message is retried for half a minute, then parked. It is
parked after one try if it was parked before, or the broker counts its returns; earlier, if it keeps
others out of the window. The park queue has a TTL and dead-letters into the mail exchange. While a
broker in alarm takes no copy the message stays here.
"""

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from mailslice.codec.headers import count_in
from mailslice.model import crash
from mailslice.model.errors import MailsliceError, StoreUnavailable
from mailslice.model.names import HEADER_DELIVERY_COUNT, HEADER_FAULTS, HEADER_PARKED, PARK_SECONDS
from mailslice.stores.rabbitmq.consumer import Message
from mailslice.worker.enqueue.delayed_mails import Delays
from mailslice.worker.io.context import QueueContext
from mailslice.worker.io.message_copy import MessageCopy
from mailslice.worker.io.statistics import WorkerStatistics

log = logging.getLogger(__name__)
RETRY_SECONDS = 30.0
"""Seconds of retries before a message is parked, and between two attempts to park it."""
MAX_BLOCKING_SECONDS = 10.0
"""Seconds for which a waiting message may keep others out of a full window."""
TURN_SECONDS = 2.0
"""Seconds for which a returned parked message waits for its turn."""
LONGEST_UNACKNOWLEDGED = 240.0
"""Seconds until a message is acknowledged, whatever it waits for. RabbitMQ allows 30 minutes."""
FAULT_ROUNDS = 5
"""Rounds that end in a fault, while others succeed, after which a mail is a dead letter."""
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 5.0
_REMEMBERED_SECONDS = 1800.0
_MAX_DELAY = 5.0
"""Seconds by which a parked mail may return late."""


def end_if_cancelled() -> None:
    """Raises CancelledError in a cancelled task. `asyncio.gather` swallows a cancellation if a
    child fails at the same time: without this check a retry loop would never end.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def is_counted(message: Message) -> bool:
    """Whether a quorum queue counts the returns of this message, and would drop it at its limit."""
    return count_in(message.headers, HEADER_DELIVERY_COUNT) > 0


@dataclass(slots=True)
class Trial:
    """The state of one message that is retried in place."""

    fault: str = ""
    """Exception type of the last try that ended in a fault of mailslice."""
    successes_before: int | None = None
    """Messages prepared before the current series of faults. None: the last try had no fault."""
    retry_at: float = 0.0
    """Loop time of the next attempt to park it."""

    def claim_park(self) -> bool:
        """Whether to park now: every 30 s at most, as an unconfirmed copy may have been routed."""
        now = asyncio.get_running_loop().time()
        if now < self.retry_at:
            return False
        self.retry_at = now + RETRY_SECONDS
        return True


class FaultRounds:
    """Distinguishes a fault of one message, while others succeed, from a fault of all."""

    def __init__(self, statistics: WorkerStatistics, window: int) -> None:
        self._statistics = statistics
        self.window, self.waiting = window, 0
        """The size of the window, and the messages in it that wait for a store."""
        self.successes = 0
        """Messages that were prepared."""

    async def run_attempt(self, trial: Trial, attempt: Awaitable[None]) -> MailsliceError | None:
        """Awaits the attempt. Returns the error for which the message waits, None for success."""
        try:
            await attempt
        except MailsliceError as error:
            end_if_cancelled()
            trial.successes_before = None
            return error
        except Exception as error:
            end_if_cancelled()
            self._statistics.faults += 1
            first = trial.successes_before is None
            extra = {"action": "prepare_fault"}
            log.exception("a message could not be prepared", exc_info=first, extra=extra)
            if first:
                trial.successes_before = self.successes
            trial.fault = type(error).__name__
            return StoreUnavailable(f"a message could not be prepared: {trial.fault}: {error}")
        trial.successes_before = None
        return None

    def after(self, message: Message, trial: Trial) -> int:
        """The rounds of this message, this one included, that ended in a fault of its own."""
        before = trial.successes_before
        counts = before is not None and self.successes > before
        return count_in(message.headers, HEADER_FAULTS) + counts


class RetryPauses:
    """Pauses between the retries of one message: half a second, doubled up to five, with jitter."""

    def __init__(self, message: Message, trial: Trial, rounds: FaultRounds, before: int) -> None:
        """`before`: `rounds.successes` before the first try."""
        # Only retries in place show that others succeed while this message has a fault of its own.
        is_back = HEADER_PARKED in message.headers and trial.successes_before is None
        self.began = asyncio.get_running_loop().time()
        self._until = self.began + RETRY_SECONDS * (not (is_back or is_counted(message)))
        self._full_until = message.arrived + MAX_BLOCKING_SECONDS
        self._rounds, self._successes_before = rounds, before
        self._next = FIRST_PAUSE

    def is_over(self, taken: int) -> bool:
        """Whether to park it. `taken`: messages in the window, those in handlers included."""
        now, rounds = asyncio.get_running_loop().time(), self._rounds
        is_half = 2 * rounds.waiting >= rounds.window and rounds.successes > self._successes_before
        return now >= self._until or is_half or (taken >= rounds.window and now >= self._full_until)

    def pause(self) -> float:
        longest, self._next = self._next, min(2 * self._next, LONGEST_PAUSE)
        return longest * random.uniform(0.7, 1.0)


class Turns:
    """Limits tries of returned parked messages to a quarter of the window: a try may last a whole
    time-out. While tries fail, others wait for a turn only if a third of the window is free. A
    message whose try failed rests for as long as a try of each such message takes.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._turns = max(1, window // 4)
        self._free = asyncio.Semaphore(self._turns)
        self._away_until = self._seconds = 0.0
        """Loop time until which the stores count as away; seconds of the last failed try."""
        self._failed: dict[int, float] = {}  # hash of a body -> loop time of its last, failed try

    async def run_attempt(
        self, message: Message, taken: int, attempt: Callable[[], Awaitable[MailsliceError | None]]
    ) -> MailsliceError | None:
        """Awaits `attempt()`. Raises TimeoutError: no turn now. `taken`: messages in the window."""
        loop, key, seconds = asyncio.get_running_loop(), hash(message.body), TURN_SECONDS
        if (now := loop.time()) < self._away_until:
            rest = len(self._failed) * self._seconds / self._turns
            if now < self._failed.get(key, -math.inf) + rest:
                raise TimeoutError
            seconds = MAX_BLOCKING_SECONDS if 3 * taken <= 2 * self._window else 0.0
        async with asyncio.timeout(seconds):
            await self._free.acquire()
        with ExitStack() as turn:
            turn.callback(self._free.release)  # soon: a try also waits for workers and for memory
            turn.callback(loop.call_later(RETRY_SECONDS, turn.close).cancel)
            began = loop.time()
            why = await attempt()
        self._failed.pop(key, None)
        self._away_until = 0.0
        if why is not None:
            self._failed[key] = now = loop.time()
            self._seconds = min(now - began, RETRY_SECONDS)
            self._away_until = now + RETRY_SECONDS
            while next(iter(self._failed.values())) < now - _REMEMBERED_SECONDS:
                del self._failed[next(iter(self._failed))]
        return why


class Park:
    """Parks the messages of one queue."""

    def __init__(self, context: QueueContext, delays: Delays) -> None:
        self._context = context
        self._delays = delays
        self._back = 0.0

    @property
    def is_expecting(self) -> bool:
        """Whether a message parked here has not come back to the work queue yet."""
        return asyncio.get_running_loop().time() < self._back

    async def put(
        self,
        message: Message,
        why: object,
        *,
        faults: int = 0,
        headers: Mapping[str, object] | None = None,
        level: int | None = None,
    ) -> bool:
        """Publishes a copy into the park queue or a delay `level`, with these `headers` added, then
        acknowledges the message. False: that failed, and the message stays here.
        """
        rounds = count_in(message.headers, HEADER_PARKED) + 1
        counts = {HEADER_PARKED: rounds, **({HEADER_FAULTS: faults} if faults else {})}
        try:
            await self._delays.put(MessageCopy.of(message, {**(headers or {}), **counts}), level)
        except Exception as error:  # noqa: BLE001 - it stays here, whatever the reason
            end_if_cancelled()
            text = "a mail cannot be parked now, and is held: %s"
            log.warning(text, error, extra={"action": "not_parked"})
            return False
        crash.point("park:copied")
        message.ack()
        if level is None:
            self._back = asyncio.get_running_loop().time() + PARK_SECONDS + _MAX_DELAY
        self._context.statistics.parked += 1
        log.info("a mail is parked, round %d: %s", rounds, why, extra={"action": "parked"})
        return True
