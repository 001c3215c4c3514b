"""Arguments and options that several commands share, with their parsers: a bad value raises BadInput, naming itself, its place and what is allowed."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any

import typer

from mailslice.model.durations import format_duration, parse_duration
from mailslice.model.errors import BadInput
from mailslice.model.mail import QueueName
from mailslice.model.names import is_broken, queue_name

_MOST = 2**31 - 1
_LONGEST = timedelta(days=36500)
_SIZE = re.compile(r"(\d+)\s*([kKmMgG]?)(?:i?[bB])?", re.ASCII)
_SCALE = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}


def count(place: str, least: int = 1, most: int = _MOST) -> Callable[[Any], int]:
    """A parser of whole numbers between `least` and `most`."""

    def parse(text: Any) -> int:
        try:
            value = int(str(text).strip())
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise BadInput(
                f"{place}: {str(text)[:60]!r} is not allowed; a whole number from {least} to {most} is"
            )
        return value

    return parse


def check_text(place: str, value: object) -> None:
    """BadInput for bytes of the command line that are no text, or a list with some: no store keeps them."""
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, str) and is_broken(each):
            raise BadInput(f"{place}: {each[:60]!r} is not allowed; text in UTF-8 is")


class Counts(tuple[int, ...]):
    """Whole numbers, given as `1,2,4`."""

    __slots__ = ()


def counts(place: str, most: int = _MOST) -> Callable[[Any], Counts]:
    """A parser of whole numbers from 1 to `most` with commas between them."""
    one = count(place, most=most)
    return lambda text: Counts(one(word) for word in str(text).split(","))


def share(place: str) -> Callable[[Any], float]:
    """A parser of shares from 0 to 1: 0.8, 80%."""

    def parse(text: Any) -> float:
        word = str(text).strip()
        try:
            value = float(word.removesuffix("%")) / (100 if word.endswith("%") else 1)
        except ValueError:
            value = -1
        if not 0 <= value <= 1:
            raise BadInput(
                f"{place}: {word[:60]!r} is not allowed; a share from 0 to 1 is (0.8, 80%)"
            )
        return value

    return parse


def duration(place: str, most: timedelta | None = _LONGEST) -> Callable[[Any], timedelta]:
    """A parser of durations up to `most`: a hundred years added to now is still a date."""

    def parse(text: Any) -> timedelta:
        value = text if isinstance(text, timedelta) else parse_duration(str(text), place)
        if most is not None and value > most:
            raise BadInput(
                f"{place}: {str(text)[:60]!r} is not allowed; at most {format_duration(most)} is"
            )
        return value

    return parse


def pause(place: str) -> Callable[[Any], timedelta]:
    """A parser of pauses between attempts: from 1 s to 27 days, as MAILSLICE_WORKER_BACK_OFF_CAP."""
    parse_any = duration(place, most=timedelta(days=27))

    def parse(text: Any) -> timedelta:
        value = parse_any(text)
        if value < timedelta(seconds=1):
            raise BadInput(f"{place}: {str(text)[:60]!r} is not allowed; at least 1s is")
        return value

    return parse


def factor(place: str) -> Callable[[Any], float]:
    """A parser of numbers from 1 to 100."""

    def parse(text: Any) -> float:
        try:
            value = float(str(text))
        except ValueError:
            value = 0.0
        if not 1 <= value <= 100:
            raise BadInput(f"{place}: {str(text)[:60]!r} is not allowed; a number from 1 to 100 is")
        return value

    return parse


def size(place: str, most: int = _MOST) -> Callable[[Any], int]:
    """A parser of sizes in bytes: 4096, 4k, 25M."""

    def parse(text: Any) -> int:
        match = _SIZE.fullmatch(str(text).strip())
        value = int(match[1]) * _SCALE[match[2].lower()] if match else 0
        if not 1 <= value <= most:
            raise BadInput(
                f"{place}: {str(text)[:60]!r} is not allowed; a size from 1 to {most} bytes is (4096, 4k, 25M)"
            )
        return value

    return parse


def address(place: str) -> Callable[[Any], str]:
    """A parser of mail addresses."""

    def parse(text: Any) -> str:
        from mailslice.codec.addresses import checked_address

        return checked_address(str(text), place)

    return parse


def sender(place: str) -> Callable[[Any], str]:
    """A parser of senders: an address, or `<>` and the empty text for the null sender, which comes back as `<>`."""

    def parse(text: Any) -> str:
        from mailslice.codec.addresses import NULL_SENDER, checked_sender

        return checked_sender(str(text), place) or NULL_SENDER

    return parse


Queue = Annotated[
    QueueName, typer.Argument(parser=queue_name, metavar="QUEUE", help="Name of a mail queue.")
]
Reason = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="Why; kept with who did it.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing, only say what would be.")]
Sender = Annotated[
    str | None,
    typer.Option(
        "--sender",
        parser=sender("--sender"),
        metavar="ADDRESS",
        help="Envelope sender; <> is the null sender.",
    ),
]
Recipient = Annotated[
    str | None,
    typer.Option(
        "--recipient",
        parser=address("--recipient"),
        metavar="ADDRESS",
        help="One of the envelope recipients.",
    ),
]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Name of the mail.")]
OlderThan = Annotated[
    timedelta | None,
    typer.Option(
        "--older-than",
        parser=duration("--older-than", most=None),
        metavar="DURATION",
        help="Enqueued at least so long ago: 90s, 15m, 1h.",
    ),
]
Limit = Annotated[
    int | None,
    typer.Option("--limit", parser=count("--limit"), metavar="N", help="Stop after this many."),
]
