"""Consumes the hop queue, where expired copies of delayed mails arrive. Runs in every worker."""

import asyncio
import logging
from contextlib import suppress

from mailslice.codec import message as codec
from mailslice.model.errors import (
    MailsliceError,
    QueueMissing,
    StoreUnavailable,
    TryAgain,
    Undecodable,
)
from mailslice.model.names import HEADER_DELAY_TOKEN
from mailslice.stores.rabbitmq.consumer import Consumer, Message
from mailslice.stores.rabbitmq.link import Link
from mailslice.worker.dequeue import park
from mailslice.worker.dequeue.dead_letters import dead_letter
from mailslice.worker.enqueue.delayed_mails import Delays
from mailslice.worker.io.context import QueueContext
from mailslice.worker.logs import about

log = logging.getLogger(__name__)
_PREFETCH = 512
"""Twice the copies that may wait here for the rest of their delay (`Delays`)."""


class ExpiredDelayConsumer:
    """While a store is down, tries a copy for half a minute, then returns it to a delay level.
    Returns it earlier if such copies fill half of the window while others go through.
    """

    def __init__(self, context: QueueContext, delays: Delays) -> None:
        self._context = context
        self._delays = delays
        self._tasks: set[asyncio.Task[None]] = set()
        self._park = park.Park(context, delays)
        self._rounds = park.FaultRounds(context.statistics, _PREFETCH)
        self._consumer = Consumer(
            context.settings.rabbitmq,
            context.names.hop_queue,
            _PREFETCH,
            on_message=self._arrived,
            on_lost=self._lost,
            prepare=self._declare,
        )

    @property
    def error(self) -> BaseException | None:
        """The error that ended the consumer (a wrong setting), if any."""
        return self._consumer.error

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    def start(self) -> None:
        """Starts to consume, in a task that first declares the hop queue if it is missing."""
        self._consumer.start()

    async def close(self) -> None:
        """Ends. Copies whose mails are not published yet go back to the hop queue."""
        await self._consumer.stop()
        await self._delays.wait_for_releases()
        self._cancel_all()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._delays.wait_for_releases()  # releases that began meanwhile
        await self._consumer.close()

    async def _declare(self) -> None:
        try:
            await self._delays.declare()
        except TryAgain:
            raise
        except MailsliceError as error:
            # The work queue's consumer reports the error, too, and ends if it is fatal. A person
            # has to repair a hop queue of another type; meanwhile other mail goes on.
            raise StoreUnavailable(f"delayed mails wait: {error}") from error

    def _arrived(self, message: Message) -> None:
        task = asyncio.create_task(self._handle(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _lost(self, _link: Link | None, why: MailsliceError) -> None:
        if isinstance(why, QueueMissing):
            self._delays.redeclare()
        self._cancel_all()

    def _cancel_all(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _handle(self, message: Message) -> None:
        trial, pauses = park.Trial(), None
        try:
            while why := await self._rounds.run_attempt(trial, self._handle_once(message)):
                if pauses is None:
                    pauses = park.RetryPauses(message, trial, self._rounds, self._rounds.successes)
                    self._rounds.waiting += 1
                    log.warning("a delayed mail is held: %s", why, extra={"action": "hop_held"})
                over = pauses.is_over(len(self._tasks))
                if over and await self._park_or_dead_letter(message, why, trial, pauses.began):
                    return
                await asyncio.sleep(pauses.pause())
            self._rounds.successes += 1
        except asyncio.CancelledError:
            return
        finally:
            self._rounds.waiting -= pauses is not None

    async def _park_or_dead_letter(
        self, message: Message, why: MailsliceError, trial: park.Trial, since: float
    ) -> bool:
        """Puts the copy into a delay level, or dead-letters it after faults of its own. False: it
        stays here. `since`: when its errors began. A copy whose mail this worker published while
        its row is open stays as long as possible: another worker would publish the mail again.
        """
        seconds = asyncio.get_running_loop().time() - since
        if self._delays.has_published(message) and seconds < park.LONGEST_UNACKNOWLEDGED:
            return False
        faults = self._rounds.after(message, trial)
        if faults >= park.FAULT_ROUNDS:
            reason = f"cannot be looked at after its delay: {trial.fault}"
            return await self._give_up(message, reason)
        level = self._context.tuning.held_delay_level
        return await self._park.put(message, why, faults=faults, level=level)

    async def _give_up(self, message: Message, reason: str) -> bool:
        item = None
        with suppress(Exception):  # decoding may be what fails
            item = codec.decode(message.body)
        try:
            await dead_letter(self._context, message, reason, item)
        except MailsliceError as error:
            text = "a delayed mail cannot be dead-lettered: %s"
            log.warning(text, error, extra={"action": "hop_held"})
            return False
        if item is not None:
            try:
                token = message.headers.get(HEADER_DELAY_TOKEN, "")
                await self._delays.close_row(item.enqueue_id, token=token)
            except Exception as error:  # noqa: BLE001 - it may be the copy's own fault
                text = "the delay of a dead letter is open still: %s"
                log.warning(text, type(error).__name__, extra=about("delay_open", item.enqueue_id))
        return True

    async def _handle_once(self, message: Message) -> None:
        try:
            await self._delays.on_expired(message)
        except Undecodable as error:
            # The hop queue has no dead letter exchange: a reject would drop it.
            await dead_letter(self._context, message, f"not a mail, in the hop queue: {error}")
