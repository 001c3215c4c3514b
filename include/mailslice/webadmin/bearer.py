"""The token of `mailslice webadmin`, and the guard that asks for it."""

import secrets
from collections.abc import Callable
from contextlib import suppress

from fastapi import HTTPException, Request

from mailslice.model.errors import BadSetting


def bearer(token: str) -> Callable[[Request], None]:
    """A guard that answers 401 to a request without `token`, which it compares in constant time.
    Raises BadSetting for a token that no request can carry.
    """
    token = token.strip()
    if not token or not token.isprintable():
        raise BadSetting(
            f"MAILSLICE_WEBADMIN_TOKEN {'has a control character' if token else 'is unset'}: set "
            "it, or MAILSLICE_WEBADMIN_TOKEN_FILE, to what clients send as `Authorization: Bearer "
            "TOKEN`, in one line"
        )
    # HTTP names no charset: curl sends UTF-8, http.client Latin-1, and Starlette reads Latin-1.
    accepted = [token.encode()]
    with suppress(UnicodeEncodeError):
        accepted.append(token.encode("latin-1"))

    def authorized(request: Request) -> None:
        scheme, _, sent = request.headers.get("authorization", "").partition(" ")
        sent_token = sent.strip(" \t").encode("latin-1")
        matches = [secrets.compare_digest(sent_token, expected) for expected in accepted]
        if scheme.lower() != "bearer" or not any(matches):
            raise HTTPException(
                401, "a bearer token is missing, or wrong", {"WWW-Authenticate": "Bearer"}
            )

    return authorized
