"""`mailslice worker run`: the consumer process for containers.

The parent starts the processes that consume, restarts with back-off those that die, passes signals
on, and serves liveness and metrics on one port. A process ends by itself when the parent is gone.
"""

import logging
import multiprocessing
import os
import select
import shutil
import signal
import time
from collections.abc import MutableSequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType
from uuid import UUID

from mailslice.engine.scratch import scratch_folder
from mailslice.model.errors import BadInput, MailsliceError
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.model.settings import Settings
from mailslice.worker.dequeue.strikes import InHandlers, Strikes, StrikeState
from mailslice.worker.health import HealthServer, Liveness, ProcessHealth, summed_metrics
from mailslice.worker.process import child
from mailslice.worker.process.consumer_task import ConsumerTask, drain_for

log = logging.getLogger(__name__)

_LONGEST_PAUSE = 30.0
_SETTLED_AFTER = 60.0
"""A process that lived for this many seconds is restarted with the shortest pause."""
_TRIES_BEFORE_FIRST_BEAT = 3
_KILL_AFTER_DRAIN = 15.0
"""Seconds more, for closing connections to stores that do not answer."""


@dataclass(slots=True)
class _Slot:
    """One of the N processes, and what is known of it."""

    number: int
    process: SpawnProcess | None = None
    pipe: connection.Connection | None = None
    started: float = 0.0
    not_before: float = 0.0
    deaths: int = 0
    cells: MutableSequence[int] | None = None
    unsent: StrikeState | None = None
    """The newest strikes, while its pipe is full: a process that is stuck reads nothing."""


def run_worker(  # noqa: PLR0917 - the numbers of the command line, in its order
    settings: Settings,
    queue: QueueName,
    handler_spec: str,
    processes: int = 1,
    prefetch: int = 16,
    concurrency: int = 8,
    *,
    drain: timedelta | None = None,
    health_port: int | None = None,
) -> None:
    """Consumes until SIGTERM or SIGINT, then drains and returns. Must run in the main thread.

    Each of the `processes` has up to `prefetch` mails, `concurrency` of them in handlers. On a
    signal running handlers may finish for `drain` (default: `drain_for`), the rest goes back to the
    broker. `health_port` (default: the setting): 0 = none. Raises BadInput for a number, and
    MailsliceError with text and exit code of a process that cannot start, if none ever consumed.
    """
    numbers = {"--processes": processes, "--prefetch": prefetch, "--concurrency": concurrency}
    for name, value in numbers.items():
        if value < 1:
            raise BadInput(f"{name} {value}: allowed are whole numbers from 1")
    task = ConsumerTask(
        settings,
        queue,
        handler_spec,
        prefetch,
        concurrency,
        drain_for(settings, handler_spec) if drain is None else drain,
        logging.getLogger("mailslice").getEffectiveLevel(),
    )
    port = settings.worker.health_port if health_port is None else health_port
    Supervisor(task, processes, settings.worker.health_host, port).run()


class Supervisor:
    """Keeps `processes` of one task running until a signal."""

    def __init__(
        self, task: ConsumerTask, processes: int, health_host: str, health_port: int
    ) -> None:
        self._task = task
        self._slots = [_Slot(number) for number in range(processes)]
        self._liveness = Liveness(processes, time.monotonic)
        self._health = (health_host, health_port)
        self._spawning = multiprocessing.get_context("spawn")
        self._strikes = Strikes()
        self._stopping = False
        self._began = False
        self._failure: MailsliceError | None = None

    def run(self) -> None:
        """Runs until SIGTERM or SIGINT. Raises the error of a failed first start."""
        figures = str(scratch_folder("mailslice-metrics"))
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = figures  # the processes inherit it
        signals = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, self._on_signal) for number in signals}
        host, port = self._health
        server: HealthServer | None = None
        try:
            if port:
                answers = {
                    "/livez": self._liveness.livez,
                    "/readyz": self._liveness.readyz,
                    "/metrics": lambda: summed_metrics(figures),
                }
                server = HealthServer(host, port, answers)
                server.start()
            while not self._stopping and self._failure is None:
                self._start_due()
                self._listen(0.2)
            self._end_all()
        finally:
            self._kill_rest()
            if server:
                server.stop()
            for number, handler in before.items():
                signal.signal(number, handler)
            del os.environ["PROMETHEUS_MULTIPROC_DIR"]
            shutil.rmtree(figures, ignore_errors=True)
        if self._failure is not None:
            raise self._failure

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True

    def _start_due(self) -> None:
        now = time.monotonic()
        for slot in self._slots:
            if slot.process is None and now >= slot.not_before:
                slot.started = now
                try:
                    self._start(slot)
                except OSError as error:  # no memory or no process id is left: the others go on
                    self._start_later(slot, f"cannot be started: {error}")

    def _start(self, slot: _Slot) -> None:
        parent_pipe, child_pipe = self._spawning.Pipe()
        slot.cells = self._spawning.RawArray("B", InHandlers.size(self._task.concurrency))
        task = replace(self._task, number=slot.number)
        process = self._spawning.Process(
            target=child.main,
            args=(task, child_pipe, slot.cells, self._strikes.state),
            name=f"mailslice-worker-{slot.number}",
        )
        process.start()
        child_pipe.close()  # else the child would not see our end close
        slot.process, slot.pipe = process, parent_pipe
        self._liveness.started(slot.number, process.pid)

    def _listen(self, longest: float) -> None:
        """Waits up to `longest` seconds for messages or ends of processes, and handles them."""
        pipes = {slot.pipe: slot for slot in self._slots if slot.pipe is not None}
        sentinels = [slot.process.sentinel for slot in self._slots if slot.process is not None]
        if not sentinels:
            time.sleep(longest)
            return
        for source in connection.wait([*pipes, *sentinels], longest):
            if isinstance(source, connection.Connection):
                self._take(pipes[source])
        for slot in self._slots:
            # A forked child of the process keeps its sentinel open: the exit code decides.
            if (process := slot.process) is not None and process.exitcode is not None:
                self._died(slot, process)
        self._send()

    def _take(self, slot: _Slot) -> None:
        with suppress(EOFError, OSError):
            while slot.pipe is not None and slot.pipe.poll():
                match slot.pipe.recv():
                    case ProcessHealth() as health:
                        self._began = self._began or health.connected
                        self._liveness.beat(slot.number, health)
                    case (str() as message, int() as code):
                        text = "process %d cannot start: %s"
                        log.error(text, slot.number, message, extra={"action": "start_failed"})
                        if not self._began:
                            self._failure = MailsliceError(message)
                            self._failure.exit_code = code
                    case UUID() as enqueue_id:
                        self._send(self._strikes.dead_lettered(EnqueueId(enqueue_id)))
            return
        # The other end is closed: the exit code shows the rest.
        if slot.pipe is not None:
            slot.pipe.close()
            slot.pipe = None

    def _died(self, slot: _Slot, process: SpawnProcess) -> None:
        self._take(slot)
        code, pid = process.exitcode, process.pid
        if slot.pipe is not None:
            slot.pipe.close()
        process.close()
        slot.process = slot.pipe = None
        self._liveness.died(slot.number)
        for gauges in Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]).glob(f"gauge*_{slot.number}.db"):
            gauges.unlink()  # counters go on in their file when the process is started again
        if self._stopping or self._failure is not None:
            return
        self._strike(slot)
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        self._start_later(slot, f"(pid {pid}) ended with {how}")

    def _start_later(self, slot: _Slot, why: str) -> None:
        """Restarts after a growing pause. Before anything consumed it gives up after 3 deaths."""
        now = time.monotonic()
        slot.deaths = 1 if now - slot.started > _SETTLED_AFTER else slot.deaths + 1
        if not self._began and slot.deaths >= _TRIES_BEFORE_FIRST_BEAT:
            self._failure = MailsliceError(
                f"worker process {slot.number} {why}, {slot.deaths} times "
                "before it consumed; its log is above"
            )
            return
        pause = min(2.0 ** (slot.deaths - 1), _LONGEST_PAUSE)
        slot.not_before = now + pause
        text = "process %d %s; starting it again in %.0f s"
        log.warning(text, slot.number, why, pause, extra={"action": "restart"})

    def _strike(self, slot: _Slot) -> None:
        """Counts the death for the mails that were in handlers, and sends that to all processes."""
        if slot.cells is None or not (in_handlers := InHandlers.ids(slot.cells)):
            return
        self._began = True  # it consumed, even if its report did not arrive
        struck = self._strikes.died(in_handlers)
        text = "process %d died with %d mails in handlers: %s; each is handled alone from now on"
        ids = ", ".join(map(str, in_handlers))
        log.warning(text, slot.number, len(in_handlers), ids, extra={"action": "struck"})
        self._send(struck)

    def _send(self, struck: StrikeState | None = None) -> None:
        """Sends new strikes, and those that are unsent, without waiting for any process."""
        for slot in self._slots:
            slot.unsent = struck or slot.unsent
            if slot.unsent is None or slot.pipe is None:
                continue
            room = select.poll()
            room.register(slot.pipe, select.POLLOUT)  # a quarter of the buffer is used at most
            if room.poll(0):
                with suppress(OSError):
                    slot.pipe.send(slot.unsent)
                slot.unsent = None

    def _end_all(self) -> None:
        """Passes the signal on and waits: each process has the drain time and a little more."""
        for slot in self._slots:
            if slot.process is not None:
                slot.process.terminate()
        deadline = time.monotonic() + self._task.drain.total_seconds() + _KILL_AFTER_DRAIN
        while any(slot.process is not None for slot in self._slots) and time.monotonic() < deadline:
            self._listen(0.2)

    def _kill_rest(self) -> None:
        for slot in self._slots:
            if slot.process is not None:
                log.error("process %d did not end; killed", slot.number, extra={"action": "kill"})
                slot.process.kill()
                slot.process.join()
