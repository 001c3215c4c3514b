"""An event loop on a thread of its own, for callers that have none."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from mailslice.model.errors import BadInput

T = TypeVar("T")


def call_from_thread(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Runs `work` on `loop` from another thread. Raises BadInput on the loop's own thread."""
    with suppress(RuntimeError):  # a thread without a loop
        if asyncio.get_running_loop() is loop:
            work.close()
            raise BadInput(
                f"{getattr(work, '__qualname__', work)} would block its own event loop: an async "
                "handler behind a plain decorator is called as plain; make its wrapper 'async def'"
            )
    return asyncio.run_coroutine_threadsafe(work, loop).result()


class LoopThread:
    """Runs coroutines for other threads. `name` is the name of the thread, also in errors."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pid = os.getpid()
        self._begun = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._closed = False
        self._closing = threading.RLock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Starts the loop. Raises ImportError here, not on the new thread, without uvloop."""
        import uvloop  # noqa: F401

        self._thread.start()
        self._begun.wait()

    @property
    def is_here(self) -> bool:
        """Whether the thread belongs to this process: a fork does not inherit it."""
        return self._pid == os.getpid()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts `work` on the loop. BadInput: the loop cannot run it, or a wait would deadlock."""
        self._require_usable(work)  # before the lock: in a fork nobody may ever release it
        with self._closing:  # work that is accepted starts before the loop ends
            loop = self._require_usable(work)
            return asyncio.run_coroutine_threadsafe(self._tracked(work), loop)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. An interrupt (Ctrl-C) cancels it; `stop` waits for its end."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def end(self, last: Coroutine[Any, Any, object]) -> None:
        """Runs `last` after all other work, cancelled work too, has ended. In a fork: nothing."""
        if self.is_here:
            self.call(self._after_all(last))
        else:
            last.close()

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Calls `callback` on the loop, unless that has ended. For any thread or signal handler."""
        if self._loop is not None and self.is_here:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(callback)

    def stop(self) -> None:
        """Waits for running work, then ends the thread."""
        if self.is_here:
            self._close()
            if self._end is not None:
                self.call_soon(self._end.set)
            self._thread.join()

    def _close(self) -> None:
        """Refuses new work from now on."""
        with self._closing:
            self._closed = True

    def _require_usable(self, work: Coroutine[Any, Any, Any]) -> asyncio.AbstractEventLoop:
        problem = None
        if not self.is_here:
            problem = (
                f"was opened by process {self._pid} and cannot be used by its fork "
                f"{os.getpid()}: open it after the fork"
            )
        elif threading.current_thread() is self._thread:
            problem = (
                "was called from its own event loop, as by an async handler: "
                "that would wait for itself for ever; use open_worker there"
            )
        elif self._loop is None or self._closed:
            problem = "is closed"
        if problem is not None or self._loop is None:
            work.close()
            raise BadInput(f"{self._name} {problem}")
        return self._loop

    async def _after_all(self, last: Coroutine[Any, Any, object]) -> None:
        """Running work (a handler, say) may submit more until it ends; then new work is refused."""
        if others := self._tasks - {asyncio.current_task()}:
            await asyncio.wait(others)
        self._close()
        await self._await_others()
        await last

    async def _await_others(self) -> None:
        """Returns when all accepted work except the caller's has ended."""
        for _ in range(2):  # turns of the loop in which work accepted just now becomes a task
            await asyncio.sleep(0)
        while others := self._tasks - {asyncio.current_task()}:
            await asyncio.wait(others)

    async def _tracked(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await work

    def _run(self) -> None:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._until_ended())

    async def _until_ended(self) -> None:
        self._end = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._begun.set()
        await self._end.wait()
        await self._await_others()
