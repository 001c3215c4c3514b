"""`mailslice worker`: the processes that feed and drain a queue."""

import logging
import sys
from datetime import timedelta
from functools import partial
from typing import Annotated

from mailslice.cli.arguments import (
    PAUSE,
    PORT,
    WINDOW,
    Queue,
    count,
    duration,
    factor,
    listen_address,
    option,
    queue_argument,
    queue_option,
)
from mailslice.cli.command import command, group
from mailslice.cli.drain import Drain, DrainOptions
from mailslice.cli.output import Output
from mailslice.cli.queue_session import open_queue, open_stores, record, run
from mailslice.cli.streams import log_infos
from mailslice.model.host_port import host_port
from mailslice.model.mail import QueueName
from mailslice.model.settings import GiveUp, Settings, load_settings

app = group("Worker processes: drain by hand, consume with a handler, accept by SMTP.")

_PREFETCH, _PREFETCH_RELAY = 32, 16
"""32 give 1,000 mails/s where S3 is 20 ms away. A relay, which waits long, needs fewer."""


@command(app, "drain")
def drain(out: Output, queue: Queue, *, options: DrainOptions) -> None:
    """Give mails of a queue one outcome. Prints a line for each mail after its mark and ack."""
    from mailslice.worker import open_worker

    settings, action = load_settings(), f"worker drain {options.outcome}"

    async def work() -> int:
        async with open_worker(settings, queue) as worker:
            drained = Drain(worker, options, out)
            try:
                await drained.run()
            finally:
                if drained.handled and options.reason:
                    record(settings, action, queue, options.reason, handled=drained.handled)
            return drained.handled

    handled = run(work())
    if not out.as_json:
        out.note(f"{handled} mails: {options.outcome}")


@command(app, "run")
def run_(
    out: Output,  # noqa: ARG001
    *,
    queue: Annotated[QueueName, queue_option("Queue to consume.")],
    handler: Annotated[
        str,
        option("--handler MODULE:FUNCTION", "Called for each mail; relay and maildir are shipped."),
    ],
    processes: Annotated[
        int, option("--processes N", "Number of processes.", partial(count, maximum=1024))
    ] = 1,
    prefetch: Annotated[
        int | None,
        option(
            "--prefetch M",
            "Mails delivered ahead of their handling: 32 when not given, 16 for the relay.",
            WINDOW,
        ),
    ] = None,
    concurrency: Annotated[
        int, option("--concurrency K", "Handlers that a process runs at once.", WINDOW)
    ] = 8,
    drain_for: Annotated[
        timedelta | None,
        option(
            "--drain DURATION",
            "Time for running handlers after SIGTERM: 30s when not given; "
            "for the relay MAILSLICE_RELAY_ANSWER_TIMEOUT, at most 10m.",
            duration,
        ),
    ] = None,
    health_port: Annotated[
        int | None, option("--health-port PORT", "/livez, /readyz and /metrics; 0 = none.", PORT)
    ] = None,
    attempts: Annotated[
        int | None,
        option("--attempts N", "Failed attempts allowed; 0 = no limit.", partial(count, minimum=0)),
    ] = None,
    back_off_base: Annotated[
        timedelta | None,
        option("--back-off-base DURATION", "Pause after the first failed attempt.", PAUSE),
    ] = None,
    back_off_factor: Annotated[
        float | None,
        option("--back-off-factor X", "Factor by which each pause grows.", factor),
    ] = None,
    back_off_cap: Annotated[
        timedelta | None, option("--back-off-cap DURATION", "Longest of these pauses.", PAUSE)
    ] = None,
    give_up: Annotated[
        GiveUp | None, option("--give-up", "What becomes of a mail after its last attempt.")
    ] = None,
) -> None:
    """Consume a queue with a handler until SIGTERM.

    MAILSLICE_WORKER_* sets attempts, pauses and the end of a mail where no option does.
    """
    from mailslice.worker.process.supervisor import run_worker

    log_infos()
    settings = _settings(
        queue,
        "worker",
        attempts=attempts,
        back_off_base=back_off_base,
        back_off_factor=back_off_factor,
        back_off_cap=back_off_cap,
        give_up=give_up,
    )
    run_worker(
        settings,
        queue,
        handler,
        processes,
        prefetch or (_PREFETCH_RELAY if handler == "relay" else _PREFETCH),
        concurrency,
        drain=drain_for,
        health_port=health_port,
    )


@command(app, "top")
def top_(
    out: Output,
    queues: Annotated[
        list[QueueName] | None, queue_argument("[QUEUE]...", "Mail queues; all when none is named.")
    ] = None,
    *,
    interval: Annotated[
        timedelta,
        option(
            "--interval DURATION",
            "Time between two readings; RabbitMQ's figures change every 5 s.",
            duration,
            show_default="2s",
        ),
    ] = timedelta(seconds=2),
    once: Annotated[
        bool,
        option(
            "--once",
            "Print once and end, as without a terminal, and with --json: one object a queue.",
        ),
    ] = False,
) -> None:
    """Sizes, ages, rates, workers and problems of queues. Live on a terminal, until Ctrl-C."""
    from mailslice.cli.worker_top import Top, print_once, watch

    with open_stores() as stores:
        top = Top(stores, queues or [])
        if once or out.as_json or not sys.stdout.isatty():
            print_once(out, top)
        else:
            watch(top, max(interval.total_seconds(), 0.2))


@command(app, "smtp-in")
def smtp_in(
    out: Output,
    *,
    queue: Annotated[QueueName, queue_option("Queue that accepted mails go to.")],
    host: Annotated[
        str | None,
        option(
            "--host ADDRESS",
            "Address to listen on; MAILSLICE_SMTP_IN_HOST when not given.",
            listen_address,
        ),
    ] = None,
    port: Annotated[
        int | None, option("--port PORT", "0 = a free one; MAILSLICE_SMTP_IN_PORT.", PORT)
    ] = None,
    health_port: Annotated[
        int | None,
        option(
            "--health-port PORT",
            "/livez, /readyz and /metrics; 0 = none; MAILSLICE_SMTP_IN_HEALTH_PORT.",
            PORT,
        ),
    ] = None,
) -> None:
    """Accept mail by SMTP until SIGTERM; 250 only after the enqueue is durable.

    MAILSLICE_SMTP_IN_* sets networks, AUTH and TLS.
    """
    from mailslice.stores.cassandra.lean import without_numpy
    from mailslice.worker.smtp_server.server import run_smtp_in

    without_numpy()
    log_infos()
    settings = _settings(queue, "smtp_in", host=host, port=port, health_port=health_port)

    def listening(address: str, bound_port: int) -> None:
        item = {"queue": queue, "host": address, "port": bound_port}
        out.line(item, f"listening on {host_port(address, bound_port)} for {queue}")

    run_smtp_in(settings, queue, listening)


def _settings(queue: QueueName, part: str, **options: object) -> Settings:
    """The settings of a known queue; options that were given replace those of this part.

    From here on the log has the settings' format.
    """
    with open_queue(queue) as opened:
        settings = opened.settings
    from mailslice.worker.logs import formatter

    for handler in logging.getLogger().handlers:
        handler.setFormatter(formatter(settings.log.format))
    update = {name: value for name, value in options.items() if value is not None}
    return settings.model_copy(update={part: getattr(settings, part).model_copy(update=update)})
