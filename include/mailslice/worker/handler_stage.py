"""What a handler marks its progress with, when it takes the keyword `stage`: `def handle(mail, content, *, stage)`.

Before the first step that cannot be taken back: `stage.sending(recipients)`, which is durable when it returns. Right after that step: `stage.sent(recipients)`,
or `stage.not_sent(recipients)` when it surely did not happen. A mail whose worker dies in between is failed for these recipients and told, never sent
twice; a handler that ends in between says the same. Without recipients each means all that it can mean: all that are left, all that are being sent to.
`sending` raises TakenOver when another one has the mail: let it pass. On a queue without stage marks the three do nothing, and a mail may be sent twice.
A plain handler gets a BlockingStage, for its thread; an async one an AsyncStage, whose methods are awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import timedelta

from mailslice.worker.marks import Marks


class BlockingStage:
    """For one delivery and a thread. `attempt` counts from 1 and survives restarts; `age` is None when it is unknown.

    An attempt is begun by each retry that counts; on a queue with stage marks by every retry, for its number is the record's there.
    """

    def __init__(
        self,
        marks: Marks | None = None,
        attempt: int = 1,
        age: timedelta | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._marks = marks
        self._loop = loop
        self.attempt = attempt
        self.age = age

    def sending(self, recipients: Iterable[str] | None = None) -> None:
        """About to send to these. Raises TakenOver, StoreUnavailable: then do not."""
        if self._marks is not None and self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._marks.sending(recipients), self._loop).result()

    def sent(self, recipients: Iterable[str] | None = None) -> None:
        """These have it."""
        if self._marks is not None and self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._marks.sent(recipients), self._loop).result()

    def not_sent(self, recipients: Iterable[str] | None = None) -> None:
        """These surely do not have it, and may be tried again."""
        if self._marks is not None:
            self._marks.not_sent(recipients)


class AsyncStage:
    """The same for a coroutine on the worker's loop."""

    def __init__(
        self, marks: Marks | None = None, attempt: int = 1, age: timedelta | None = None
    ) -> None:
        self._marks = marks
        self.attempt = attempt
        self.age = age

    async def sending(self, recipients: Iterable[str] | None = None) -> None:
        """About to send to these. Raises TakenOver, StoreUnavailable: then do not."""
        if self._marks is not None:
            await self._marks.sending(recipients)

    async def sent(self, recipients: Iterable[str] | None = None) -> None:
        """These have it."""
        if self._marks is not None:
            await self._marks.sent(recipients)

    async def not_sent(self, recipients: Iterable[str] | None = None) -> None:
        """These surely do not have it, and may be tried again."""
        if self._marks is not None:
            self._marks.not_sent(recipients)


UNMARKED = BlockingStage()
"""For a handler that is called without a delivery."""
