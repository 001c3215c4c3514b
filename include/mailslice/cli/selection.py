"""The options that say which mails a command is about, the same for all of them."""

import sys
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import IO, TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from mailslice.cli.arguments import option
from mailslice.codec.addresses import checked_address, checked_sender
from mailslice.codec.wildcards import Wildcard, is_pattern
from mailslice.model.errors import BadInput
from mailslice.model.mail import EnqueueId

if TYPE_CHECKING:
    from mailslice.admin.filters import MailFilter

STDIN = "-"
_LONGEST_LINE = 200
_WILDCARDS = "* is any text, ? one character"

SenderLike = Annotated[
    str | None,
    option("--sender ADDRESS", f"Envelope sender; <> is the null sender. {_WILDCARDS}."),
]
RecipientLike = Annotated[
    str | None, option("--recipient ADDRESS", f"One of the envelope recipients. {_WILDCARDS}.")
]
NameLike = Annotated[str | None, option("--name NAME", f"Name of the mail. {_WILDCARDS}.")]
DomainLike = Annotated[
    str | None, option("--domain DOMAIN", f"Domain of one of the recipients. {_WILDCARDS}.")
]
Ids = Annotated[
    list[str] | None,
    typer.Option(
        "--id",
        metavar="ID",
        help="Enqueue id; give it several times for several, or - for ids on stdin, one a line.",
    ),
]


def enqueue_id(text: str, option_name: str = "--id") -> EnqueueId:
    """The enqueue id. Raises BadInput naming the option, the text and what is allowed."""
    try:
        return EnqueueId(UUID(text))
    except ValueError:
        raise BadInput(
            f"{option_name}: {text[:60]!r} is not an enqueue id; allowed: a UUID, as queue "
            "browse shows it"
        ) from None


def selection(
    *,
    sender: str | None = None,
    recipient: str | None = None,
    name: str | None = None,
    domain: str | None = None,
    ids: list[str] | None = None,
    older_than: timedelta | None = None,
    stdin: Iterable[str] | None = None,
) -> "MailFilter":
    """The filter of these options; ids are read from stdin where one of them is `-`.

    Raises BadInput naming the option.
    """
    from mailslice.admin.filters import MailFilter

    return MailFilter(
        sender=_sender(sender),
        recipient=_address("--recipient", recipient),
        name=_text("--name", name, ignore_case=False),
        older_than=older_than,
        domain=_domain(domain),
        ids=None if ids is None else frozenset(_all_ids(ids, stdin)),
    )


def _sender(text: str | None) -> "str | Wildcard | None":
    if text is None or is_pattern(text):
        return _text("--sender", text)
    return checked_sender(text, "--sender") or ""


def _address(option_name: str, text: str | None) -> "str | Wildcard | None":
    if text is None or is_pattern(text):
        return _text(option_name, text)
    return checked_address(text, option_name)


def _domain(text: str | None) -> "str | Wildcard | None":
    if text is not None and (not text or "@" in text or text != text.strip()):
        raise BadInput(
            f"--domain: {text[:60]!r} is not a domain; allowed: what stands behind the @ of an "
            "address, such as example.net or *.example.net"
        )
    return _text("--domain", text)


def _text(
    option_name: str, text: str | None, *, ignore_case: bool = True
) -> "str | Wildcard | None":
    """A Wildcard where the text has one."""
    if text is None or not is_pattern(text):
        return text
    try:
        return Wildcard(text, ignore_case=ignore_case)
    except BadInput as error:
        raise BadInput(f"{option_name}: {error}") from None


def _all_ids(given: list[str], stdin: Iterable[str] | None) -> Iterator[EnqueueId]:
    if given.count(STDIN) > 1:
        raise BadInput("--id -: stdin can be read only once")
    for text in given:
        if text == STDIN:
            yield from _ids_in(sys.stdin if stdin is None else stdin)
        else:
            yield enqueue_id(text)


def _ids_in(lines: "Iterable[str] | IO[str]") -> Iterator[EnqueueId]:
    """Ids one a line; empty lines are left out. Every line is read before anything is done."""
    from mailslice.admin.filters import MOST_IDS

    for number, line in enumerate(lines, 1):
        if number > MOST_IDS:
            raise BadInput(f"--id -: more than {MOST_IDS} lines; at most {MOST_IDS} are allowed")
        if text := line[:_LONGEST_LINE].strip():
            yield enqueue_id(text, f"--id -: line {number}")
