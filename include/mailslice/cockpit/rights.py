"""The rights of the cockpit, one for each route. The server checks them (Airflow's auth manager).

Also decides which writes pass, because a browser sends its cookie with requests of any site (CSRF).
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from fastapi import Request

MAX_BODY = 1024 * 1024
FOREIGN = "a write needs application/json and the Origin of this site; proxies must pass Host on"
TOO_LARGE = f"a request has at most {MAX_BODY} bytes, and says how many"


class Right(StrEnum):
    """What a person may do. Each right includes those before it."""

    LOOK = "look"
    """Figures, queues, mails' envelopes, reports. Airflow: viewer."""
    PREVIEW = "preview"
    """What an act would change, dry runs, exports. Airflow: user."""
    ACT = "act"
    """Runs that change something. Airflow: op."""
    CONTENT = "content"
    """What is written in a mail. Airflow: admin."""


Guards = Mapping[Right, Callable[..., Any]]
"""Right -> a FastAPI dependency that raises HTTPException for a user without it."""
Rights = Callable[..., frozenset[Right]]
"""A FastAPI dependency that returns all rights of the user. Pages show only their buttons."""


def every_right() -> frozenset[Right]:
    """All rights, for a page whose users may do everything."""
    return frozenset(Right)


def refusal(request: Request, *, bounded: bool = False) -> tuple[int, str] | None:
    """Status and reason of a write that is refused; None for a request that passes: a read, JSON
    from this site, or a bearer token, which no browser sends by itself.

    `bounded`: the routes limit the size of a body with a token themselves.
    """
    if request.method in {"GET", "HEAD"}:
        return None
    token = has_bearer(request)
    if token and bounded:
        return None
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > MAX_BODY or "transfer-encoding" in request.headers:
        return 413, TOO_LARGE
    if token:
        return None
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    origin = request.headers.get("origin", "").partition("://")[2]
    same_site = origin == request.headers.get("host", "")
    return None if same_site and kind == "application/json" else (403, FOREIGN)


def has_bearer(request: Request) -> bool:
    """Whether the request has a bearer token, which counts before any cookie."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and bool(token.strip())
