"""The `stage` with which a handler marks its progress: `def handle(mail, content, *, stage)`.

A handler calls `stage.sending(recipients)` before the first step that cannot be taken back: it is
durable when it returns. Right after the step it calls `stage.sent(recipients)`, or
`stage.not_sent(recipients)` if the step surely did not happen. If the worker dies, or the handler
ends, in between, these recipients fail and are reported. Without recipients each call means all
possible ones. Without stage marks on the queue all calls do nothing. A plain handler gets a
BlockingStage, an async one an AsyncStage, whose methods are awaited.
"""

import asyncio
from collections.abc import Iterable
from datetime import timedelta

from mailslice.stores.loop_thread import call_from_thread
from mailslice.worker.stages.stage_log import StageMarks


class _Stage:
    """The stage of a delivery. `age` None: unknown; `attempt`: from 1, by retries that count."""

    def __init__(
        self,
        marks: StageMarks | None = None,
        attempt: int = 1,
        age: timedelta | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._marks = marks
        self._loop = loop
        self.attempt = attempt
        self.age = age


class BlockingStage(_Stage):
    """For handlers in a thread."""

    def sending(self, recipients: Iterable[str] | None = None) -> None:
        """Call before sending to these. Raises TakenOver, StoreUnavailable: send nothing then."""
        if self._marks is not None and self._loop is not None:
            call_from_thread(self._loop, self._marks.sending(recipients))

    def sent(self, recipients: Iterable[str] | None = None) -> None:
        """These recipients have the mail."""
        if self._marks is not None and self._loop is not None:
            call_from_thread(self._loop, self._marks.sent(recipients))

    def not_sent(self, recipients: Iterable[str] | None = None) -> None:
        """These surely do not have it, and may be tried again."""
        if self._marks is not None and self._loop is not None:
            call_from_thread(self._loop, self._marks.not_sent(recipients))


class AsyncStage(_Stage):
    """The same for a coroutine on the worker's loop. The methods are awaited."""

    async def sending(self, recipients: Iterable[str] | None = None) -> None:
        if self._marks is not None:
            await self._marks.sending(recipients)

    async def sent(self, recipients: Iterable[str] | None = None) -> None:
        if self._marks is not None:
            await self._marks.sent(recipients)

    async def not_sent(self, recipients: Iterable[str] | None = None) -> None:
        if self._marks is not None:
            await self._marks.not_sent(recipients)


UNMARKED = BlockingStage()
"""For a handler that is called without a delivery."""
