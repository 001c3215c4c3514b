"""Ranges of keys, [low, high), as S3 lists them: by the prefix of all keys of a range, if any.

A file-based server walks the whole bucket for each page. With a prefix it reads only the objects
that begin with it. Keys are compared by code points, which is S3's order of UTF-8. An empty bound
is no bound.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import TypeAlias

KeyRange: TypeAlias = tuple[str, str]
"""[low, high): low and all keys greater than it that are smaller than high. Empty: no bound."""
HIGHEST = "\U0010ffff"
"""The greatest code point. No real key has it."""
_BEFORE_SURROGATES, _BEHIND_SURROGATES = "\ud7ff", "\ue000"
"""The neighbours of the surrogates: a lone surrogate is no character, so no request can have it."""


def behind(prefix: str) -> str:
    """The least text greater than every text that begins with `prefix`; empty: none."""
    trimmed = prefix.rstrip(HIGHEST)
    if not trimmed:
        return ""
    last = trimmed[-1]
    return trimmed[:-1] + (_BEHIND_SURROGATES if last == _BEFORE_SURROGATES else chr(ord(last) + 1))


def before(key: str) -> str:
    """The `StartAfter` of a page that begins with `key` (not empty): the text right before it."""
    head, last = key[:-1], key[-1]
    if last == "\0":
        return head
    one_less = _BEFORE_SURROGATES if last == _BEHIND_SURROGATES else chr(ord(last) - 1)
    return head + one_less + HIGHEST


def prefix_of(low: str, high: str) -> str:
    """The longest text that every key in [low, high) begins with."""
    if not low or not high:
        return ""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(low, high, strict=False))
    common = sum(1 for _ in same)
    longer = low[: common + 1]
    return longer if high == behind(longer) else low[:common]


def inside(key: str, low: str, high: str) -> bool:
    return key >= low and (not high or key < high)


def uncovered(ranges: Sequence[KeyRange]) -> int:
    """Counts gaps, overlaps and missing ends. 0: each key is in exactly one range."""
    ordered = sorted(ranges)
    ends = ["", *(high for _, high in ordered)]
    starts = [*(low for low, _ in ordered), ""]
    return sum(end != start for end, start in zip(ends, starts, strict=True))
