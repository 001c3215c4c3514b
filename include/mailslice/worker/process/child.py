"""One consuming process: queue -> handlers, until a signal or until the parent is gone."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import MutableSequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from mailslice.model.errors import MailsliceError
from mailslice.model.mail import EnqueueId
from mailslice.worker.dequeue.strikes import InHandlers, Isolation, StrikeState
from mailslice.worker.health import ProcessHealth
from mailslice.worker.process.consumer_task import ConsumerTask

if TYPE_CHECKING:
    from mailslice.worker.dequeue.dequeuer import Deliveries
    from mailslice.worker.events import EventLog
    from mailslice.worker.metrics import ConsumerMetrics
    from mailslice.worker.process.handler_pool import HandlerPool
    from mailslice.worker.queue_worker import QueueWorker

log = logging.getLogger(__name__)

REPORT_EVERY = 1.0
_EXIT_WITHIN = 5.0


class ParentLink:
    """The thread that talks to the parent, so that it reports even if the event loop hangs.

    It ends the process when the parent is gone, and gets `StrikeState`. It sends the health of the
    process every second, why a start failed (text, exit code), ids of condemned dead letters.
    """

    def __init__(self, pipe: Connection, drain: float) -> None:
        self._pipe = pipe
        self._drain = drain
        self._sending = threading.Lock()
        self.turned: float | None = None
        """When the loop last ran. None at start-up: handlers and stores may take long to open."""
        self.health = ProcessHealth(
            connected=False, loop_lag=0.0, in_flight=0, reaches_cassandra=False
        )
        self.struck = StrikeState()
        self.buried: deque[EnqueueId] = deque()

    def start(self, loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
        """Begins to report; `stop` is set when the parent's end of the pipe closes."""
        threading.Thread(target=self._run, args=(loop, stop), name="link", daemon=True).start()

    @property
    def lag(self) -> float:
        """Seconds since the event loop last ran."""
        return 0.0 if self.turned is None else time.monotonic() - self.turned

    def send(self, message: ProcessHealth | tuple[str, int] | EnqueueId) -> None:
        with self._sending:
            self._pipe.send(message)

    def _run(self, loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
        try:
            while True:
                self.send(replace(self.health, loop_lag=self.lag))
                while self.buried:
                    self.send(self.buried.popleft())
                if self._pipe.poll(REPORT_EVERY):
                    self.struck = self._pipe.recv()
        except (EOFError, OSError):
            with suppress(RuntimeError):  # the loop is closed already
                loop.call_soon_threadsafe(stop.set)
            # A handler that never gives the loop back must not outlive its command.
            time.sleep(self._drain + 5)
            os._exit(1)


def main(
    task: ConsumerTask, pipe: Connection, cells: MutableSequence[int], struck: StrikeState
) -> None:
    """Exits with 0 after draining; sends a failed start to the parent. `struck`: see `strikes`."""
    from mailslice.worker import logs

    logs.configure(task.settings.log, task.log_level)
    # What handlers print is seen at once, and is not lost with a process that is killed.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    import uvloop
    from prometheus_client import values as val

    from mailslice.stores.cassandra.lean import without_numpy

    without_numpy()
    if val.ValueClass is not val.MutexValue:
        # Files named by process id would pile up with each start, and every scrape reads them all.
        val.ValueClass = val.MultiProcessValue(lambda: task.number)  # type: ignore[no-untyped-call]
    link = ParentLink(pipe, task.drain.total_seconds())
    link.struck = struck
    in_handlers = InHandlers(cells)
    try:
        with (
            logs.event_log(task.settings.log) as events,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            unfinished = runner.run(_consume(task, link, in_handlers, events))
        in_handlers.clear()
    except MailsliceError as error:
        in_handlers.clear()
        link.send((str(error), error.exit_code))  # a handler's own class may not pickle
        _end_soon(1)
        sys.exit(1)
    if unfinished:
        # Python would wait for threads that still run a handler.
        _exit_now()
    _end_soon(0)


def _end_soon(code: int) -> None:
    """Ends the process 5 s from now, so that exit hooks and threads of handlers can end first."""
    guard = threading.Timer(_EXIT_WITHIN, _exit_now, (code,))
    guard.daemon = True
    guard.start()


def _exit_now(code: int = 0) -> None:
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)


async def _consume(
    task: ConsumerTask, link: ParentLink, in_handlers: InHandlers, events: EventLog | None = None
) -> int:
    """Consumes until stopped. Returns the number of handlers that did not end in time."""
    # Imported late: prometheus-client reads its environment at import, and the parent needs neither
    # it nor the drivers.
    from mailslice.worker.metrics import ConsumerMetrics
    from mailslice.worker.process.handler_pool import HandlerPool, policy_of
    from mailslice.worker.process.handler_spec import load_handler
    from mailslice.worker.queue_worker import open_worker

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
        # A forked child inherits this loop's wake-up pipe: a signal to it would stop the worker.
        os.register_at_fork(after_in_child=lambda n=number: signal.signal(n, signal.SIG_DFL))
    link.start(loop, stop)
    metrics = ConsumerMetrics(task.queue)
    handler = load_handler(task.handler, task.settings)
    isolation = Isolation(in_handlers, lambda: link.struck)
    handling = HandlerPool(handler, task.concurrency, metrics, policy_of(task.settings), isolation)
    # Deliveries reconnect by themselves once they have begun. Only a start without a store ends in
    # StoreUnavailable.
    async with open_worker(task.settings, task.queue, event_log=events) as worker:
        worker.state.is_condemned = lambda enqueue_id: enqueue_id in link.struck.condemned
        worker.state.on_buried = link.buried.append
        deliveries = worker.deliveries(task.prefetch)
        turning = asyncio.create_task(_turn(link, worker, deliveries, handling, metrics))
        _log_start(task, handler.takes, has_marks=worker.state.in_doubt is not None)
        try:
            try:
                await hand_out(deliveries, handling, stop)
            except MailsliceError:
                # The broker refuses this worker (say, a changed password). Outcomes of running
                # handlers can still be stored: else their mails would be handled again.
                await _drain(deliveries, handling, task.drain)
                raise
            return await _drain(deliveries, handling, task.drain)
        finally:
            turning.cancel()
            metrics.observe(worker.context.statistics)


def _log_start(task: ConsumerTask, takes: frozenset[str], *, has_marks: bool) -> None:
    queue, name = task.queue, task.handler
    marks = " and stage marks" if has_marks else ""
    text, extra = "consuming %s with %s%s, %d at once", {"action": "consume", "queue": queue}
    log.info(text, queue, name, marks, task.concurrency, extra=extra)
    if has_marks and "stage" not in takes:
        text = "queue %s has stage marks, and handler %s takes no `stage`: "
        text += "a mail may be handled twice"
        log.warning(text, queue, name, extra={"action": "unmarked_handler", "queue": queue})
    if name == "relay" and not has_marks:
        text = (
            "queue %s has no stage marks: a mail that a relay is sending when it is killed is sent "
            "again; MAILSLICE_QUEUE_STAGE_MARKS=%s prevents that"
        )
        log.info(text, queue, queue, extra={"action": "unmarked_relay", "queue": queue})


async def _turn(
    link: ParentLink,
    worker: QueueWorker,
    deliveries: Deliveries,
    handling: HandlerPool,
    metrics: ConsumerMetrics,
) -> None:
    while True:
        metrics.observe(worker.context.statistics)
        link.turned = time.monotonic()
        cassandra = worker.reaches_cassandra, deliveries.held is not None
        link.health = ProcessHealth(deliveries.connected, 0.0, handling.in_flight, *cassandra)
        await asyncio.sleep(REPORT_EVERY / 2)


async def _drain(deliveries: Deliveries, handling: HandlerPool, longest: timedelta) -> int:
    """Gives back mails that no handler has, awaits the handlers; how many did not end in time."""
    log.info("draining: %d mails in handlers", handling.in_flight, extra={"action": "drain"})
    seconds = longest.total_seconds()
    _, unfinished = await asyncio.gather(deliveries.aclose(), handling.drain(seconds))
    if unfinished:
        text = "%d handlers did not end within %s; the broker hands their mails out again"
        log.warning(text, unfinished, longest, extra={"action": "drain_timeout"})
    return unfinished


async def hand_out(deliveries: Deliveries, handling: HandlerPool, stop: asyncio.Event) -> None:
    """Starts a handler for each delivery until `stop` is set; raises what the iterator raises."""
    serving = asyncio.create_task(handling.serve(deliveries))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait((serving, stopped), return_when=asyncio.FIRST_COMPLETED)
    for task in (serving, stopped):
        task.cancel()
    await asyncio.wait((serving, stopped))
    if not serving.cancelled():
        serving.result()
