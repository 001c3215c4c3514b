"""Text from mails made safe to show: no terminal escapes, no turned reading direction."""

import logging
import unicodedata
from typing import Any

_LONGEST_MESSAGE = 10_000
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Escaped: controls, format characters (bidi, zero width), surrogates, private, unassigned."""


def shown(text: str) -> str:
    r"""`text` with controls, escapes, bidi and invisible characters as `\x1b`, `\u202e`..."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(one) if unicodedata.category(one) in _HIDDEN else one for one in text)


def tame(text: object, most: int) -> str:
    """At most so many characters, hidden ones made visible: control, bidi, zero width."""
    whole = str(text)
    cut = shown(whole[:most])
    return f"{cut}…" if len(whole) > most else cut


def several(count: int, noun: str) -> str:
    """`1 mail`, `2,000 mails`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


class ShownFormatter(logging.Formatter):
    """Of logs that people read: a message is one line; a traceback keeps its lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return tame(super().formatMessage(record), _LONGEST_MESSAGE)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return "\n".join(map(shown, super().formatException(ei).split("\n")))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
