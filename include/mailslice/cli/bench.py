"""`mailslice bench`: speed and memory against the stores of the settings (issue section E). Queues of its own, emptied afterwards."""

import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mailslice.cli.arguments import Counts, count, counts, duration, share, size
from mailslice.cli.command import command, group
from mailslice.cli.output import Output
from mailslice.model.mail import QueueName
from mailslice.model.names import queue_name

if TYPE_CHECKING:
    from mailslice.model.settings import Settings

app = group(
    "Benchmarks against the stores of the settings, in a queue of their own that is emptied afterwards."
)

DEFAULT_QUEUE = QueueName("mailslice-bench")
_MOST_ROWS = 100_000_000
BenchQueue = Annotated[
    QueueName,
    typer.Option(
        "--queue",
        parser=queue_name,
        metavar="QUEUE",
        help="Made when missing, and removed then; refused when it holds mails.",
    ),
]
Slices = Annotated[
    int,
    typer.Option(
        "--slices",
        parser=count("--slices", most=100_000),
        metavar="N",
        help="Slices that hold the dead rows.",
    ),
]


def _warm_up(text: object) -> timedelta:
    """A duration of up to an hour, or 0."""
    return (
        timedelta(0)
        if str(text).strip() == "0"
        else duration("--warm-up", most=timedelta(hours=1))(text)
    )


@command(app, "hotpath")
def hotpath(
    out: Output,
    *,
    queue: BenchQueue = DEFAULT_QUEUE,
    mails: Annotated[
        int,
        typer.Option(
            "--count", parser=count("--count", most=10_000_000), metavar="N", help="Mails."
        ),
    ] = 2000,
    each: Annotated[
        int,
        typer.Option(
            "--size",
            parser=size("--size"),
            metavar="BYTES",
            help="Bytes of a mail: 4096, 200k, 25M.",
        ),
    ] = 4096,
    in_flight: Annotated[
        int,
        typer.Option(
            "--in-flight",
            parser=count("--in-flight", most=4096),
            metavar="K",
            help="Mails in flight.",
        ),
    ] = 64,
    repeats: Annotated[
        int,
        typer.Option(
            "--repeats",
            "--repeat",
            parser=count("--repeats", most=1000),
            metavar="N",
            help="Runs; the median of each figure, and the spread.",
        ),
    ] = 1,
    load: Annotated[
        float,
        typer.Option(
            "--load",
            parser=share("--load"),
            metavar="SHARE",
            help="Latencies at this share of the peak rate, too, for seconds; 0 = not.",
        ),
    ] = 0.8,
    processes: Annotated[
        Counts | None,
        typer.Option(
            "--processes",
            parser=counts("--processes", most=64),
            metavar="N,N",
            help="So many processes at once, too: 1,2,4; each has K in flight.",
        ),
    ] = None,
    waiting: Annotated[
        int,
        typer.Option(
            "--waiting",
            parser=count("--waiting", least=0, most=10_000_000),
            metavar="N",
            help="With N mails waiting, too, and a drain of them all; 0 = not.",
        ),
    ] = 0,
    curve: Annotated[
        bool,
        typer.Option(
            "--curve/--no-curve",
            help="With 1 ... 128 in flight, too: all at the stores, and as many as S3 bears.",
        ),
    ] = False,
    warm_up: Annotated[
        timedelta,
        typer.Option(
            "--warm-up",
            parser=_warm_up,
            metavar="DURATION",
            show_default="30s",
            help="Before it, the same unmeasured, until that costs no less, for so long at most; 0 = not.",
        ),
    ] = timedelta(seconds=30),
) -> None:
    """Enqueue, then dequeue and complete; beside it each store's own limit, measured alone in the same run."""
    from mailslice.cli.bench_hotpath import Wanted, measure

    wanted = Wanted(mails, each, in_flight, repeats, load, processes or (), waiting, warm_up, curve)
    out.one(measure(_settings(), queue, wanted, _say(out)))


@command(app, "size")
def size_(
    out: Output,
    *,
    queue: BenchQueue = DEFAULT_QUEUE,
    live: Annotated[
        int, typer.Option("--live", parser=count("--live"), metavar="N", help="Live mails.")
    ] = 1000,
    dead: Annotated[
        int,
        typer.Option(
            "--dead",
            parser=count("--dead", least=0, most=_MOST_ROWS),
            metavar="N",
            help="Dead rows among them.",
        ),
    ] = 100_000,
    slices: Slices = 100,
) -> None:
    """Size and browse with live mails among dead rows, before and after a cleanup."""
    from mailslice.cli.bench_view import measure_view

    found = measure_view(_settings(), queue, live=live, dead=dead, slices=slices, say=_say(out))
    out.one({key: found[key] for key in ("live", "dead", "slices", "fill_rate", "before", "after")})


@command(app, "cleanup")
def cleanup(
    out: Output,
    *,
    queue: BenchQueue = DEFAULT_QUEUE,
    rows: Annotated[
        int,
        typer.Option(
            "--rows", parser=count("--rows", most=_MOST_ROWS), metavar="N", help="Dead rows."
        ),
    ] = 100_000,
    slices: Slices = 100,
) -> None:
    """A cleanup of dead rows: rows a second of plan and of apply, and the most memory of this process and Spark's."""
    from mailslice.cli.bench_view import measure_view

    found = measure_view(_settings(), queue, live=1000, dead=rows, slices=slices, say=_say(out))
    out.one({"slices": slices, **found["cleanup"]})


@command(app, "counters")
def counters(
    out: Output,
    *,
    mailboxes: Annotated[
        int,
        typer.Option(
            "--mailboxes",
            parser=count("--mailboxes", most=10_000_000),
            metavar="N",
            help="Mailboxes.",
        ),
    ] = 1000,
    messages: Annotated[
        int,
        typer.Option(
            "--messages",
            parser=count("--messages", most=_MOST_ROWS),
            metavar="N",
            help="Messages, dealt evenly.",
        ),
    ] = 100_000,
) -> None:
    """A counter_repair over mailboxes in a keyspace of its own: messages a second compared and counted, mailboxes a second corrected, peak memory."""
    from mailslice.cli.bench_counters import measure_counters

    out.one(measure_counters(_settings(), mailboxes=mailboxes, messages=messages, say=_say(out)))


@command(app, "blobs")
def blobs(
    out: Output,
    *,
    number: Annotated[
        int,
        typer.Option(
            "--blobs",
            parser=count("--blobs", most=_MOST_ROWS),
            metavar="N",
            help="Blobs, a quarter of them orphans.",
        ),
    ] = 10_000,
    references: Annotated[
        int,
        typer.Option(
            "--references",
            parser=count("--references", most=_MOST_ROWS),
            metavar="N",
            help="References.",
        ),
    ] = 50_000,
    keep: Annotated[
        bool,
        typer.Option("--keep/--no-keep", help="Copy what is deleted to mailslice's bucket first."),
    ] = True,
) -> None:
    """A blob_gc over buckets and a keyspace of its own: blobs listed, references read, keys deleted a second, beside what S3 can do; peak memory."""
    from mailslice.cli.bench_blobs import measure_blobs

    out.one(
        measure_blobs(_settings(), blobs=number, references=references, keep=keep, say=_say(out))
    )


@command(app, "relay")
def relay(
    out: Output,
    *,
    mails: Annotated[
        int,
        typer.Option(
            "--count", parser=count("--count", most=1_000_000), metavar="N", help="Mails."
        ),
    ] = 400,
    each: Annotated[
        int,
        typer.Option("--size", parser=size("--size"), metavar="BYTES", help="Bytes of a mail."),
    ] = 4096,
    recipients: Annotated[
        int,
        typer.Option(
            "--recipients",
            parser=count("--recipients", most=10_000),
            metavar="N",
            help="Recipients of a mail.",
        ),
    ] = 1,
    concurrency: Annotated[
        int,
        typer.Option(
            "--concurrency",
            parser=count("--concurrency", most=1024),
            metavar="K",
            help="Handlers beside each other.",
        ),
    ] = 8,
    rtt: Annotated[
        timedelta,
        typer.Option(
            "--rtt",
            parser=duration("--rtt", most=timedelta(seconds=10)),
            metavar="DURATION",
            show_default="20ms",
            help="Of a round trip to the next server.",
        ),
    ] = timedelta(milliseconds=20),
) -> None:
    """Relay to a server that waits a round trip: one mail a connection against kept connections and PIPELINING; no store is used."""
    from mailslice.cli.bench_relay import measure_relay

    out.one(
        measure_relay(
            mails=mails,
            size=each,
            recipients=recipients,
            concurrency=concurrency,
            rtt=rtt,
            say=_say(out),
        )
    )


@command(app, "all")
def all_(
    out: Output,
    *,
    queue: BenchQueue = DEFAULT_QUEUE,
    largest: Annotated[
        int,
        typer.Option(
            "--rows",
            parser=count("--rows", least=1000, most=_MOST_ROWS),
            metavar="N",
            help="Most dead rows.",
        ),
    ] = 1_000_000,
    page: Annotated[
        Path | None,
        typer.Option(
            "--write", metavar="FILE", help="Write the page here, too (docs/performance.md)."
        ),
    ] = None,
) -> None:
    """All of the above with the sizes of the issue: a table, JSON lines with --json, and the page."""
    from mailslice.cli.bench_all import run_all

    run_all(out, _settings(), queue, largest=largest, page=page, say=_say(out))


def _settings() -> "Settings":
    from mailslice.model.settings import load_settings

    return load_settings()


def _say(out: Output) -> Callable[[str], None]:
    """What happens now, when somebody looks on."""
    return lambda text: out.note(f"bench: {text}") if sys.stderr.isatty() else None
