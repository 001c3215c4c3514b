"""The lease of a mail in a handler: a delayed copy that replaces its message at the broker.

RabbitMQ closes the channel of a consumer that leaves a message unacknowledged for too long. So a
mail that is long in a handler gets a lease: a delayed copy, due in ten minutes, with a row in
delayed_mails. The worker renews it while the handler runs. A deleted mark drops the copy, a retry
voids it. If the process dies, the copy expires and the mail is delivered again, unless its row says
that only its deleted mark is missing (`done`).
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial

from mailslice.codec.headers import count_in
from mailslice.model import crash
from mailslice.model.errors import MailsliceError, StoreUnavailable
from mailslice.model.mail import EnqueueId
from mailslice.model.names import HEADER_FAILURES
from mailslice.stores.rabbitmq.consumer import Message
from mailslice.worker.dequeue.park import LONGEST_UNACKNOWLEDGED, RETRY_SECONDS, Park, is_counted
from mailslice.worker.enqueue.delayed_mails import Delays
from mailslice.worker.io.context import QueueContext
from mailslice.worker.io.message_copy import MessageCopy
from mailslice.worker.logs import about

log = logging.getLogger(__name__)
LENGTH = timedelta(minutes=10)
"""How long a mail waits if its process dies in a long handler. Renewed at half of it."""
LAST_RESORT = 900.0
"""Seconds after which a message without a lease is parked, while Cassandra is away. Its mail may be
handled twice. A delay level cannot take it: the hop queue drops a copy without the row's token.
"""


class Lease:
    """The lease of one delivery. `message`: the one that the broker delivered last for its mail."""

    def __init__(
        self, context: QueueContext, delays: Delays, message: Message, enqueue_id: EnqueueId
    ) -> None:
        self._context = context
        self._delays = delays
        self._enqueue_id = enqueue_id
        self._due = message.arrived + LONGEST_UNACKNOWLEDGED
        self._extending: asyncio.Task[None] | None = None
        self._settling = asyncio.Lock()
        self._has_row = False
        self.message = message
        self.is_out = False
        """Whether a copy has replaced the message, which is acknowledged."""
        self.is_closed = False
        """Whether its handler lost the mail: it was deleted, or another worker took it."""
        self.is_done = self.says_done = False
        """Whether its handler is done with it but for the deleted mark; whether the row says so."""

    @property
    def has_message(self) -> bool:
        """Whether the message is unacknowledged here, as far as is known."""
        return not self.is_out and self.message.link.is_open

    @property
    def is_lost(self) -> bool:
        """Whether the broker has the mail back, and hands it out again."""
        return not self.is_out and not self.message.link.is_open

    async def is_over(self) -> bool:
        """Whether it was deleted, or closed as stuck. False if unknown: its next delivery asks."""
        try:
            return self.is_closed or await self._context.is_marked(self._enqueue_id)
        except StoreUnavailable:
            return False

    def adopt(self, message: Message) -> bool:
        """Replaces the lost message, or the copy, by this one. False: this one may not do so."""
        replaces = self.is_out or (self.is_lost and message.redelivered)
        if message.body != self.message.body or not replaces:
            return False
        self.message, self.is_out, self.is_closed = message, False, False
        self._due = message.arrived + (0 if is_counted(message) else LONGEST_UNACKNOWLEDGED)
        self.extend_when_due()  # at once where returns are counted: the next may reach the limit
        return True

    @asynccontextmanager
    async def settling(self) -> AsyncIterator[None]:
        """Admits one settlement at a time. The message is not replaced meanwhile."""
        async with self._settling:
            if self._extending is not None:
                await asyncio.wait({self._extending})
            yield

    def ack(self) -> bool:
        return self.is_out or self.message.ack()

    def requeue(self) -> bool:
        """Returns the message to the broker, unless a copy is out."""
        return self.is_out or self.message.requeue()

    async def end(self, *, only_lease: bool = True) -> None:
        """Closes the row, so that no copy is delivered. If that fails, a copy may be delivered."""
        if self._has_row or not only_lease:
            try:
                await self._delays.close_row(self._enqueue_id, only_lease=only_lease)
            except MailsliceError as error:
                self._log_warning("a mail may be delivered again when its lease is over: %s", error)

    async def republish(self) -> None:
        """Publishes a mail whose copy is out. If that fails, the copy brings it back later."""
        if self.is_closed or self.is_lost:  # the row may be that of the message's new holder
            return
        try:
            if self.is_out:
                failures = {HEADER_FAILURES: count_in(self.message.headers, HEADER_FAILURES)}
                await self._context.publish(MessageCopy.of(self.message, failures))
        except MailsliceError as error:
            self._log_warning("a mail comes back when its lease is over: %s", error)
        else:
            await self.end()

    async def replace_message(self) -> None:
        """Replaces the message now, within a settlement that a store does not take."""
        if self.has_message or (self.is_out and self.is_done and not self.says_done):
            await self._extend()

    def extend_when_due(self) -> None:
        """Begins to replace the message, or to renew the copy, when that is due."""
        is_due = asyncio.get_running_loop().time() >= self._due and not self.is_lost
        if is_due and self._extending is None and not self._settling.locked():
            self._extending = asyncio.create_task(self._extend(), name="lease")
            self._extending.add_done_callback(self._on_extended)

    def _on_extended(self, task: asyncio.Task[None]) -> None:
        self._extending = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log_warning("a mail has no lease, by a fault of mailslice: %s", error)
        self.extend_when_due()  # a message that was adopted meanwhile may be due

    async def _extend(self) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.time() + RETRY_SECONDS
        try:
            if await self.is_over() or await self._is_taken():
                self._due = math.inf  # its message is not needed any more
                self.is_closed = True
            else:
                self._has_row = True
                copy, due = MessageCopy.of(self.message), self._context.clock() + LENGTH
                done, leased = self.is_done, partial(self._delays.schedule, leased=True)
                await leased(self._enqueue_id, copy, due, done=done, has_message=not self.is_out)
                self.says_done = done
                self._due = loop.time() + LENGTH.total_seconds() / 2
            crash.point("lease:copied")
        except MailsliceError as error:
            self._log_warning("a mail is long in this process, and has no lease yet: %s", error)
            if self.is_out or loop.time() - self.message.arrived < LAST_RESORT:
                return
            message = self.message
            parked = await Park(self._context, self._delays).put(message, error)
            self.is_out = parked and self.message is message  # else another one was adopted
            return
        if not self.is_out:
            self.is_out = True
            self.message.ack()

    async def _is_taken(self) -> bool:
        """Whether a worker to which stuck_mails gave the mail has delayed it since."""
        row = await self._delays.rows.load(self._enqueue_id) if self.is_out else None
        if row is None or row.due is None or row.leased or row.published:
            return False
        age = timedelta(seconds=asyncio.get_running_loop().time() - self.message.arrived)
        return row.due > self._context.clock() - age  # if older, it is that of the delay before

    def _log_warning(self, text: str, error: BaseException) -> None:
        log.warning(text, error, extra=about("lease", self._enqueue_id))
