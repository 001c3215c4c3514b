"""Types of settings: each checks a text of the environment and converts it."""

import re
from datetime import timedelta
from typing import Annotated, ClassVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from mailslice.model.durations import LONGEST, format_duration, parse_duration
from mailslice.model.errors import BadInput
from mailslice.model.throttling import Rules, destination


def _duration(value: object) -> object:
    if isinstance(value, str):
        try:
            return parse_duration(value)
        except BadInput as error:
            raise ValueError(str(error).removeprefix("duration: ")) from None
    return value


def _words(value: object) -> object:
    if not isinstance(value, str):
        return value
    return tuple(word.strip() for word in value.split(",") if word.strip())


def at_least(least: timedelta) -> AfterValidator:
    """Validator: the least duration. Also useful for 0s: a number of seconds may have a sign."""

    def checked(value: timedelta) -> timedelta:
        if not least <= value <= LONGEST:
            bounds = f"{format_duration(least)} or more, at most {format_duration(LONGEST)}"
            raise ValueError(f"allowed: {bounds}")
        return value

    return AfterValidator(checked)


def _positive(value: timedelta) -> timedelta:
    if not value:
        raise ValueError("allowed: more than 0s")
    return value


def at_most(longest: timedelta) -> AfterValidator:
    """Validator: the longest duration."""

    def checked(value: timedelta) -> timedelta:
        if value > longest:
            raise ValueError(f"allowed: at most {format_duration(longest)}")
        return value

    return AfterValidator(checked)


def _only_hosts(value: str | tuple[str, ...]) -> str | tuple[str, ...]:
    """Refuses `user:password@host`: it would be shown wherever the host is named."""
    for word in (value,) if isinstance(value, str) else value:
        if "@" in word:
            raise ValueError("allowed: host names and addresses, without a user")
        try:
            word.partition(":")[0].encode("idna")  # a DNS look-up would raise this, and no OSError
        except UnicodeError:
            raise ValueError("allowed: 1 to 63 characters between the dots of a name") from None
    return value


def _rules(value: object) -> object:
    """Pairs from `example.com=60,*.example.org=600,*=1200`. Pydantic checks other types."""
    if not isinstance(value, str):
        return value
    rules: dict[str, int] = {}
    for word in value.split(","):
        pattern, equals, number = (part.strip() for part in word.strip().partition("="))
        if not word.strip():
            continue
        prefix = pattern[: 2 * pattern.startswith("*.")]
        name = prefix + destination(pattern.removeprefix("*."))
        valid = equals and _PATTERN.fullmatch(pattern) and _NUMBER.fullmatch(number)
        if not valid or name in rules:
            raise ValueError(
                f"{word.strip()!r}; allowed: DOMAIN=NUMBER with commas between, each DOMAIN once: "
                "example.com, *.example.com, or * for all others"
            )
        rules[name] = int(number)
    return tuple(rules.items())


_PATTERN = re.compile(r"\*|(?:\*\.)?[^\s*=,@.]+(?:\.[^\s*=,@.]+)*\.?")
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
LimitRules = Annotated[Rules, BeforeValidator(_rules)]
LOWER_CASE = BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)
UPPER_CASE = BeforeValidator(lambda value: value.upper() if isinstance(value, str) else value)
Duration = Annotated[timedelta, BeforeValidator(_duration), at_least(timedelta(0))]
Time = Annotated[Duration, AfterValidator(_positive)]
"""A duration other than 0s."""
Share = Annotated[float, Field(ge=0, le=1)]
Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
Host = Annotated[str, AfterValidator(_only_hosts)]
Hosts = Annotated[Words, AfterValidator(_only_hosts)]


class Group(BaseModel):
    """Settings of one component. What a setting means is in the docstring below it."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    SAME_AS_JAMES: ClassVar[frozenset[str]] = frozenset()
    """Fields whose value must be that of James' property, in every process."""
    SAME_EVERYWHERE: ClassVar[frozenset[str]] = frozenset()
    """More fields that must have one value in every process of a deployment."""
