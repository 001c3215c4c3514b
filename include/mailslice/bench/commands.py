"""`mailslice bench`: speed and memory against the stores of the settings, in queues of its own."""

import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mailslice.cli.arguments import Counts, count, counts, duration, share, size
from mailslice.cli.command import command, group
from mailslice.cli.output import Output
from mailslice.model.errors import BadInput
from mailslice.model.mail import QueueName
from mailslice.model.names import queue_name

if TYPE_CHECKING:
    from mailslice.bench.servers import Server
    from mailslice.model.settings import Settings

app = group(
    "Benchmarks against the stores of the settings, in a queue of their own that is emptied "
    "afterwards."
)
DEFAULT_QUEUE = QueueName("mailslice-bench")
_MOST_ROWS = 100_000_000
PARTS = {
    "hotpath": "4 KiB mails at the peak, paced, by several processes, with many waiting",
    "sizes": "larger mails",
    "curve": "1 ... 128 in flight, and the window beside fixed ones",
    "far": "the same, S3 20 ms away",
    "s3": "S3 servers of several kinds, cold, warm, far, over TLS",
    "clients": "the S3 client for small objects beside obstore",
    "delays": "hops of delayed mails",
    "relay": "a next server 20 ms away",
    "view": "size, browse, cleanup",
    "counters": "counter_repair",
    "blobs": "blob_gc",
    "marks": "a sweep of marks",
}
"""Of `bench all`, in the order of measuring."""


def _option(name: str, default: Any, metavar: str, parser: Any, text: str, **more: Any) -> Any:
    return typer.Option(default, *name.split(), parser=parser, metavar=metavar, help=text, **more)


def _number(
    name: str,
    default: int,
    text: str,
    *,
    least: int = 1,
    most: int = _MOST_ROWS,
    metavar: str = "N",
) -> Any:
    parser = count(name.partition(" ")[0], least=least, most=most)
    return _option(name, default, metavar, parser, text)


def _or_zero(name: str, most: timedelta) -> Callable[[object], timedelta]:
    """A parser of durations, or 0."""
    parse = duration(name, most=most)
    return lambda text: timedelta(0) if str(text).strip() == "0" else parse(text)


class Parts(tuple[str, ...]):
    """Names of parts, given as `curve,far`."""

    __slots__ = ()


def parts(text: object) -> Parts:
    """A parser of them."""
    names = Parts(word.strip() for word in str(text).split(","))
    for name in names:
        if name not in PARTS:
            raise BadInput(f"--part: {name[:60]!r} is not allowed; {', '.join(PARTS)} are")
    return names


def _servers(files: list[Path]) -> "list[Server]":
    from mailslice.bench.servers import Server

    return [Server.of_file(file) for file in files]


def _server_files() -> Any:
    text = "An S3 server to start and measure (JSON: name, command, endpoint, secure, ca)."
    return typer.Option([], "--server", metavar="FILE", help=text)


def _warm_up(text: str) -> Any:
    parser = _or_zero("--warm-up", timedelta(hours=1))
    return _option("--warm-up", timedelta(seconds=30), "DURATION", parser, text, show_default="30s")


def _rtt(text: str) -> Any:
    parser = duration("--rtt", most=timedelta(seconds=10))
    return _option(
        "--rtt", timedelta(milliseconds=20), "DURATION", parser, text, show_default="20ms"
    )


def _size(text: str) -> Any:
    return _option("--size", 4096, "BYTES", size("--size"), text)


def _queue() -> Any:
    text = "Made when missing, and removed then; refused when it holds mails."
    return _option("--queue", DEFAULT_QUEUE, "QUEUE", queue_name, text)


def _slices() -> Any:
    return _number("--slices", 100, "Slices that hold the dead rows.", most=100_000)


@command(app, "hotpath")
def hotpath(
    out: Output,
    *,
    queue: QueueName = _queue(),
    mails: int = _number("--count", 2000, "Mails.", most=10_000_000),
    mail_size: int = _size("Bytes of a mail: 4096, 200k, 25M."),
    in_flight: int = _number("--in-flight", 64, "Mails in flight.", most=4096, metavar="K"),
    repeats: int = _number(
        "--repeats --repeat",
        1,
        "Runs; the median of each figure, and the spread.",
        most=1000,
    ),
    load: float = _option(
        "--load",
        0.8,
        "SHARE",
        share("--load"),
        "Latencies at this share of the peak rate, too, for seconds; 0 = not.",
    ),
    processes: Any = _option(
        "--processes",
        None,
        "N,N",
        counts("--processes", most=64),
        "So many processes at once, too: 1,2,4; each has K in flight.",
    ),
    waiting: int = _number(
        "--waiting",
        0,
        "With N mails waiting, too, and a drain of them all; 0 = not.",
        least=0,
        most=10_000_000,
    ),
    curve: bool = typer.Option(
        False,
        "--curve/--no-curve",
        help="With 1 ... 128 in flight, too: all at the stores, and as many as S3 bears; with 64, "
        "the window beside fixed ones.",
    ),
    rtt: timedelta = _option(
        "--rtt",
        timedelta(0),
        "DURATION",
        _or_zero("--rtt", timedelta(seconds=10)),
        "S3 behind a proxy that adds this to each round trip: 20ms; 0 = not.",
        show_default="0",
    ),
    warm_up: timedelta = _warm_up(
        "Before it, the same unmeasured, until that costs no less, for so long at most; 0 = not."
    ),
) -> None:
    """Enqueue, then dequeue and complete; beside it each store's own limit, measured alone in the same run."""
    from mailslice.bench.hotpath import Spec, measure

    spec = Spec(
        mails, mail_size, in_flight, repeats, load, processes or (), waiting, warm_up, curve, rtt
    )
    out.one(measure(_settings(), queue, spec, _say(out)))


@command(app, "size")
def size_(
    out: Output,
    *,
    queue: QueueName = _queue(),
    live: int = _number("--live", 1000, "Live mails."),
    dead: int = _number("--dead", 100_000, "Dead rows among them.", least=0),
    slices: int = _slices(),
) -> None:
    """Size and browse with live mails among dead rows, before and after a cleanup."""
    from mailslice.bench.view import measure_view

    view = measure_view(_settings(), queue, live=live, dead=dead, slices=slices, say=_say(out))
    out.one({key: value for key, value in view.items() if key != "cleanup"})


@command(app, "cleanup")
def cleanup(
    out: Output,
    *,
    queue: QueueName = _queue(),
    rows: int = _number("--rows", 100_000, "Dead rows."),
    slices: int = _slices(),
) -> None:
    """A cleanup of dead rows: rows a second of plan and of apply, and the most memory of this process and Spark's."""
    from mailslice.bench.view import measure_view

    view = measure_view(_settings(), queue, live=1000, dead=rows, slices=slices, say=_say(out))
    out.one({"slices": slices, **view["cleanup"]})


@command(app, "counters")
def counters(
    out: Output,
    *,
    mailboxes: int = _number("--mailboxes", 1000, "Mailboxes.", most=10_000_000),
    messages: int = _number("--messages", 100_000, "Messages, dealt evenly."),
) -> None:
    """A counter_repair over mailboxes in a keyspace of its own: messages a second compared and counted, mailboxes a second corrected, peak memory."""
    from mailslice.bench.counters import measure_counters

    out.one(measure_counters(_settings(), mailboxes=mailboxes, messages=messages, say=_say(out)))


@command(app, "blobs")
def blobs(
    out: Output,
    *,
    blobs: int = _number("--blobs", 10_000, "Blobs, a quarter of them orphans."),
    references: int = _number("--references", 50_000, "References."),
    keep: bool = typer.Option(
        True, "--keep/--no-keep", help="Copy what is deleted to mailslice's bucket first."
    ),
) -> None:
    """A blob_gc over buckets and a keyspace of its own: blobs listed, references read, keys deleted a second, beside what S3 can do; peak memory."""
    from mailslice.bench.blobs import measure_blobs

    measured = measure_blobs(
        _settings(), blobs=blobs, references=references, keep=keep, say=_say(out)
    )
    out.one(measured)


@command(app, "relay")
def relay(
    out: Output,
    *,
    mails: int = _number("--count", 400, "Mails.", most=1_000_000),
    mail_size: int = _size("Bytes of a mail."),
    recipients: int = _number("--recipients", 1, "Recipients of a mail.", most=10_000),
    concurrency: int = _number(
        "--concurrency", 8, "Handlers beside each other.", most=1024, metavar="K"
    ),
    rtt: timedelta = _rtt("Of a round trip to the next server."),
) -> None:
    """Relay to a server that waits a round trip: one mail a connection against kept connections and PIPELINING; no store is used."""
    from mailslice.bench.relay import measure_relay

    measured = measure_relay(
        mails=mails,
        size=mail_size,
        recipients=recipients,
        concurrency=concurrency,
        rtt=rtt,
        say=_say(out),
    )
    out.one(measured)


@command(app, "s3")
def s3(
    out: Output,
    *,
    queue: QueueName = _queue(),
    server: list[Path] = _server_files(),
    mails: int = _number("--count", 2000, "Mails.", most=10_000_000),
    mail_size: int = _size("Bytes of a mail."),
    in_flight: Any = _option(
        "--in-flight",
        Counts((16, 64)),
        "K,K",
        counts("--in-flight", most=4096),
        "Few mails in flight, for cold servers, too, and many.",
        show_default="16,64",
    ),
    rtt: timedelta = _rtt("Of a far server, by a proxy."),
    warm_up: timedelta = _warm_up("Of the stores, and of each server, at most; 0 = not."),
) -> None:
    """The hot path against S3 servers: cold and warm, near and far, over TLS; without --server, that of the settings."""
    from mailslice.bench.servers import measure_servers

    rows = measure_servers(
        _settings(),
        queue,
        _servers(server),
        mails=mails,
        size=mail_size,
        in_flight=(in_flight[0], in_flight[-1]),
        rtt=rtt,
        warm_up=warm_up,
        say=_say(out),
    )
    out.rows(rows)


@command(app, "clients")
def clients(
    out: Output,
    *,
    queue: QueueName = _queue(),
    mails: int = _number("--count", 2000, "Mails.", most=10_000_000),
    mail_size: int = _size("Bytes of a mail."),
    in_flight: int = _number("--in-flight", 64, "Mails in flight.", most=4096, metavar="K"),
    turns: int = _number("--turns", 3, "Turns of both; the medians.", most=1000),
    warm_up: timedelta = _warm_up("Of the stores, at most; 0 = not."),
) -> None:
    """The S3 client for small objects against obstore, in turn, on the same stores: mails, PUTs and GETs, CPU, and their ratios."""
    from mailslice.bench.clients import measure_clients

    measured = measure_clients(
        _settings(),
        queue,
        mails=mails,
        size=mail_size,
        in_flight=in_flight,
        turns=turns,
        warm_up=warm_up,
        say=_say(out),
    )
    out.one(measured)


@command(app, "delays")
def delays(
    out: Output,
    *,
    queue: QueueName = _queue(),
    mails: int = _number("--count", 500, "Mails of each delay.", most=1_000_000),
) -> None:
    """Delayed mails: hops through delay levels, how late they are, CPU; hops of long delays are computed."""
    from mailslice.bench.delayed import DELAYS, measure_delays

    out.one(measure_delays(_settings(), queue, mails=mails, delays=DELAYS, say=_say(out)))


@command(app, "marks")
def marks(
    out: Output,
    *,
    queue: QueueName = _queue(),
    rows: int = _number("--rows", 250_000, "Marks."),
) -> None:
    """A sweep of deleted marks in a keyspace of its own: marks a second listed, and dropped by the run after it; CPU, peak memory."""
    from mailslice.bench.marks import measure_marks

    out.one(measure_marks(_settings(), queue, rows=rows, say=_say(out)))


@command(app, "all")
def all_(
    out: Output,
    *,
    queue: QueueName = _queue(),
    largest: int = _number("--rows", 1_000_000, "Most dead rows.", least=1000),
    page: Path | None = typer.Option(
        None, "--write", metavar="FILE", help="Write the page here, too (docs/performance.md)."
    ),
    part: Any = _option("--part", None, "NAME,NAME", parts, f"Only these: {', '.join(PARTS)}."),
    server: list[Path] = _server_files(),
) -> None:
    """All of the above with the sizes of the issue: a table, JSON lines with --json, and the page."""
    from mailslice.bench.suite import run_all

    run_all(
        out,
        _settings(),
        queue,
        largest=largest,
        page=page,
        say=_say(out),
        parts=part or (),
        servers=_servers(server),
    )


def _settings() -> "Settings":
    from mailslice.model.settings import load_settings

    return load_settings()


def _say(out: Output) -> Callable[[str], None]:
    """What happens now, when somebody looks on."""
    return lambda text: out.note(f"bench: {text}") if sys.stderr.isatty() else None
