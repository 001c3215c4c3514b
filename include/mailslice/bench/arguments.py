"""Parsers of benchmarks' options. They raise BadInput, as the parsers of `cli.arguments` do."""

import re
from collections.abc import Callable
from typing import Any

from mailslice.cli.arguments import MAX_INT, bounded, count

_SIZE = re.compile(r"(\d+)\s*([kKmMgG]?)(?:i?[bB])?", re.ASCII)
_SCALE = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}


def share(option: str) -> Callable[[Any], float]:
    """A parser of shares from 0 to 1: 0.8, 80%."""

    def convert(text: str) -> float:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)

    allowed = "a share from 0 to 1 is (0.8, 80%)"
    return lambda text: bounded(text, option, convert, (0.0, 1.0), allowed)


def size(option: str, maximum: int = MAX_INT) -> Callable[[Any], int]:
    """A parser of sizes in bytes: 4096, 4k, 25M."""

    def convert(text: str) -> int:
        match = _SIZE.fullmatch(text)
        return int(match[1]) * _SCALE[match[2].lower()] if match else 0

    allowed = f"a size from 1 to {maximum} bytes is (4096, 4k, 25M)"
    return lambda text: bounded(text, option, convert, (1, maximum), allowed)


class CountList(tuple[int, ...]):
    """Whole numbers, written as `1,2,4`."""

    __slots__ = ()


def counts(option: str, maximum: int = MAX_INT) -> Callable[[Any], CountList]:
    """A parser of whole numbers from 1 to `maximum` with commas between them."""
    return lambda text: CountList(
        count(word, option, maximum=maximum) for word in str(text).split(",")
    )
