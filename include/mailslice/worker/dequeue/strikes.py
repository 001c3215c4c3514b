"""Mails at which their process dies: memory that is used up, a fault in a C extension, `os._exit`.

A classic queue counts no returns. So the parent knows which mails were in handlers of a process
that died, from memory that they share (a write costs a microsecond). Each death is a strike for
them. A mail with a strike is handled alone, so that the next one goes to the one that earns it; at
the third it is a dead letter. A parent that dies, too, forgets them.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, MutableSequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from uuid import UUID

from mailslice.model.mail import EnqueueId

MAX_DEATHS = 3
"""Deaths of its process after which a mail is a dead letter."""
REASON = f"its process died {MAX_DEATHS} times while it was in a handler"
SECONDS_ALONE = 10.0
"""Seconds alone, after which others begin beside a suspect: most crashes come at once."""
_REMEMBERED = 1000
_SIZE = 16
_FREE = bytes(_SIZE)


@dataclass(frozen=True, slots=True)
class Struck:
    """What the parent tells its processes: mails to handle alone, and mails to dead-letter."""

    suspects: frozenset[EnqueueId] = frozenset()
    condemned: frozenset[EnqueueId] = frozenset()


class Strikes:
    """The parent's count."""

    def __init__(self) -> None:
        self._counts: dict[EnqueueId, int] = {}

    def died(self, in_handlers: Iterable[EnqueueId]) -> Struck:
        """A process died while it handled these; what is known now."""
        for enqueue_id in in_handlers:
            self._counts[enqueue_id] = self._counts.pop(enqueue_id, 0) + 1
        while len(self._counts) > _REMEMBERED:
            del self._counts[next(iter(self._counts))]
        return self.struck

    def buried(self, enqueue_id: EnqueueId) -> Struck:
        """The mail is a dead letter: after a redrive it starts without strikes. The new state."""
        self._counts.pop(enqueue_id, None)
        return self.struck

    @property
    def struck(self) -> Struck:
        condemned = frozenset(one for one, count in self._counts.items() if count >= MAX_DEATHS)
        return Struck(frozenset(self._counts) - condemned, condemned)


class InHandlers:
    """Ids of the mails in handlers of one process, in memory shared with the parent (`cells`)."""

    def __init__(self, cells: MutableSequence[int]) -> None:
        self._cells = cells
        self._free = list(range(len(cells) // _SIZE))

    @staticmethod
    def size(concurrency: int) -> int:
        return _SIZE * concurrency

    def enter(self, enqueue_id: EnqueueId) -> int:
        """It is in a handler from now on; the cell, for `leave`."""
        cell = self._free.pop()
        self._cells[cell * _SIZE : (cell + 1) * _SIZE] = enqueue_id.bytes
        return cell

    def leave(self, cell: int) -> None:
        self._cells[cell * _SIZE : (cell + 1) * _SIZE] = _FREE
        self._free.append(cell)

    def clear(self) -> None:
        """The process ends regularly: no mail gets a strike."""
        self._cells[:] = bytes(len(self._cells))

    @staticmethod
    def ids(cells: MutableSequence[int]) -> list[EnqueueId]:
        """Mails that are in handlers, or were when the process died."""
        known = bytes(cells)
        ids = (known[at : at + _SIZE] for at in range(0, len(known), _SIZE))
        return [EnqueueId(UUID(bytes=one)) for one in ids if one != _FREE]


@dataclass(slots=True, eq=False, repr=False)
class Isolation:
    """Handles suspects alone, for `seconds` each: a slow one must not stop a queue.

    `in_handlers` None: no parent watches this process, so nothing is known of any mail.
    """

    in_handlers: InHandlers | None = None
    struck: Callable[[], Struck] = Struck
    seconds: float = SECONDS_ALONE
    _running: int = field(init=False, default=0)
    """Mails that began within the last `seconds`."""
    _alone: int = field(init=False, default=0)
    """Suspects among them, and those that wait to begin."""
    _changed: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    @asynccontextmanager
    async def admitted(self, enqueue_id: EnqueueId) -> AsyncIterator[None]:
        """The mail may be handled, until its outcome is stored. A suspect that kills the process
        meanwhile has that mail handled twice.
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
        """The mail, which was admitted, is in a handler: a death of the process counts for it."""
        if self.in_handlers is None:
            yield
            return
        cell = self.in_handlers.enter(enqueue_id)
        try:
            yield
        finally:
            self.in_handlers.leave(cell)
