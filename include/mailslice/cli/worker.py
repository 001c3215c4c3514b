"""`mailslice worker`: the processes that feed and drain a queue."""

import logging
import sys
from datetime import timedelta
from typing import Annotated

import typer

from mailslice.cli.arguments import Queue, Reason, count, duration, factor, pause
from mailslice.cli.command import command, group
from mailslice.cli.door import open_queue, record
from mailslice.cli.draining import Outcome
from mailslice.cli.output import Output
from mailslice.model.mail import QueueName
from mailslice.model.names import queue_name
from mailslice.model.settings import GiveUp

app = group("Worker processes: drain by hand, consume with a handler, accept by SMTP.")

_PREFETCH, _PREFETCH_RELAY = 32, 16
"""32 at once are 1,000 mails/s where S3 is 20 ms away. A handler that waits long holds fewer."""
Prefetch = Annotated[
    int,
    typer.Option(
        "--prefetch",
        parser=count("--prefetch", most=65535),
        metavar="M",
        help="Mails delivered ahead of their handling.",
    ),
]


@command(app, "drain")
def drain(
    out: Output,
    queue: Queue,
    *,
    most: Annotated[
        int | None,
        typer.Option(
            "--max",
            parser=count("--max"),
            metavar="N",
            help="End after this many mails; without it, when the queue is idle.",
        ),
    ] = None,
    outcome: Annotated[
        Outcome, typer.Option("--outcome", help="What happens to each mail.")
    ] = Outcome.SUCCESS,
    idle: Annotated[
        timedelta,
        typer.Option(
            "--idle",
            parser=duration("--idle"),
            metavar="DURATION",
            show_default="2s",
            help="End when the queue has given nothing for so long.",
        ),
    ] = timedelta(seconds=2),
    prefetch: Prefetch = 64,
    reason: Reason = None,
) -> None:
    """Take mails off a queue and complete, retry or reject each: a line a mail, after mark and ack."""
    from mailslice.cli.draining import Draining, Wanted
    from mailslice.cli.loop import run
    from mailslice.model.settings import load_settings
    from mailslice.worker import open_worker

    wanted = Wanted(most, outcome, idle, prefetch, reason or "rejected by mailslice worker drain")
    settings = load_settings()

    async def work() -> int:
        async with open_worker(settings, queue) as worker:
            draining = Draining(worker, wanted, out)
            try:
                await draining.run()
            finally:
                if draining.handled and reason:
                    record(
                        settings, f"worker drain {outcome}", queue, reason, handled=draining.handled
                    )
            return draining.handled

    handled = run(work())
    if not out.as_json:
        out.note(f"{handled} mails: {outcome}")


@command(app, "run")
def run_(
    out: Output,  # noqa: ARG001
    *,
    queue: Annotated[
        QueueName,
        typer.Option("--queue", parser=queue_name, metavar="QUEUE", help="Queue to consume."),
    ],
    handler: Annotated[
        str,
        typer.Option(
            "--handler",
            metavar="MODULE:FUNCTION",
            help="Called for each mail; relay and maildir are shipped.",
        ),
    ],
    processes: Annotated[
        int,
        typer.Option(
            "--processes",
            parser=count("--processes", most=1024),
            metavar="N",
            help="Processes beside each other.",
        ),
    ] = 1,
    prefetch: Annotated[
        int | None,
        typer.Option(
            "--prefetch",
            parser=count("--prefetch", most=65535),
            metavar="M",
            help="Mails delivered ahead of their handling: 32 when not given, 16 for the relay.",
        ),
    ] = None,
    concurrency: Annotated[
        int,
        typer.Option(
            "--concurrency",
            parser=count("--concurrency", most=65535),
            metavar="K",
            help="Handlers beside each other in a process.",
        ),
    ] = 8,
    drain_for: Annotated[
        timedelta | None,
        typer.Option(
            "--drain",
            parser=duration("--drain"),
            metavar="DURATION",
            help="After SIGTERM running handlers may take so long: 30s when not given; "
            "the relay as MAILSLICE_RELAY_ANSWER_TIMEOUT, at most 10m.",
        ),
    ] = None,
    health_port: Annotated[
        int | None,
        typer.Option(
            "--health-port",
            parser=count("--health-port", least=0, most=65535),
            metavar="PORT",
            help="/livez, /readyz and /metrics; 0 = none.",
        ),
    ] = None,
    attempts: Annotated[
        int | None,
        typer.Option(
            "--attempts",
            parser=count("--attempts", least=0),
            metavar="N",
            help="Failed attempts at a mail; 0 = no end.",
        ),
    ] = None,
    back_off_base: Annotated[
        timedelta | None,
        typer.Option(
            "--back-off-base",
            parser=pause("--back-off-base"),
            metavar="DURATION",
            help="Pause after the first failed attempt.",
        ),
    ] = None,
    back_off_factor: Annotated[
        float | None,
        typer.Option(
            "--back-off-factor",
            parser=factor("--back-off-factor"),
            metavar="X",
            help="By which each further pause is longer.",
        ),
    ] = None,
    back_off_cap: Annotated[
        timedelta | None,
        typer.Option(
            "--back-off-cap",
            parser=pause("--back-off-cap"),
            metavar="DURATION",
            help="Longest of these pauses.",
        ),
    ] = None,
    give_up: Annotated[
        GiveUp | None,
        typer.Option("--give-up", help="What becomes of a mail after its last attempt."),
    ] = None,
) -> None:
    """Consume a queue with a handler until SIGTERM. Attempts, pauses and the end of a mail: MAILSLICE_WORKER_* when not given here for this queue."""
    from mailslice.worker.supervisor import run_worker

    _log_infos()
    with open_queue(queue) as opened:
        settings = opened.settings
    wanted = {
        "attempts": attempts,
        "back_off_base": back_off_base,
        "back_off_factor": back_off_factor,
        "back_off_cap": back_off_cap,
        "give_up": give_up,
    }
    given = {name: value for name, value in wanted.items() if value is not None}
    settings = settings.model_copy(update={"worker": settings.worker.model_copy(update=given)})
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
        list[QueueName] | None,
        typer.Argument(
            parser=queue_name, metavar="[QUEUE]...", help="Mail queues; all when none is named."
        ),
    ] = None,
    *,
    interval: Annotated[
        timedelta,
        typer.Option(
            "--interval",
            parser=duration("--interval"),
            metavar="DURATION",
            show_default="2s",
            help="Between two looks; RabbitMQ's figures change every 5 s.",
        ),
    ] = timedelta(seconds=2),
    once: Annotated[
        bool,
        typer.Option(
            "--once",
            help="Print once and end, as without a terminal, and with --json: one object a queue.",
        ),
    ] = False,
) -> None:
    """Queues as they move: sizes, ages, rates, what workers hold, problems. Live on a terminal, until Ctrl-C."""
    from mailslice.cli.door import open_stores
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
    queue: Annotated[
        QueueName,
        typer.Option(
            "--queue", parser=queue_name, metavar="QUEUE", help="Queue that accepted mails go to."
        ),
    ],
    host: Annotated[
        str | None,
        typer.Option(
            "--host",
            metavar="ADDRESS",
            help="Address to listen on; MAILSLICE_SMTP_IN_HOST when not given.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            parser=count("--port", least=0, most=65535),
            metavar="PORT",
            help="0 finds a free one; MAILSLICE_SMTP_IN_PORT.",
        ),
    ] = None,
    health_port: Annotated[
        int | None,
        typer.Option(
            "--health-port",
            parser=count("--health-port", least=0, most=65535),
            metavar="PORT",
            help="/livez, /readyz and /metrics; 0 = none; MAILSLICE_SMTP_IN_HEALTH_PORT.",
        ),
    ] = None,
) -> None:
    """Accept mail by SMTP until SIGTERM; 250 only after the enqueue is durable. Networks, AUTH and TLS: MAILSLICE_SMTP_IN_*."""
    from mailslice.stores.cassandra.lean import without_numpy
    from mailslice.worker.smtp_in import run_smtp_in

    without_numpy()
    _log_infos()
    with open_queue(queue) as opened:
        settings = opened.settings
    options = {"host": host, "port": port, "health_port": health_port}
    given = {field: value for field, value in options.items() if value is not None}
    settings = settings.model_copy(update={"smtp_in": settings.smtp_in.model_copy(update=given)})
    run_smtp_in(
        settings,
        queue,
        lambda *place: out.line(
            {"queue": queue, "host": place[0], "port": place[1]},
            f"listening on {place[0]}:{place[1]} for {queue}",
        ),
    )


def _log_infos() -> None:
    """A process that runs for days says on stderr what it does, with the time."""
    log = logging.getLogger("mailslice")
    log.setLevel(min(log.level, logging.INFO))
    for handler in logging.getLogger().handlers:
        handler.filters.clear()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
