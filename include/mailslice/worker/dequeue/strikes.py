"""Mails at which their process dies: memory that is used up, a fault in a C extension, `os._exit`.

A classic queue counts no returns. So each process keeps the ids of mails in its handlers in memory
that it shares with the parent (a write costs a microsecond). When the process dies, each of these
mails gets a strike. A mail with a strike is handled alone, so that the next strike hits only the
mail that causes it. At the third strike it is dead-lettered. A parent that dies loses all strikes.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, MutableSequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from uuid import UUID

from mailslice.model.mail import EnqueueId

MAX_DEATHS = 3
"""Process deaths after which a mail becomes a dead letter."""
REASON = f"its process died {MAX_DEATHS} times while it was in a handler"
SECONDS_ALONE = 10.0
"""Seconds for which a suspect is handled alone: most crashes come at once."""
_REMEMBERED = 1000
_SIZE = 16
_FREE = bytes(_SIZE)


@dataclass(frozen=True, slots=True)
class StrikeState:
    """What the parent tells its processes: mails to handle alone, and mails to dead-letter."""

    suspects: frozenset[EnqueueId] = frozenset()
    condemned: frozenset[EnqueueId] = frozenset()


class Strikes:
    """The parent's count of strikes."""

    def __init__(self) -> None:
        self._counts: dict[EnqueueId, int] = {}

    def died(self, in_handlers: Iterable[EnqueueId]) -> StrikeState:
        """Counts one death for each of these mails. Returns the new state."""
        for enqueue_id in in_handlers:
            self._counts[enqueue_id] = self._counts.pop(enqueue_id, 0) + 1
        while len(self._counts) > _REMEMBERED:
            del self._counts[next(iter(self._counts))]
        return self.state

    def dead_lettered(self, enqueue_id: EnqueueId) -> StrikeState:
        """Forgets a mail that is a dead letter now: a redrive starts anew. The new state."""
        self._counts.pop(enqueue_id, None)
        return self.state

    @property
    def state(self) -> StrikeState:
        condemned = frozenset(mail for mail, count in self._counts.items() if count >= MAX_DEATHS)
        return StrikeState(frozenset(self._counts) - condemned, condemned)


class InHandlers:
    """Ids of the mails in handlers of one process, in memory shared with the parent (`cells`)."""

    def __init__(self, cells: MutableSequence[int]) -> None:
        self._cells = cells
        self._free = list(range(len(cells) // _SIZE))

    @staticmethod
    def size(concurrency: int) -> int:
        return _SIZE * concurrency

    def enter(self, enqueue_id: EnqueueId) -> int:
        """Records that a handler has the mail. Returns the cell, for `leave`."""
        cell = self._free.pop()
        self._cells[cell * _SIZE : (cell + 1) * _SIZE] = enqueue_id.bytes
        return cell

    def leave(self, cell: int) -> None:
        self._cells[cell * _SIZE : (cell + 1) * _SIZE] = _FREE
        self._free.append(cell)

    def clear(self) -> None:
        """Empties all cells at a regular end, so that no mail gets a strike."""
        self._cells[:] = bytes(len(self._cells))

    @staticmethod
    def ids(cells: MutableSequence[int]) -> list[EnqueueId]:
        """Mails that are in handlers, or were when the process died."""
        stored = bytes(cells)
        ids = (stored[at : at + _SIZE] for at in range(0, len(stored), _SIZE))
        return [EnqueueId(UUID(bytes=cell)) for cell in ids if cell != _FREE]


@dataclass(slots=True, eq=False, repr=False)
class Isolation:
    """Handles each suspect alone, for `seconds` at most: a slow one must not stop a queue.

    `in_handlers` None: no parent watches this process, so no mail is a suspect.
    """

    in_handlers: InHandlers | None = None
    struck: Callable[[], StrikeState] = StrikeState
    seconds: float = SECONDS_ALONE
    _running: int = field(init=False, default=0)
    """Mails that began within the last `seconds`."""
    _alone: int = field(init=False, default=0)
    """Suspects among them, and suspects that wait to begin."""
    _changed: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    @asynccontextmanager
    async def admitted(self, enqueue_id: EnqueueId) -> AsyncIterator[None]:
        """Waits until the mail may be handled, and admits it until its outcome is stored. If a
        suspect kills the process meanwhile, the mail is handled twice.
        """
        suspect = enqueue_id in self.struck().suspects
        with ExitStack() as counted:
            self._alone += suspect
            counted.callback(self._leave, alone=suspect)
            while self._running if suspect else self._alone:
                self._changed.clear()
                await self._changed.wait()
            self._running += 1
            counted.callback(self._leave, running=1)
            over = asyncio.get_running_loop().call_later(self.seconds, counted.close)
            counted.callback(over.cancel)
            yield

    def _leave(self, *, running: int = 0, alone: int = 0) -> None:
        self._running -= running
        self._alone -= alone
        self._changed.set()

    @contextmanager
    def in_handler(self, enqueue_id: EnqueueId) -> Iterator[None]:
        """Marks an admitted mail as in a handler: a death of the process is a strike for it."""
        if self.in_handlers is None:
            yield
            return
        cell = self.in_handlers.enter(enqueue_id)
        try:
            yield
        finally:
            self.in_handlers.leave(cell)
