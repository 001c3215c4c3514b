"""Time-outs of many short waits on one timer. Each asyncio.timeout would start its own."""

import asyncio
from collections.abc import Callable

_EVERY = 0.25
"""Longest interval of the timer, in seconds. A quarter of the usual time-out, if that is less."""


class Deadlines:
    """For one event loop at a time. A time-out is late by one interval of the timer at most."""

    def __init__(self, usual_seconds: float) -> None:
        self.every = min(_EVERY, usual_seconds / 4)
        self.open: set[_Deadline | _Call] = set()
        self.loop: asyncio.AbstractEventLoop | None = None
        """The loop on which the timer runs. None: no time-out is open."""

    def within(self, seconds: float) -> "_Deadline":
        """A context manager that raises TimeoutError in its task, as asyncio.timeout does."""
        return _Deadline(self, seconds)

    def call(self, seconds: float, function: Callable[[], object]) -> "_Call":
        """Calls the function in `seconds`, on the running loop, unless the call is cancelled."""
        loop = asyncio.get_running_loop()
        call = _Call(self, loop.time() + seconds, function)
        self.add(call, loop)
        return call

    def add(self, deadline: "_Deadline | _Call", loop: asyncio.AbstractEventLoop) -> None:
        self.open.add(deadline)
        if self.loop is not loop:
            self.start(loop)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        loop.call_later(self.every, self._expire_late, loop)

    def _expire_late(self, loop: asyncio.AbstractEventLoop) -> None:
        """Expires the deadlines that are over. Starts the timer again while others are open."""
        now = loop.time()
        late = [deadline for deadline in self.open if deadline.at <= now]
        self.loop = None
        if len(late) < len(self.open):
            self.start(loop)
        for deadline in late:
            deadline.expire()


class _Call:
    __slots__ = ("_function", "_owner", "at")

    def __init__(self, owner: Deadlines, at: float, function: Callable[[], object]) -> None:
        self._owner, self.at, self._function = owner, at, function

    def cancel(self) -> None:
        """May come after the call."""
        self._owner.open.discard(self)

    def expire(self) -> None:
        self.cancel()
        self._function()


class _Deadline:
    __slots__ = ("_cancels", "_expired", "_owner", "_seconds", "_task", "at")

    def __init__(self, owner: Deadlines, seconds: float) -> None:
        self._owner, self._seconds, self._expired = owner, seconds, False

    def __enter__(self) -> None:
        if (task := asyncio.current_task()) is None:
            raise RuntimeError("a time-out needs a task")
        owner, loop = self._owner, task.get_loop()
        self._task, self._cancels, self.at = task, task.cancelling(), loop.time() + self._seconds
        owner.add(self, loop)

    def expire(self) -> None:
        self._expired = True
        self._owner.open.remove(self)
        self._task.cancel()

    def __exit__(self, kind: object, error: BaseException | None, _trace: object) -> None:
        if not self._expired:
            self._owner.open.remove(self)
        elif self._task.uncancel() <= self._cancels and kind is asyncio.CancelledError:
            raise TimeoutError from error
