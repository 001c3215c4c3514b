"""The options that say which mails a command is about, the same for all of them."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from functools import partial
from typing import Annotated, Any

from mailslice.admin.filters import MOST_IDS, MailFilter
from mailslice.cli.arguments import duration, option
from mailslice.model.errors import BadInput
from mailslice.model.mail import EnqueueId, parse_enqueue_id

STDIN = "-"
_LONGEST_LINE = 200
_Texts = list[str] | None
_age = partial(duration, most=None)
_WILDCARDS = "* is any text, ? one character"


@dataclass(frozen=True, slots=True, kw_only=True)
class MailOptions:
    """The options of a filter, for a command with a parameter of this type."""

    sender: Annotated[
        _Texts, option("--sender ADDRESS", f"Envelope sender; <> is the null sender. {_WILDCARDS}.")
    ] = None
    recipient: Annotated[
        _Texts, option("--recipient ADDRESS", f"One of the envelope recipients. {_WILDCARDS}.")
    ] = None
    domain: Annotated[
        _Texts, option("--domain DOMAIN", f"Domain of one of the recipients. {_WILDCARDS}.")
    ] = None
    name: Annotated[_Texts, option("--name NAME", f"Name of the mail. {_WILDCARDS}.")] = None
    ids: Annotated[
        _Texts,
        option(
            "--id ID",
            "Enqueue id; give it several times for several, or - for ids on stdin, one a line.",
        ),
    ] = None
    older_than: Annotated[
        list[timedelta] | None,
        option("--older-than DURATION", "Enqueued at least so long ago: 90s, 15m, 1h.", _age),
    ] = None

    @property
    def name_mails(self) -> bool:
        """Whether more than an age is given."""
        return any(
            getattr(self, one.name) is not None for one in fields(self) if one.name != "older_than"
        )

    def parsed(self, stdin: Iterable[str] | None = None, *, looks: bool = False) -> MailFilter:
        """The filter; `-` reads ids from stdin. Raises BadInput naming the option.

        For a command that only `looks` an empty sender is the null sender, too.
        """
        texts: dict[str, Any] = asdict(self)
        del texts["ids"]
        for name, values in texts.items():
            if len(values or ()) > 1:  # the last would count alone, and delete what it names
                raise BadInput(f"--{name.replace('_', '-')}: given twice; allowed: once")
            texts[name] = values[0] if values else None
        if looks and texts["sender"] == "":
            texts["sender"] = "<>"
        ids = None if self.ids is None else _all_ids(self.ids, stdin)
        return MailFilter.of_texts(**texts, ids=ids, prefix="--")


def _all_ids(given: list[str], stdin: Iterable[str] | None) -> Iterator[EnqueueId]:
    if given.count(STDIN) > 1:
        raise BadInput("--id -: stdin can be read only once")
    for text in given:
        if text == STDIN:
            yield from _ids_in(sys.stdin if stdin is None else stdin)
        else:
            yield parse_enqueue_id(text, "--id")


def _ids_in(lines: Iterable[str]) -> Iterator[EnqueueId]:
    """Ids one a line; empty lines are left out. Every line is read before anything is done."""
    for number, line in enumerate(lines, 1):
        if number > MOST_IDS:
            raise BadInput(f"--id -: more than {MOST_IDS} lines; at most {MOST_IDS} are allowed")
        if text := line[:_LONGEST_LINE].strip():
            yield parse_enqueue_id(text, f"--id -: line {number}")
