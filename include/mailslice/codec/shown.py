"""Makes text from mails safe to show: no terminal escapes, no bidirectional overrides."""

import logging
import unicodedata
from typing import Any

_LONGEST_MESSAGE = 10_000
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Categories to escape: control, format (bidi, zero width), surrogate, private, unassigned..."""


def shown(text: str) -> str:
    r"""`text` with control, bidi and invisible characters escaped as `\x1b`, `\u202e`..."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        one.encode("unicode_escape").decode() if unicodedata.category(one) in _HIDDEN else one
        for one in text
    )


def shortened(text: object, limit: int) -> str:
    """The first `limit` characters of `text`, hidden ones escaped, and `…` if there are more."""
    whole = str(text)
    cut = shown(whole[:limit])
    return f"{cut}…" if len(whole) > limit else cut


def several(count: int, noun: str) -> str:
    """`1 mail`, `2,000 mails`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


class ShownFormatter(logging.Formatter):
    """For logs that people read. A message is one line; a traceback keeps its lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return shortened(super().formatMessage(record), _LONGEST_MESSAGE)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return "\n".join(map(shown, super().formatException(ei).split("\n")))
