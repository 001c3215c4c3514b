"""Patterns that people give for names and addresses: `*` is any text, `?` is one character.

A backslash escapes the next character. There are no sets, ranges or regular expressions. A star
takes its first match and never backtracks: no text can make a match slow.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from mailslice.codec.addresses import folded
from mailslice.model.errors import BadInput

LONGEST = 1000
"""Characters of a pattern."""
_TOKEN = re.compile(r"\\(.)|(.)", re.DOTALL)


def is_pattern(text: str) -> bool:
    """Whether the text has a wildcard. Without one a backslash is a backslash."""
    return "*" in text or "?" in text


@dataclass(frozen=True, slots=True)
class Wildcard:
    """A pattern for a whole text. `ignore_case`: as for addresses. Raises BadInput: too long."""

    text: str
    ignore_case: bool = False
    _regex: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.text) > LONGEST:
            raise BadInput(
                f"a pattern of {len(self.text)} characters is not allowed; at most {LONGEST} are"
            )
        expression = _translated(self.text, folded if self.ignore_case else str)
        object.__setattr__(self, "_regex", re.compile(expression, re.DOTALL))

    def __str__(self) -> str:
        return self.text

    @property
    def matches_all(self) -> bool:
        """Whether it matches every name or every address, as `*`, `?*` and `*@*` do."""
        return "*" in self.text and self.text.strip("*?") in {"", "@"}

    def matches(self, text: str) -> bool:
        return self._regex.fullmatch(folded(text) if self.ignore_case else text) is not None


def _translated(text: str, form: Callable[[str], str]) -> str:
    """The regular expression of a pattern."""
    parts = [""]
    for escaped, plain in _TOKEN.findall(form(text)):
        if plain == "\\":
            raise BadInput(
                f"the pattern {text[:60]!r} ends in a backslash; two stand for a backslash"
            )
        if plain == "*":
            parts.append("")
        else:
            parts[-1] += "." if plain == "?" else re.escape(escaped or plain)
    first, *others = parts
    if not others:
        return first
    *between, last = others
    return "".join((first, *(f"(?>.*?{part})" for part in between), ".*", last))
