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
from mailslice.model.mail import QueueName
from mailslice.model.names import is_broken, queue_name

N = TypeVar("N", int, float)
MAX_INT = 2**31 - 1


def bounded(
    text: Any, option: str, convert: Callable[[str], N], bounds: tuple[N, N], allowed: str
) -> N:
    """A number within `bounds`. `convert` raises ValueError for other text."""
    try:
        value = convert(str(text).strip())
    except ValueError:
        value = None
    if value is None or not bounds[0] <= value <= bounds[1]:
        raise BadInput(f"{option}: {str(text)[:60]!r} is not allowed; {allowed}")
    return value


def count(text: Any, option: str, minimum: int = 1, maximum: int = MAX_INT) -> int:
    """A whole number between `minimum` and `maximum`."""
    allowed = f"a whole number from {minimum} to {maximum} is"
    return bounded(text, option, int, (minimum, maximum), allowed)


def factor(text: Any, option: str) -> float:
    """A number from 1 to 100."""
    return bounded(text, option, float, (1.0, 100.0), "a number from 1 to 100 is")


def check_text(option: str, value: object) -> None:
    """Raises BadInput for a text, or a list of texts, that is not UTF-8: no store can keep it."""
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and is_broken(text):
            raise BadInput(f"{option}: {text[:60]!r} is not allowed; text in UTF-8 is")


def duration(
    text: Any, option: str, maximum: timedelta | None = LONGEST, minimum: timedelta = timedelta(0)
) -> timedelta:
    """A duration up to `maximum`."""
    value = text if isinstance(text, timedelta) else parse_duration(str(text), option)
    refused = f"{option}: {str(text)[:60]!r} is not allowed"
    if maximum is not None and value > maximum:
        raise BadInput(f"{refused}; at most {format_duration(maximum)} is")
    if value < minimum:
        raise BadInput(f"{refused}; at least {format_duration(minimum)} is")
    return value


def sender(text: Any, option: str) -> str:
    """A sender: an address; `<>` and the empty text are the null sender, `<>`."""
    return checked_sender(str(text), option) or NULL_SENDER


def listen_address(text: Any, option: str) -> str:
    """An address to listen on. Refuses a blank text (`"$UNSET"`): it means all."""
    if not str(text).strip():
        raise BadInput(
            f"{option}: {str(text)[:60]!r} is not allowed; an address is, such as 127.0.0.1, "
            "or 0.0.0.0 for all"
        )
    return str(text)


def moment(text: Any, option: str, *, ahead: bool = False) -> datetime:
    """A time: ISO 8601 (no zone: UTC), or a duration before (`ahead`: after) now."""
    if isinstance(text, datetime):
        return text
    with suppress(ValueError, OverflowError):
        time = datetime.fromisoformat(str(text).strip())
        return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    try:
        span = duration(text, option)
    except BadInput:
        raise BadInput(
            f"{option}: {str(text)[:60]!r} is not a time; allowed: 2026-11-23T10:00:00Z, "
            f"2026-11-23, or a duration {'ahead' if ahead else 'ago'} (2h, 30d)"
        ) from None
    return system_clock() + span if ahead else system_clock() - span


PORT = partial(count, minimum=0, maximum=65535)
WINDOW = partial(count, maximum=65535)
PAUSE = partial(duration, maximum=timedelta(days=27), minimum=timedelta(seconds=1))
"""A pause between attempts. The bounds are those of MAILSLICE_WORKER_BACK_OFF_CAP."""


def option(
    usage: str, help_text: str, parser: Callable[..., Any] | None = None, **more: Any
) -> Any:
    """An option. `usage`: `--name` (a switch) or `--name METAVAR`; `parser` takes text, name."""
    name, _, metavar = usage.partition(" ")
    parser = partial(parser, option=name) if parser else None
    return typer.Option(name, metavar=metavar or None, help=help_text, parser=parser, **more)


def queue_argument(metavar: str, help_text: str) -> Any:
    return typer.Argument(parser=queue_name, metavar=metavar, help=help_text)


def queue_option(help_text: str) -> Any:
    return typer.Option("--queue", metavar="QUEUE", parser=queue_name, help=help_text)


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
