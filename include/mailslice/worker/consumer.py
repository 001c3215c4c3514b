"""`mailslice worker run`: the consumer process for containers.

A parent supervises the processes that consume: a died one is started again with back-off, signals are passed on, and liveness and metrics of all
are on one port. Each process ends by itself when the parent is gone.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta

from mailslice.model.errors import BadInput
from mailslice.model.mail import QueueName
from mailslice.model.settings import Settings

DRAIN = timedelta(seconds=30)
_LONGEST_DRAIN = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class ConsumerTask:
    """What one consuming process does. Pickled to it, so nothing here is an open thing."""

    settings: Settings
    queue: QueueName
    handler: str
    prefetch: int
    concurrency: int
    drain: timedelta = DRAIN
    log_level: int = logging.INFO


def run_worker(  # noqa: PLR0917 - the numbers of the command line, in its order
    settings: Settings,
    queue: QueueName,
    handler_spec: str,
    processes: int = 1,
    prefetch: int = 16,
    concurrency: int = 8,
    *,
    drain: timedelta | None = None,
    health_host: str | None = None,
    health_port: int | None = None,
) -> None:
    """Consumes until SIGTERM or SIGINT, then drains and returns. To be called in the main thread.

    `processes` consume beside each other, each with up to `prefetch` mails delivered and `concurrency` of them in handlers (fewer, when
    fewer are delivered).
    On a signal: no new mail, running handlers may finish for `drain` (default: `drain_for`), the
    rest goes back to the broker.
    `health_port` (default: the setting) serves /livez, /readyz and /metrics; 0 = none.
    Raises BadInput (handler, numbers, queue), Refused, or StoreUnavailable when no process got as far as consuming; afterwards faults only restart.
    """
    for name, value in (
        ("--processes", processes),
        ("--prefetch", prefetch),
        ("--concurrency", concurrency),
    ):
        if value < 1:
            raise BadInput(f"{name} {value}: allowed are whole numbers from 1")
    from mailslice.worker.supervisor import Supervisor

    task = ConsumerTask(
        settings,
        queue,
        handler_spec,
        prefetch,
        concurrency,
        drain_for(settings, handler_spec) if drain is None else drain,
        logging.getLogger("mailslice").getEffectiveLevel(),
    )
    host = settings.worker.health_host if health_host is None else health_host
    port = settings.worker.health_port if health_port is None else health_port
    Supervisor(task, processes, host, port).run()


def drain_for(settings: Settings, handler_spec: str) -> timedelta:
    """How long handlers may finish: 30 s; for the relay as long as it waits for the answer to a
    mail that was sent whole, up to 10 minutes: without the answer the mail is sent again.
    """
    if handler_spec != "relay":
        return DRAIN
    return max(DRAIN, min(settings.relay.answer_timeout, _LONGEST_DRAIN))
