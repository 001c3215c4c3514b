"""Patterns that people give for names and addresses: `*` is any text, `?` is one character.

A backslash takes the next character as it is. There are no sets, ranges or regular expressions.
A comparison walks the text once, whatever the pattern: a stranger's text cannot make it slow.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from mailslice.codec.addresses import folded
from mailslice.model.errors import BadInput

LONGEST = 1000
"""Characters of a pattern."""
_ESCAPE = "\\"
_ANY = None


def is_pattern(text: str) -> bool:
    """Whether the text has a wildcard. Without one a backslash is a backslash."""
    return "*" in text or "?" in text


@dataclass(frozen=True, slots=True)
class Wildcard:
    """A pattern for whole texts; `ignore_case` as of addresses. BadInput: it is too long."""

    text: str
    ignore_case: bool = False
    _masks: dict[str, int] = field(init=False, repr=False, compare=False)
    """Character -> the tokens that it matches, a bit each."""
    _others: int = field(init=False, repr=False, compare=False)
    """The tokens that match a character which the pattern does not have."""
    _loops: int = field(init=False, repr=False, compare=False)
    """Bit n: a star stands before token n."""
    _end: int = field(init=False, repr=False, compare=False)
    """The bit of "all tokens matched"."""

    def __post_init__(self) -> None:
        if len(self.text) > LONGEST:
            raise BadInput(
                f"a pattern of {len(self.text)} characters is not allowed; at most {LONGEST} are"
            )
        tokens, loops = _parsed(self.text, folded if self.ignore_case else str)
        others = sum(1 << at for at, token in enumerate(tokens) if token is _ANY)
        masks: dict[str, int] = {}
        for at, token in enumerate(tokens):
            if token is not _ANY:
                masks[token] = masks.get(token, others) | 1 << at
        found = {"_masks": masks, "_others": others, "_loops": loops, "_end": 1 << len(tokens)}
        for name, value in found.items():
            object.__setattr__(self, name, value)

    def __str__(self) -> str:
        return self.text

    @property
    def matches_all(self) -> bool:
        """Whether it narrows nothing that is a name or an address: `*`, `?*`, `*@*`."""
        return "*" in self.text and self.text.strip("*?") in {"", "@"}

    def matches(self, text: str) -> bool:
        """Whether the whole text matches. Bit n of `states`: the first n tokens match so far."""
        states, masks, others, loops = 1, self._masks, self._others, self._loops
        for character in folded(text) if self.ignore_case else text:
            states = ((states & masks.get(character, others)) << 1) | (states & loops)
            if not states:
                return False
        return bool(states & self._end)


def _parsed(text: str, form: Callable[[str], str]) -> tuple[list[str | None], int]:
    """Characters in order, None for any one; and the bits before which any text may stand."""
    tokens: list[str | None] = []
    loops, escaped = 0, False
    for character in form(text):
        if escaped or character not in {"*", "?", _ESCAPE}:
            tokens.append(character)
            escaped = False
        elif character == _ESCAPE:
            escaped = True
        elif character == "?":
            tokens.append(_ANY)
        else:
            loops |= 1 << len(tokens)
    if escaped:
        raise BadInput(f"the pattern {text[:60]!r} ends in a backslash; one more is a backslash")
    return tokens, loops
