"""The options that say which mails a command is about, the same for all of them."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from mailslice.admin.filters import MAX_IDS, MailFilter
from mailslice.cli.arguments import OlderThan, option
from mailslice.cli.examples import ExampleCommand
from mailslice.model.errors import BadInput
from mailslice.model.mail import EnqueueId, parse_enqueue_id

STDIN = "-"
_LONGEST_LINE = 200
_ONCE = {"sender", "recipient", "domain", "name", "older_than", "run", "queue"}
_WILDCARDS = "* is any text, ? one character"


@dataclass(frozen=True, slots=True, kw_only=True)
class MailOptions:
    """The options of a filter, for a command with a parameter of this type."""

    sender: Annotated[
        str | None,
        option("--sender ADDRESS", f"Envelope sender; <> is the null sender. {_WILDCARDS}."),
    ] = None
    recipient: Annotated[
        str | None, option("--recipient ADDRESS", f"One of the envelope recipients. {_WILDCARDS}.")
    ] = None
    domain: Annotated[
        str | None, option("--domain DOMAIN", f"Domain of one of the recipients. {_WILDCARDS}.")
    ] = None
    name: Annotated[str | None, option("--name NAME", f"Name of the mail. {_WILDCARDS}.")] = None
    ids: Annotated[
        list[str] | None,
        option(
            "--id ID",
            "Enqueue id; give it several times for several, or - for ids on stdin, one a line.",
        ),
    ] = None
    older_than: OlderThan = None

    @property
    def name_mails(self) -> bool:
        """Whether an option besides --older-than is given."""
        return any(value is not None for key, value in asdict(self).items() if key != "older_than")

    def parsed(self, stdin: Iterable[str] | None = None, *, looks: bool = False) -> MailFilter:
        """The filter; `-` reads ids from stdin. Raises BadInput naming the option.

        For a command that only reads (`looks`), an empty sender is the null sender, too.
        """
        texts = asdict(self) | {"ids": None if self.ids is None else _all_ids(self.ids, stdin)}
        if looks and self.sender == "":
            texts["sender"] = "<>"
        return MailFilter.of_texts(**texts, prefix="--")


class FilterCommand(ExampleCommand):
    """Refuses an option that selects, given twice, except --id: the last would win."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        params: list[Any] = self.make_parser(ctx).parse_args(args=[*args])[2]
        for param in params:
            if param.name in _ONCE and not param.multiple and params.count(param) > 1:
                raise BadInput(f"{param.opts[0]}: given twice; allowed: once")
        return super().parse_args(ctx, args)


def _all_ids(texts: list[str], stdin: Iterable[str] | None) -> Iterator[EnqueueId]:
    if texts.count(STDIN) > 1:
        raise BadInput("--id -: stdin can be read only once")
    for text in texts:
        if text == STDIN:
            yield from _ids_in(sys.stdin if stdin is None else stdin)
        else:
            yield parse_enqueue_id(text, "--id")


def _ids_in(lines: Iterable[str]) -> Iterator[EnqueueId]:
    """Ids, one a line; skips empty lines. Every line is read before a command acts."""
    for number, line in enumerate(lines, 1):
        if number > MAX_IDS:
            raise BadInput(f"--id -: more than {MAX_IDS} lines; at most {MAX_IDS} are allowed")
        if text := line[:_LONGEST_LINE].strip():
            yield parse_enqueue_id(text, f"--id -: line {number}")
