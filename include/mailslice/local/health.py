"""Whether a service answers: each function gives None, or why not, and never raises."""

from __future__ import annotations

import base64
import socket
import urllib.error
import urllib.request

_SECONDS = 3.0
_OPTIONS_REQUEST = bytes([0x05, 0, 0, 0, 0x05, 0, 0, 0, 0])
"""A CQL OPTIONS frame of protocol 5: the cheapest question that only a Cassandra which serves clients answers."""
_SUPPORTED = 0x06


def answers_cql(host: str, port: int) -> str | None:
    """A Cassandra answers OPTIONS; no driver is imported for it."""
    try:
        with socket.create_connection((host, port), timeout=_SECONDS) as connection:
            connection.settimeout(_SECONDS)
            connection.sendall(_OPTIONS_REQUEST)
            header = connection.recv(9)
    except OSError as error:
        return f"{host}:{port}: {error}"
    return None if len(header) == 9 and header[4] == _SUPPORTED else f"{host}:{port}: no CQL answer"


def answers_http(
    url: str, auth: tuple[str, str] | None = None, allowed: tuple[int, ...] = (200,)
) -> str | None:
    """An HTTP server answers this URL with one of the allowed codes. No proxy of the environment is asked."""
    request = urllib.request.Request(url)  # noqa: S310 - the callers' own loopback URLs
    if auth:
        request.add_header(
            "Authorization", "Basic " + base64.b64encode(":".join(auth).encode()).decode()
        )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_SECONDS) as answer:
            code = answer.status
    except urllib.error.HTTPError as error:
        code = error.code
    except (OSError, ValueError) as error:
        return f"{url}: {error}"
    return None if code in allowed else f"{url}: HTTP {code}"
