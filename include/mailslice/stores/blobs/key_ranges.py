"""Ranges of keys, [low, high), as S3 can be asked for them: by a prefix wherever all keys of the
range have one.

A server that keeps files walks the whole bucket for each page; with a prefix it looks into those
objects alone that begin with it. Keys are compared by code points, which is S3's order of UTF-8. An
empty bound is no bound.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import TypeAlias

KeyRange: TypeAlias = tuple[str, str]
"""[low, high): low and all keys greater than it that are smaller than high. Empty: no bound."""
HIGHEST = "\U0010ffff"
"""No key of use holds it."""
_BEFORE_SURROGATES, _BEHIND_SURROGATES = "\ud7ff", "\ue000"
"""Half a pair is no character, and cannot be asked for."""


def behind(prefix: str) -> str:
    """The least text greater than every text that begins with `prefix`; empty: none."""
    trimmed = prefix.rstrip(HIGHEST)
    if not trimmed:
        return ""
    last = trimmed[-1]
    return trimmed[:-1] + (_BEHIND_SURROGATES if last == _BEFORE_SURROGATES else chr(ord(last) + 1))


def before(key: str) -> str:
    """What `StartAfter` is for a page that begins with `key` (not empty): the text before it."""
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
    """How many neighbours do not meet, or ends are missing. 0: each key is in exactly one range."""
    ordered = sorted(ranges)
    ends = ["", *(high for _, high in ordered)]
    starts = [*(low for low, _ in ordered), ""]
    return sum(end != start for end, start in zip(ends, starts, strict=True))
