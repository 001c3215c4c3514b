"""Translates the driver's errors: try again, fix the settings, or a row that is too large."""

import re
import ssl
from collections.abc import Iterator

import cassandra
from cassandra import DriverException, Unauthorized
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionException
from cassandra.protocol import ErrorMessage, RequestValidationException

from mailslice.model.errors import BadInput, BadSetting, StoreUnavailable

_CREDENTIALS = "MAILSLICE_CASSANDRA_USERNAME, MAILSLICE_CASSANDRA_PASSWORD"
_KEYSPACES = "MAILSLICE_CASSANDRA_KEYSPACE and MAILSLICE_OWN_KEYSPACE"
_UNAVAILABLE = (DriverException, ConnectionException, ErrorMessage, NoHostAvailable, OSError)
"""Errors of the driver, and of sockets (TimeoutError is an OSError)."""
_USERS_AWAY = re.compile("Unable to perform auth")
"""Cassandra cannot read its tables of users and rights, because their replicas are away."""
_TOO_LARGE = re.compile(r"Request is too big|is too large for the maximum size")


def translated(error: BaseException, address: str) -> BaseException:
    """The error for the driver's, with the address: StoreUnavailable, BadSetting, or BadInput (a
    row that is too large). Returns other errors unchanged.
    """
    for cause in causes(error):
        if _USERS_AWAY.search(str(cause)):
            continue
        if "AuthenticationFailed" in type(cause).__name__:
            return BadSetting(
                f"Cassandra at {address} refuses the credentials of {_CREDENTIALS}: {_short(cause)}"
            )
        if isinstance(cause, Unauthorized):
            return BadSetting(
                f"Cassandra at {address}: the user of {_CREDENTIALS} lacks a right: {_short(cause)}"
            )
        # The driver wraps a refused certificate in an OSError of the same text.
        if isinstance(cause, ssl.SSLError) or "[SSL" in str(cause):
            return BadSetting(
                f"Cassandra at {address}: TLS failed, see MAILSLICE_CASSANDRA_TLS_*: "
                f"{_short(cause)}"
            )
    if isinstance(error, cassandra.InvalidRequest):
        if _TOO_LARGE.search(str(error)):
            kind, words = BadInput, "takes no row so large:"
        else:
            kind, words = BadSetting, f"refuses a statement, are {_KEYSPACES} right?"
        return kind(f"Cassandra at {address} {words} {_short(error)}")
    if isinstance(error, _UNAVAILABLE) and not isinstance(error, RequestValidationException):
        # The last cause says most: it is a node's, or else the error itself.
        return StoreUnavailable(
            f"Cassandra at {address} does not answer: {_short([*causes(error)][-1])}"
        )
    return error


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and each node's error if several were asked."""
    yield error
    if isinstance(error, NoHostAvailable) and isinstance(error.errors, dict):
        yield from (cause for cause in error.errors.values() if isinstance(cause, BaseException))


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:240]}" if text else type(error).__name__
