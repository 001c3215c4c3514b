"""The rights of the cockpit, one for each route. The server checks them (Airflow's auth manager).

Also decides which writes pass, because a browser sends its cookie with requests of any site (CSRF).
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.middleware.base import RequestResponseEndpoint

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'self'"
)
MAX_BODY = 1024 * 1024
FOREIGN = "a write needs application/json and the Origin of this site; proxies must pass Host on"
TOO_LARGE = f"a request has at most {MAX_BODY} bytes, and says how many"


class Right(StrEnum):
    """The rights of a person. Each right includes those before it."""

    LOOK = "look"
    """Figures, queues, mails' envelopes, reports. Airflow: viewer."""
    PREVIEW = "preview"
    """What an act would change, dry runs, exports. Airflow: user."""
    ACT = "act"
    """Runs that change something. Airflow: op."""
    CONTENT = "content"
    """The content of mails. Airflow: admin."""


Guards = Mapping[Right, Callable[..., Any]]
"""Right -> a FastAPI dependency that raises HTTPException for a user without it."""
Rights = Callable[..., frozenset[Right]]
"""A FastAPI dependency that returns all rights of the user. Pages show only their buttons."""


def every_right() -> frozenset[Right]:
    """All rights, for a page whose users may do everything."""
    return frozenset(Right)


def guard_writes(
    app: FastAPI, explain: Callable[[int, str], Any], *, bounded: bool = False
) -> None:
    """Have the app set the headers of every answer, and refuse a write unless it comes from this
    site, as JSON, or has a bearer token, which no browser sends by itself.

    `explain`: status and reason of a refusal -> its JSON. `bounded`: the routes limit the size of a
    body with a token themselves.
    """

    @app.middleware("http")
    async def careful(request: Request, call_next: RequestResponseEndpoint) -> Response:
        if refused := _refusal(request, bounded):
            return JSONResponse(explain(*refused), refused[0])
        answer = await call_next(request)
        answer.headers.setdefault("Content-Security-Policy", PAGE_POLICY)
        answer.headers["X-Content-Type-Options"] = "nosniff"
        answer.headers["Referrer-Policy"] = "same-origin"
        answer.headers.setdefault("Cache-Control", "no-store")
        return answer


def _refusal(request: Request, bounded: bool) -> tuple[int, str] | None:
    if request.method in {"GET", "HEAD"}:
        return None
    # A bearer token counts before any cookie.
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    token = scheme.lower() == "bearer" and bool(credentials.strip())
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
