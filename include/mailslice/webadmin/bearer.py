"""The token of `mailslice webadmin`, and the guard that asks for it."""

import secrets
from collections.abc import Callable
from contextlib import suppress

from fastapi import HTTPException, Request

from mailslice.model.errors import BadSetting


def bearer(token: str) -> Callable[[Request], None]:
    """A guard that refuses (401) who does not send `token`, in a time that does not tell how much
    of it is right. Raises BadSetting for a token that no request can carry.
    """
    token = token.strip()
    if not token or not token.isprintable():
        raise BadSetting(
            f"MAILSLICE_WEBADMIN_TOKEN {'has a control character' if token else 'is unset'}: set "
            "it, or MAILSLICE_WEBADMIN_TOKEN_FILE, to what clients send as `Authorization: Bearer "
            "TOKEN`, in one line"
        )
    # HTTP names no charset: curl sends UTF-8, http.client Latin-1, and Starlette reads Latin-1.
    known = [token.encode()]
    with suppress(UnicodeEncodeError):
        known.append(token.encode("latin-1"))

    def authorized(request: Request) -> None:
        scheme, _, sent = request.headers.get("authorization", "").partition(" ")
        given = sent.strip(" \t").encode("latin-1")
        right = [secrets.compare_digest(given, one) for one in known]
        if scheme.lower() != "bearer" or not any(right):
            raise HTTPException(
                401, "a bearer token is missing, or wrong", {"WWW-Authenticate": "Bearer"}
            )

    return authorized
