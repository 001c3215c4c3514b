"""Who may see what: one right a route, checked by what serves the page (Airflow's auth manager).

And which writes are let through: a browser sends its cookie with requests of any site.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from fastapi import Request

MOST_BODY = 1024 * 1024
FOREIGN = "writes need application/json and an Origin of this site, whose Host proxies must pass on"
TOO_LARGE = f"a request has at most {MOST_BODY} bytes, and says how many"


class Right(StrEnum):
    """What a person may do, each more than the one before."""

    LOOK = "look"
    """Figures, queues, mails' envelopes, reports. Airflow: viewer."""
    PREVIEW = "preview"
    """What an act would change, dry runs, exports. Airflow: user."""
    ACT = "act"
    """Runs that change something. Airflow: op."""
    CONTENT = "content"
    """What is written in a mail. Airflow: admin."""


Guards = Mapping[Right, Callable[..., Any]]
"""A FastAPI dependency for each right, which raises HTTPException for those who have it not."""
Rights = Callable[..., frozenset[Right]]
"""A FastAPI dependency that gives all rights of who asks: pages show no button beyond them."""


def every_right() -> frozenset[Right]:
    """Of a page whose visitors may do all."""
    return frozenset(Right)


def refusal(request: Request, *, bounded: bool = False) -> tuple[int, str] | None:
    """Status and reason where a write is not this site's own, in JSON; None where it is, where it
    has a bearer token, which no browser sends by itself, or where nothing is written.

    `bounded`: the routes bound the bodies that come with a token themselves.
    """
    if request.method in {"GET", "HEAD"}:
        return None
    token = has_bearer(request)
    if token and bounded:
        return None
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > MOST_BODY or "transfer-encoding" in request.headers:
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
