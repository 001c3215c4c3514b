"""`mailslice worker smtp-in`: accepts mail by SMTP; answers 250 when the enqueue is durable."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from mailslice.model.clock import Clock, system_clock
from mailslice.model.errors import BadSetting, MailsliceError
from mailslice.model.host_port import host_port
from mailslice.model.mail import QueueName
from mailslice.model.settings import Settings
from mailslice.worker.events import EventLog
from mailslice.worker.health import HealthServer, Liveness, ProcessHealth
from mailslice.worker.io.content_loader import ContentBudget
from mailslice.worker.logs import event_log
from mailslice.worker.smtp_server.conversation import ConnectionLimits, Conversation, ServerTimes
from mailslice.worker.smtp_server.metrics import SmtpMetrics
from mailslice.worker.smtp_server.policy import SmtpPolicy, policy_of
from mailslice.worker.smtp_server.session import AcceptsMail, Intake

if TYPE_CHECKING:
    from mailslice.worker.queue_worker import QueueWorker

log = logging.getLogger(__name__)

_TRACE_ROOM = 4096
"""Bytes: more than a Received line has, whose parts come from commands of at most 512 bytes."""


def run_smtp_in(
    settings: Settings, queue: QueueName, on_listening: Callable[[str, int], None] | None = None
) -> None:
    """Listens until SIGTERM or SIGINT; mails that are being received may then end, for up to 30 s.

    `on_listening` gets address and port (for port 0 the one the system chose). Before, it raises
    BadSetting (open relay, incomplete TLS or AUTH, port in use), UnknownQueue, StoreUnavailable.
    """
    import uvloop

    policy = policy_of(settings.smtp_in)
    # aiosmtpd logs every command at INFO, with addresses in it.
    logging.getLogger("mail.log").setLevel(logging.ERROR)
    metrics = SmtpMetrics(queue)
    liveness = Liveness(1, time.monotonic)
    liveness.started(0, os.getpid())
    health = contextlib.ExitStack()
    if port := settings.smtp_in.health_port:
        pages = {"/livez": liveness.livez, "/readyz": liveness.readyz, "/metrics": metrics.page}
        server = HealthServer(settings.worker.health_host, port, pages)
        health.callback(server.stop)
        server.start()
    with (
        health,
        event_log(settings.log) as events,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(_until_signal(settings, queue, policy, metrics, liveness, on_listening, events))


async def _until_signal(  # noqa: PLR0917
    settings: Settings,
    queue: QueueName,
    policy: SmtpPolicy,
    metrics: SmtpMetrics,
    liveness: Liveness,
    on_listening: Callable[[str, int], None] | None,
    events: EventLog | None,
) -> None:
    from mailslice.worker.queue_worker import open_worker

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    size = settings.queue.max_mail_bytes + _TRACE_ROOM
    opening = open_worker(_with_queue(settings, max_mail_bytes=size), queue, event_log=events)
    ready: list[QueueWorker] = []  # the worker, while the port is open
    tasks = [asyncio.create_task(_beat(ready, liveness, metrics))]  # until the loop is closed
    async with opening as worker:
        agreed = _with_queue(settings, shared=worker.context.settings.queue.shared)
        tasks.append(asyncio.create_task(_stay_connected(worker)))

        def listening(host: str, port: int) -> None:
            ready.append(worker)
            if on_listening is not None:
                on_listening(host, port)

        try:
            await serve(
                agreed,
                policy,
                worker,
                stop,
                clock=system_clock,
                metrics=metrics,
                on_listening=listening,
            )
        finally:
            ready.clear()
            tasks.pop().cancel()


async def _beat(ready: Sequence[QueueWorker], liveness: Liveness, metrics: SmtpMetrics) -> None:
    """Reports that the event loop runs and, of a worker that is ready, which stores it reaches."""
    while True:
        health = None
        for worker in ready:
            metrics.observe(worker.context.statistics)
            health = ProcessHealth(worker.reaches_rabbitmq, 0.0, 0, worker.reaches_cassandra)
        liveness.beat(0, health)
        await asyncio.sleep(1)


async def _stay_connected(worker: QueueWorker) -> None:
    """Reconnects to the broker. Else only mail would, and /readyz keeps mail away meanwhile."""
    while True:
        with contextlib.suppress(MailsliceError):
            await worker.context.publisher.connect()
        await asyncio.sleep(2)


def _with_queue(settings: Settings, **changes: object) -> Settings:
    return settings.model_copy(update={"queue": settings.queue.model_copy(update=changes)})


async def serve(
    settings: Settings,
    policy: SmtpPolicy,
    worker: AcceptsMail,
    stop: asyncio.Event,
    *,
    clock: Clock,
    metrics: SmtpMetrics,
    on_listening: Callable[[str, int], None] | None = None,
    times: ServerTimes | None = None,
) -> None:
    """Listens until `stop` is set, then finishes mails that are being received."""
    smtp_in, times = settings.smtp_in, times or ServerTimes()
    hostname = smtp_in.hostname or socket.getfqdn()
    intake = Intake(
        worker,
        policy,
        hostname=hostname,
        max_recipients=smtp_in.max_recipients,
        shared=settings.queue.shared,
        budget=ContentBudget(settings.worker.memory_budget_mib << 20),
        clock=clock,
        metrics=metrics,
    )
    open_now: set[Conversation] = set()
    metrics.connections.set_function(lambda: len(open_now))
    loop = asyncio.get_running_loop()
    conversation = partial(
        Conversation,
        intake,
        policy,
        open_now,
        ConnectionLimits(smtp_in.max_connections, smtp_in.connections_per_client),
        times,
        data_size_limit=settings.queue.max_mail_bytes,
        hostname=hostname,
        timeout=smtp_in.timeout.total_seconds(),
        loop=loop,
    )
    try:
        server = await loop.create_server(
            conversation, smtp_in.host, smtp_in.port, backlog=smtp_in.max_connections
        )
    except (OSError, UnicodeError) as error:  # UnicodeError: not a host name
        raise BadSetting(
            f"MAILSLICE_SMTP_IN_HOST={smtp_in.host!r}, MAILSLICE_SMTP_IN_PORT={smtp_in.port}: "
            f"cannot listen there: {getattr(error, 'strerror', None) or error}; choose another"
        ) from error
    host, port = server.sockets[0].getsockname()[:2]
    log.info("listening on %s", host_port(host, port), extra={"action": "smtp_listening"})
    if on_listening is not None:
        on_listening(host, port)
    try:
        await stop.wait()
    finally:
        server.close()
        await _finish(open_now, intake, times.drain)


async def _finish(open_now: set[Conversation], intake: Intake, drain: float) -> None:
    """Sends 421 to idle clients at once, to sending clients after `drain` seconds. A client that
    sent a whole mail gets its answer first.
    """
    deadline = time.monotonic() + drain
    while open_now:
        for conversation in list(open_now):
            late = time.monotonic() > deadline and not conversation.enqueuing
            if conversation.transport is not None and (late or not conversation.receiving):
                conversation.dismiss()
        await asyncio.sleep(0.05)  # closing is seen by the conversation's own task
    await intake.drain()
