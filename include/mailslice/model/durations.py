"""Durations as people write them: `90s`, `15m`, `1h`, `30d`, `2w`, `0`, or ISO 8601 (`PT1H30M`)."""

import re
from datetime import timedelta

from mailslice.model.errors import BadInput

ALLOWED = "allowed: a number with ms, s, m, h, d or w (90s, 15m, 1h, 30d), ISO 8601 (PT1H), or 0"
LONGEST = timedelta(days=36500)
"""A hundred years: added to the present, it is still a valid datetime."""
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_SHORT = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)", re.ASCII)
_ISO = re.compile(
    r"P(?:(?P<w>\d+)W)?(?:(?P<d>\d+)D)?"
    r"(?:T(?=\d)(?:(?P<h>\d+)H)?(?:(?P<m>\d+)M)?(?:(?P<s>\d+(?:\.\d+)?)S)?)?",
    re.ASCII | re.IGNORECASE,
)


def parse_duration(text: str, option: str = "duration") -> timedelta:
    """The duration in `text`, never negative. Raises BadInput, which names `option`, its source."""
    stripped = text.strip()
    short = _SHORT.fullmatch("0s" if stripped == "0" else stripped)
    try:
        if short:
            return timedelta(seconds=float(short[1]) * _UNITS[short[2]])
        iso = _ISO.fullmatch(stripped)
        if iso and any(iso.groups()):
            parts = ((float(value or 0), unit) for unit, value in iso.groupdict().items())
            return timedelta(seconds=sum(value * _UNITS[unit] for value, unit in parts))
    except OverflowError:
        raise BadInput(f"{option}: {text!r} is longer than any clock; {ALLOWED}") from None
    raise BadInput(f"{option}: {text!r} is not a duration; {ALLOWED}")


def format_duration(value: timedelta) -> str:
    """The shortest single-unit form that `parse_duration` reads: 3600 s is `1h`, 5400 s `90m`."""
    millis = round(value / timedelta(milliseconds=1))
    if millis % 1000:
        return f"{millis}ms"
    seconds = millis // 1000
    for unit in ("d", "h", "m"):
        size = int(_UNITS[unit])
        if seconds and seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
