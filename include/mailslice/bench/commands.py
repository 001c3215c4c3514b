"""`mailslice bench`: speed and memory against the stores of the settings, in queues of its own."""

import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from importlib import import_module
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

import typer

from mailslice.bench.arguments import counts, share, size
from mailslice.cli.arguments import count, duration
from mailslice.cli.command import command, group
from mailslice.cli.output import Output
from mailslice.model.errors import BadInput
from mailslice.model.mail import QueueName
from mailslice.model.names import queue_name

app = group(
    "Benchmarks against the stores of the settings, in a queue of their own that is emptied "
    "afterwards."
)
DEFAULT_QUEUE = QueueName("mailslice-bench")
BENCH_PARTS = (
    "hotpath",
    "sizes",
    "curve",
    "far",
    "s3",
    "clients",
    "delays",
    "relay",
    "view",
    "counters",
    "blobs",
    "marks",
)
"""Parts of `bench all`, in the order in which they are measured."""
_MAX_ROWS, _MAX_MAILS = 100_000_000, 10_000_000


class Parts(tuple[str, ...]):
    """Names of parts, given as `curve,far`."""

    __slots__ = ()


def parts(text: object) -> Parts:
    """Parses names of parts. Raises BadInput for an unknown name."""
    names = Parts(word.strip() for word in str(text).split(","))
    for name in names:
        if name not in BENCH_PARTS:
            raise BadInput(f"--part: {name[:60]!r} is not allowed; {', '.join(BENCH_PARTS)} are")
    return names


def _option(name: str, default: Any, metavar: str, parser: Any, text: str, **more: Any) -> Any:
    return typer.Option(default, *name.split(), parser=parser, metavar=metavar, help=text, **more)


def _number(
    name: str,
    default: int,
    text: str,
    *,
    minimum: int = 1,
    maximum: int = _MAX_ROWS,
    metavar: str = "N",
) -> Any:
    parser = partial(count, option=name.partition(" ")[0], minimum=minimum, maximum=maximum)
    return _option(name, default, metavar, parser, text)


def _time(name: str, default: str, text: str, maximum: timedelta) -> Any:
    parser = partial(duration, option=name, maximum=maximum)
    return _option(name, parser(default), "DURATION", parser, text, show_default=default)


def _warm_up(text: str) -> Any:
    return _time("--warm-up", "30s", text, timedelta(hours=1))


def _rtt(text: str, default: str = "20ms") -> Any:
    return _time("--rtt", default, text, timedelta(seconds=10))


_QUEUE = _option(
    "--queue",
    DEFAULT_QUEUE,
    "QUEUE",
    queue_name,
    "Made when missing, and removed then; refused when it holds mails.",
)
_MAILS = _number("--count", 2000, "Mails.", maximum=_MAX_MAILS)
_SIZE = _option("--size", 4096, "BYTES", size("--size"), "Bytes of a mail: 4096, 200k, 25M.")
_IN_FLIGHT = _number("--in-flight", 64, "Mails in flight.", maximum=4096, metavar="K")
_SLICES = _number("--slices", 100, "Slices that hold the dead rows.", maximum=100_000)
_SERVERS = typer.Option(
    [],
    "--server",
    metavar="FILE",
    help="An S3 server to start and measure (JSON: name, command, endpoint, secure, ca).",
)


def _measuring(name: str, function: str, text: str, **options: Any) -> None:
    """Register a command: `module:function`, which gets the settings, its options and
    `print_progress`.
    """

    def run(out: Output, **values: Any) -> None:
        from mailslice.model.settings import load_settings

        module, _, attribute = function.partition(":")
        measure = getattr(import_module(f"mailslice.bench.{module}"), attribute)
        measured = measure(load_settings(), **values, print_progress=_print_progress(out))
        if isinstance(measured, list):
            out.rows(measured)
        else:
            out.one(measured)

    own = [
        Parameter(word, Parameter.KEYWORD_ONLY, default=option, annotation=_kind(option))
        for word, option in options.items()
    ]
    first = Parameter("out", Parameter.POSITIONAL_OR_KEYWORD, annotation=Output)
    run.__signature__ = Signature([first, *own])  # type: ignore[attr-defined]
    run.__doc__ = text
    command(app, name)(run)


def _kind(option: Any) -> Any:
    """The type of an option that typer parses itself."""
    return list[Path] if option is _SERVERS else bool if option.parser is None else Any


def _print_progress(out: Output) -> Callable[[str], None]:
    """A printer of progress, for a terminal."""
    return lambda text: out.note(f"bench: {text}") if sys.stderr.isatty() else None


_measuring(
    "hotpath",
    "hotpath:measure",
    "Enqueue, then dequeue and complete; beside it each store's own limit, measured alone in the "
    "same run.",
    queue=_QUEUE,
    mails=_MAILS,
    size=_SIZE,
    in_flight=_IN_FLIGHT,
    repeats=_number(
        "--repeats --repeat", 1, "Runs; the median of each figure, and the spread.", maximum=1000
    ),
    load=_option(
        "--load",
        0.8,
        "SHARE",
        share("--load"),
        "Latencies at this share of the peak rate, too, for seconds; 0 = not.",
    ),
    processes=_option(
        "--processes",
        None,
        "N,N",
        counts("--processes", maximum=64),
        "This many processes at once, too: 1,2,4; each has K in flight.",
    ),
    waiting=_number(
        "--waiting",
        0,
        "With N mails waiting, too, and a drain of them all; 0 = not.",
        minimum=0,
        maximum=_MAX_MAILS,
    ),
    curve=typer.Option(
        False,
        "--curve/--no-curve",
        help="With 1 ... 128 in flight, too: all at the stores, and as many as S3 bears; with 64, "
        "the window beside fixed ones.",
    ),
    rtt=_rtt("S3 behind a proxy that adds this to each round trip: 20ms; 0 = not.", "0"),
    warm_up=_warm_up(
        "Before it, the same unmeasured, until that costs no less, for this long at most; 0 = not."
    ),
)
_measuring(
    "size",
    "view:measure_size",
    "Size and browse with live mails among dead rows, before and after a cleanup.",
    queue=_QUEUE,
    live=_number("--live", 1000, "Live mails."),
    dead=_number("--dead", 100_000, "Dead rows among them.", minimum=0),
    slices=_SLICES,
)
_measuring(
    "cleanup",
    "view:measure_cleanup",
    "A cleanup of dead rows: rows a second of plan and of apply, and the most memory of this "
    "process and Spark's.",
    queue=_QUEUE,
    rows=_number("--rows", 100_000, "Dead rows."),
    slices=_SLICES,
)
_measuring(
    "counters",
    "counters:measure_counters",
    "A counter_repair over mailboxes in a keyspace of its own: messages a second compared and "
    "counted, mailboxes a second corrected, peak memory.",
    mailboxes=_number("--mailboxes", 1000, "Mailboxes.", maximum=_MAX_MAILS),
    messages=_number("--messages", 100_000, "Messages, dealt evenly."),
)
_measuring(
    "blobs",
    "blobs:measure_gc",
    "A blob_gc over buckets and a keyspace of its own: blobs listed, references read, keys deleted "
    "a second, beside what S3 can do; peak memory.",
    blobs=_number("--blobs", 10_000, "Blobs, a quarter of them orphans."),
    references=_number("--references", 50_000, "References."),
    keep=typer.Option(
        True, "--keep/--no-keep", help="Copy what is deleted to mailslice's bucket first."
    ),
)
_measuring(
    "relay",
    "relay:measure_relay",
    "Relay to a server that waits a round trip: one mail a connection against kept connections and "
    "PIPELINING; no store is used.",
    mails=_number("--count", 400, "Mails.", maximum=1_000_000),
    size=_SIZE,
    recipients=_number("--recipients", 1, "Recipients of a mail.", maximum=10_000),
    concurrency=_number(
        "--concurrency", 8, "Handlers that run at once.", maximum=1024, metavar="K"
    ),
    rtt=_rtt("Of a round trip to the next server."),
)
_measuring(
    "s3",
    "servers:measure_servers",
    "The hot path against S3 servers: cold and warm, near and far, over TLS; without --server, "
    "that of the settings.",
    queue=_QUEUE,
    servers=_SERVERS,
    mails=_MAILS,
    size=_SIZE,
    in_flight=_option(
        "--in-flight",
        "16,64",
        "K,K",
        counts("--in-flight", maximum=4096),
        "Few mails in flight, for cold servers, too, and many.",
    ),
    rtt=_rtt("Of a far server, by a proxy."),
    warm_up=_warm_up("Of the stores, and of each server, at most; 0 = not."),
)
_measuring(
    "clients",
    "clients:measure_clients",
    "The S3 client for small objects against obstore, in turn, on the same stores: mails, PUTs and "
    "GETs, CPU, and their ratios.",
    queue=_QUEUE,
    mails=_MAILS,
    size=_SIZE,
    in_flight=_IN_FLIGHT,
    turns=_number("--turns", 3, "Turns of both; the medians.", maximum=1000),
    warm_up=_warm_up("Of the stores, at most; 0 = not."),
)
_measuring(
    "delays",
    "delayed:measure_delays",
    "Delayed mails: hops through delay levels, how late they are, CPU; hops of long delays are "
    "computed.",
    queue=_QUEUE,
    mails=_number("--count", 500, "Mails of each delay.", maximum=_MAX_MAILS),
)
_measuring(
    "marks",
    "marks:measure_marks",
    "A sweep of deleted marks in a keyspace of its own: marks a second listed, and dropped by the "
    "run after it; CPU, peak memory.",
    queue=_QUEUE,
    rows=_number("--rows", 250_000, "Marks."),
)


@command(app, "all")
def all_(
    out: Output,
    *,
    queue: QueueName = _QUEUE,
    largest: int = _number("--rows", 1_000_000, "Most dead rows.", minimum=1000),
    page: Path | None = typer.Option(
        None, "--write", metavar="FILE", help="Write the page here, too (docs/performance.md)."
    ),
    part: Any = _option(
        "--part", None, "NAME,NAME", parts, f"Only these: {', '.join(BENCH_PARTS)}."
    ),
    servers: list[Path] = _SERVERS,
) -> None:
    """All of the above in fixed sizes: a table, JSON lines with --json, and the page."""
    from mailslice.bench.suite import parts_of, run_all
    from mailslice.model.settings import load_settings

    table = parts_of(load_settings(), queue, servers, largest)
    run_all(out, table, part or (), page, _print_progress(out))
