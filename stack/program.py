"""Common parts of the services: a record for supervisor, files, a check that one answers."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import urllib3

from mailslice.model.errors import MailsliceError

FILES = resources.files("stack") / "files"
"""Templates of the services' files, and the lists of Java parts."""
_SECONDS = 3.0
_OPTIONS_REQUEST = bytes([0x05, 0, 0, 0, 0x05, 0, 0, 0, 0])
"""A CQL OPTIONS frame of protocol 5: the cheapest question that only a Cassandra which serves
clients answers.
"""
_SUPPORTED = 0x06
_LOOPBACK = ("127.0.0.1", "localhost")


class CannotStart(MailsliceError):
    """The local stack cannot be installed or started; the message ends with the remedy."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Program:
    """One service.

    `ports` names the settings of the ports it listens on; `healthy` answers None or why it is not
    yet up.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    healthy: Callable[[], str | None]
    ports: tuple[str, ...] = ()
    stop_seconds: int = 30
    priority: int = 999


def filled(template: str, /, **values: object) -> str:
    """The text of the template with the values in it."""
    return (FILES / template).read_text(encoding="utf-8").format(**values)


def write_file(name: str, path: Path, **values: object) -> Path:
    """Writes the template `name` to `path`, with the values in it; gives the path."""
    path.write_text(filled(name, **values), encoding="utf-8")
    return path


def write_once(path: Path, text: str) -> str:
    """The content of the file, which never changes: `text`, unless it has content already.

    Only its owner can read it. It is complete or absent, even on a full disk.
    """
    if path.is_file() and (existing := path.read_text(encoding="utf-8")):
        return existing
    scratch = path.with_name(f"{path.name}.partial")
    scratch.unlink(missing_ok=True)
    scratch.touch(mode=0o600)
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)
    return text


def past_proxies(environ: Mapping[str, str]) -> dict[str, str]:
    """NO_PROXY and no_proxy with the hosts of `environ` and loopback, which needs no proxy.

    Some clients read the one, some the other.
    """
    words = ",".join(environ.get(name, "") for name in ("no_proxy", "NO_PROXY")).split(",")
    excluded = [host.strip() for host in words if host.strip()]
    # `*` means all hosts only when it stands alone.
    hosts = "*" if "*" in excluded else ",".join(dict.fromkeys((*excluded, *_LOOPBACK)))
    return {"NO_PROXY": hosts, "no_proxy": hosts}


def answers_cql(host: str, port: int) -> str | None:
    """None when a Cassandra answers OPTIONS, else why not; no driver is imported for it."""
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
    """None when an HTTP server answers this URL with one of the allowed codes, else why not.

    urllib3 asks no proxy of the environment.
    """
    headers = urllib3.make_headers(basic_auth=":".join(auth)) if auth else {}
    try:
        code = urllib3.request("GET", url, headers=headers, timeout=_SECONDS, retries=False).status
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        return f"{url}: {error}"
    return None if code in allowed else f"{url}: HTTP {code}"
