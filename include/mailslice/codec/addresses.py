"""Mail addresses: which texts are addresses, and which addresses are equal but for case."""

import re

from mailslice.model.errors import BadInput

NULL_SENDER = "<>"
NO_DOMAIN = "(none)"
_LONGEST_DOMAIN = 253
_ATOM = r"[^\s\x00-\x20\x7f()<>\[\]:;@\\,.\"]+"
_QUOTED = r'"(?:[^\x00-\x08\x0a-\x1f\x7f"\\]|\\[^\x00-\x08\x0a-\x1f\x7f])*"'
_LABEL = r"[^\s\x00-\x2c\x2e\x2f\x3a-\x40\x5b-\x5e\x60\x7b-\x7f]+"
_LITERAL = r"\[[0-9A-Za-z:.\-]+\]"
_ADDRESS = re.compile(
    rf"(?:{_ATOM}(?:\.{_ATOM})*|{_QUOTED})@(?:{_LABEL}(?:\.{_LABEL})*|{_LITERAL})"
)
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_NAME = r"(?!-)[0-9A-Za-z-]{1,63}(?<!-)"
_JAMES = re.compile(
    r'(?!""|.*(?:\.\.|\\,))[\x00-\x7f]+@'
    rf"(?:{_IPV4}|\[{_IPV4}\]|(?!.{{254}})(?:{_NAME}\.)*(?![0-9]){_NAME})"
)
_MAX_BYTES = 320
"""64 for the local part, 255 for the domain, one for the @."""


def is_address(text: str) -> bool:
    """Whether `text` is one bare address: no display name, no angle brackets."""
    return (
        text.isprintable()
        and "\ufffd" not in text
        and len(text.encode("utf-8", "replace")) <= _MAX_BYTES
        and _ADDRESS.fullmatch(text) is not None
    )


def james_takes(text: str) -> bool:
    """Whether James can parse it. If not, James requeues the mail for ever, and ends its browse."""
    return is_address(text) and _JAMES.fullmatch(text) is not None


def checked_address(text: str, option: str = "address") -> str:
    """`text` without blanks and angle brackets around it. Raises BadInput for no address."""
    bare = text.strip().removeprefix("<").removesuffix(">")
    if not is_address(bare):
        raise BadInput(f"{option}: {text!r} is not a mail address; allowed: local@domain")
    return bare


def checked_sender(text: str, option: str = "sender") -> str | None:
    """As `checked_address`. `<>` and the empty text are the null sender: None."""
    return None if text.strip() in {"", NULL_SENDER} else checked_address(text, option)


def domain_of(address: str) -> str:
    """The domain in lower case, cut to 253 characters; `(none)` for an address without one."""
    local, at, domain = address.rpartition("@")
    domain = domain.strip().lower()[:_LONGEST_DOMAIN]
    return domain if at and local and domain else NO_DOMAIN


def same_address(first: str | None, second: str | None) -> bool:
    """Whether James takes two addresses as equal (`folded`). The null sender equals only itself."""
    if first is None or second is None:
        return first is second
    return first == second or folded(first) == folded(second)


def folded(address: str) -> str:
    """The address folded letter by letter, as by Java's equalsIgnoreCase: ß is not ss, ς is σ."""
    if address.isascii():
        return address.lower()
    return "".join(
        (upper if len(upper := letter.upper()) == 1 else letter).lower() for letter in address
    )
