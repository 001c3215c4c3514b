"""The address in MAIL FROM and RCPT TO, character for character (RFC 5321 4.1.2).

aiosmtpd reads it as a message header, which decodes encoded words and drops comments.
"""

from __future__ import annotations

import re

_ATOM = r"[^\s\x00-\x20\x7f()<>\[\]:;@\\,\"]+"
_QUOTED = r'"(?:[^\x00-\x1f\x7f"\\]|\\[^\x00-\x1f\x7f])*"'
_DOMAIN = rf"(?:{_ATOM}|\[[^\s\x00-\x20\x7f\[\]<>\\]+\])"
_MAILBOX = rf"(?:{_QUOTED}|{_ATOM})@{_DOMAIN}"
_ROUTE = rf"(?:@{_DOMAIN}(?:,@{_DOMAIN})*:)?"
_PATH = re.compile(
    rf" *(?:<{_ROUTE}(?P<angled>{_MAILBOX}|{_ATOM})?>|(?P<bare>{_MAILBOX}|{_ATOM}))(?P<rest>| .*)",
    re.DOTALL,
)
NULL_PATH = "<>"


def read_path(argument: str) -> tuple[str | None, str]:
    """The address at the beginning of `argument` (`<>`: the null path; None: none), and the
    parameters.

    A source route is left out (RFC 5321 C). A name without a domain is an address here.
    """
    match = _PATH.fullmatch(argument)
    if match is None:
        return None, ""
    return match["angled"] or match["bare"] or NULL_PATH, match["rest"].strip()
