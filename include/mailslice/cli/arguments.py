"""Shared arguments and options; parsers raise BadInput with option, value and what is allowed."""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from mailslice.codec.addresses import NULL_SENDER, checked_sender
from mailslice.model.clock import system_clock
from mailslice.model.durations import LONGEST, format_duration, parse_duration
from mailslice.model.errors import BadInput
from mailslice.model.mail import EnqueueId, QueueName, parse_enqueue_id
from mailslice.model.names import is_broken, queue_name

N = TypeVar("N", int, float)
MAX_INT = 2**31 - 1


def bounded(
    option: str, convert: Callable[[str], N], minimum: N, maximum: N, allowed: str
) -> Callable[[Any], N]:
    """A parser of numbers between two bounds. `convert` raises ValueError for other text."""

    def parse(text: Any) -> N:
        try:
            value = convert(str(text).strip())
        except ValueError:
            value = None
        if value is None or not minimum <= value <= maximum:
            raise BadInput(f"{option}: {str(text)[:60]!r} is not allowed; {allowed}")
        return value

    return parse


def count(option: str, minimum: int = 1, maximum: int = MAX_INT) -> Callable[[Any], int]:
    """A parser of whole numbers between `minimum` and `maximum`."""
    return bounded(option, int, minimum, maximum, f"a whole number from {minimum} to {maximum} is")


def factor(option: str) -> Callable[[Any], float]:
    """A parser of numbers from 1 to 100."""
    return bounded(option, float, 1.0, 100.0, "a number from 1 to 100 is")


def check_text(option: str, value: object) -> None:
    """Raises BadInput for a text, or a list of texts, that is not UTF-8: no store can keep it."""
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and is_broken(text):
            raise BadInput(f"{option}: {text[:60]!r} is not allowed; text in UTF-8 is")


def duration(
    option: str, maximum: timedelta | None = LONGEST, minimum: timedelta = timedelta(0)
) -> Callable[[Any], timedelta]:
    """A parser of durations up to `maximum`."""

    def parse(text: Any) -> timedelta:
        value = text if isinstance(text, timedelta) else parse_duration(str(text), option)
        refused = f"{option}: {str(text)[:60]!r} is not allowed"
        if maximum is not None and value > maximum:
            raise BadInput(f"{refused}; at most {format_duration(maximum)} is")
        if value < minimum:
            raise BadInput(f"{refused}; at least {format_duration(minimum)} is")
        return value

    return parse


def sender(option: str) -> Callable[[Any], str]:
    """A parser of senders: an address; `<>` and the empty text are the null sender, `<>`."""

    def parse(text: Any) -> str:
        return checked_sender(str(text), option) or NULL_SENDER

    return parse


def listen_address(option: str) -> Callable[[Any], str]:
    """A parser of addresses to listen on. Refuses a blank text (`"$UNSET"`): it means all."""

    def parse(text: Any) -> str:
        if not str(text).strip():
            raise BadInput(
                f"{option}: {str(text)[:60]!r} is not allowed; an address is, such as 127.0.0.1, "
                "or 0.0.0.0 for all"
            )
        return str(text)

    return parse


def enqueue_id(option: str) -> Callable[[Any], EnqueueId]:
    """A parser of enqueue ids."""
    return partial(parse_enqueue_id, option=option)


def moment(option: str, *, ahead: bool = False) -> Callable[[Any], datetime]:
    """A parser of times: ISO 8601 (no zone: UTC), or a duration before (`ahead`: after) now."""

    def parse(text: Any) -> datetime:
        if isinstance(text, datetime):
            return text
        with suppress(ValueError, OverflowError):
            time = datetime.fromisoformat(str(text).strip())
            return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
        try:
            span = duration(option)(text)
        except BadInput:
            raise BadInput(
                f"{option}: {str(text)[:60]!r} is not a time; allowed: 2026-11-23T10:00:00Z, "
                f"2026-11-23, or a duration {'ahead' if ahead else 'ago'} (2h, 30d)"
            ) from None
        return system_clock() + span if ahead else system_clock() - span

    return parse


PORT = partial(count, minimum=0, maximum=65535)
WINDOW = partial(count, maximum=65535)
PAUSE = partial(duration, maximum=timedelta(days=27), minimum=timedelta(seconds=1))
"""A pause between attempts. The bounds are those of MAILSLICE_WORKER_BACK_OFF_CAP."""


def option(
    usage: str,
    help_text: str,
    parser_of: Callable[[str], Callable[[Any], Any]] | None = None,
    **more: Any,
) -> Any:
    """An option. `usage`: `--name` (a switch) or `--name METAVAR`; `parser_of`: name -> parser."""
    name, _, metavar = usage.partition(" ")
    parser = parser_of(name) if parser_of else None
    return typer.Option(name, metavar=metavar or None, help=help_text, parser=parser, **more)


def queue_argument(metavar: str, help_text: str) -> Any:
    return typer.Argument(parser=queue_name, metavar=metavar, help=help_text)


def queue_option(help_text: str) -> Any:
    return option("--queue QUEUE", help_text, lambda _: queue_name)


def folder(text: Any) -> Path:
    """A folder. Refuses the empty text (`"$UNSET"`), which would be the current folder."""
    if not str(text):
        raise BadInput("DIR: '' is not allowed; the path of a folder is, such as .")
    return Path(text)


Folder = Annotated[
    Path,
    typer.Argument(
        parser=folder, metavar="DIR", help="Created when missing; nothing in it is overwritten."
    ),
]
Queue = Annotated[QueueName, queue_argument("QUEUE", "Name of a mail queue.")]
Reason = Annotated[str | None, option("--reason TEXT", "Why; kept with who did it.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, option("--dry-run", "Change nothing; print what would be done.")]
Sender = Annotated[
    str | None, option("--sender ADDRESS", "Envelope sender; <> is the null sender.", sender)
]
OlderThan = Annotated[
    timedelta | None,
    option(
        "--older-than DURATION",
        "Enqueued at least this long ago: 90s, 15m, 1h.",
        partial(duration, maximum=None),
    ),
]
Limit = Annotated[int | None, option("--limit N", "Stop after this many.", count)]
