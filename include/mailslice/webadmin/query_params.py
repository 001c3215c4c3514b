"""Query parameters as James reads them. Raises Halt with status 400 for what James refuses."""

import json
import re
from datetime import datetime, timedelta
from uuid import UUID

from mailslice.codec.addresses import NULL_SENDER, checked_address
from mailslice.model.errors import BadInput
from mailslice.webadmin.answers import ARGUMENTS, Halt, invalid

MAX_MAILS = 10_000
"""A listing is cut there, and says so in a header."""
LONGEST_AWAIT = timedelta(days=365)
_MAX_INT = 2**31 - 1
_DURATION = re.compile(r"\s*(-?[0-9]{1,10})\s*([a-zA-Z]{0,10})\s*", re.ASCII)
_DAY = 86400.0
_UNITS = {
    **dict.fromkeys(("ms", "msec", "msecs"), 0.001),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), _DAY),
    **dict.fromkeys(("w", "week", "weeks"), 7 * _DAY),
    # Java's ChronoUnit: a year is 365.2425 days, a month a twelfth of one.
    **dict.fromkeys(("month", "months"), 365.2425 / 12 * _DAY),
    **dict.fromkeys(("y", "year", "years"), 365.2425 * _DAY),
}
_BOOLEANS = {"true": True, "false": False}


def duration(text: str, default_unit: str) -> timedelta:
    """`1d`, `30 s`, `5 minutes`, or a number of the default unit. Raises ValueError saying why."""
    match = _DURATION.fullmatch(text[:60])
    if match is None or abs(int(match[1])) > _MAX_INT:
        raise ValueError(
            "Supplied value do not follow the unit format (number optionally suffixed with a "
            "string representing the unit"
        )
    seconds = _UNITS.get((match[2] or default_unit).lower())
    if seconds is None:
        raise ValueError(f"Unknown unit: {match[2]}")
    if int(match[1]) < 0:
        raise ValueError("Duration amount should be positive")
    try:
        return timedelta(seconds=int(match[1]) * seconds)
    except OverflowError:
        raise ValueError("Duration is too long") from None


def older_than(text: str | None) -> timedelta:
    """`olderThan` of a republish; a number alone counts days."""
    if not text:
        raise invalid("Missing olderThan")
    try:
        value = duration(text, "d")
    except ValueError as error:
        raise invalid("Invalid olderThan", str(error)) from None
    if value > timedelta(days=36500):
        raise invalid("Invalid olderThan", "at most 36500 days are allowed")
    return value


def await_timeout(text: str | None) -> timedelta:
    """`timeout` of an await; a number alone counts seconds."""
    try:
        value = duration(text, "s") if text else LONGEST_AWAIT
    except ValueError as error:
        raise invalid("Invalid timeout", str(error)) from None
    if value > LONGEST_AWAIT:
        raise invalid("Invalid timeout", "Timeout should not exceed 365 days")
    return value


def limit(text: str | None) -> int:
    """`limit` of a listing, at most MAX_MAILS; MAX_MAILS when not given."""
    if not text:
        return MAX_MAILS
    number = _whole(text, invalid("Can not parse limit", _unparsed(text)))
    if number < 0:
        raise invalid("limit can not be negative")
    if number == 0:
        raise invalid("limit can not be equal to zero")
    return min(number, MAX_MAILS)


def _whole(text: str, wrong: Halt) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,10}", text, re.ASCII) or abs(int(text)) > _MAX_INT:
        raise wrong
    return int(text)


def _unparsed(text: str) -> str:
    return f'For input string: "{text[:60]}"'


def positive(text: str | None, name: str, default: int) -> int:
    """A whole number from 1; the default when not given."""
    if text is None:
        return default
    number = _whole(text, invalid(ARGUMENTS, f"'{name}' must be numeric"))
    if number < 1:
        raise invalid(ARGUMENTS, f"'{name}' must be strictly positive")
    return number


def probability(text: str | None, name: str, default: float) -> float:
    """A number between 0 and 1, both excluded; the default when not given."""
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        raise invalid(ARGUMENTS, f"'{name}' must be numeric") from None
    if not 0 < value < 1:
        raise invalid(ARGUMENTS, f"'{name}' must be greater than 0.0 and smaller than 1.0")
    return value


def is_true(text: str | None) -> bool | None:
    """As Java's Boolean.parseBoolean: anything but `true` is false; None when not given."""
    return None if text is None else text.lower() == "true"


def strict_boolean(text: str | None, name: str) -> bool:
    """`true` or `false` in any case; false when not given."""
    if text is None:
        return False
    if text.lower() not in _BOOLEANS:
        raise invalid(ARGUMENTS, f"'{name}' needs to be a valid boolean")
    return _BOOLEANS[text.lower()]


def address(text: str | None, name: str) -> str | None:
    """An address, by itself: never a pattern. `<>` is the null sender."""
    if text is None:
        return None
    if name == "sender" and text == NULL_SENDER:
        return text
    message = f"'{name}' should be a mail address (i.e. {name}@james.org)"
    try:
        checked = checked_address(text, name)
    except BadInput as error:
        raise invalid(message, str(error)) from None
    if "@" not in checked:
        raise invalid(message, "an address has a local part, @ and a domain")
    return checked


def require_flush(delayed: str | None, body: bytes) -> None:
    """Accepts the only PATCH: `?delayed=true` with {"delayed": false}, or "false" as text."""
    if not is_true(delayed):
        raise invalid("This request requires delayed param to be set to true")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise invalid("Invalid JSON document: a JSON object is expected") from None
    if not isinstance(value, dict) or set(value) - {"delayed"}:
        raise invalid('Invalid JSON document: allowed is {"delayed": false}')
    given = value.get("delayed", True)
    if isinstance(given, str) and given.strip().lower() in _BOOLEANS:
        given = _BOOLEANS[given.strip().lower()]
    if given is None or given is True:
        raise invalid("This request requires payload to contain delayed attribute set to false")
    if given is not False:
        raise invalid("Invalid JSON document: delayed is neither true nor false")


def task_id(text: str) -> UUID:
    if not re.fullmatch(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", text, re.ASCII):
        raise invalid("Invalid task id", "a UUID is expected")
    return UUID(text)


def moment(text: str) -> datetime:
    """A date with a zone: 2023-04-15T07:23:27.541254+07:00[Asia/Ho_Chi_Minh], 2023-04-15T00:00Z."""
    try:
        with_nanos = text[:80].partition("[")[0]
        in_micros = re.sub(r"(\.\d{6})\d+", r"\1", with_nanos, flags=re.ASCII)
        value = datetime.fromisoformat(in_micros)
        value.timestamp()  # raises for a year out of range
    except (ValueError, OverflowError) as error:
        raise no_filter(str(error)) from None
    if value.tzinfo is None:
        raise no_filter("a date without a zone")
    return value


def whole_filter(text: str, name: str) -> int:
    """`offset` or `limit` of the list of tasks."""
    value = _whole(text, no_filter(_unparsed(text)))
    if value < 0:
        raise no_filter(f"'{name}' should be positive")
    return value


def no_filter(details: str) -> Halt:
    """James has one message for every error in the filters of the list of tasks."""
    return invalid("Invalid status query parameter", details)
