"""CPU of the stores' processes on this machine. The port that a store listens on finds them."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

from mailslice.model.settings import Settings

STORES = ("cassandra", "rabbitmq", "s3")
_FORWARDERS = ("docker-proxy", "rootlessport", "ssh")
"""Programs that forward a port to a server elsewhere. Their CPU is not the store's."""


class StoreCpu:
    """CPU seconds of each store since its start. None: it runs elsewhere, or as another user."""

    def __init__(self, settings: Settings) -> None:
        listening = _listening()
        self._pids = {
            store: listening.get(port, ()) if _is_local(host) else ()
            for store, (host, port) in _addresses(settings).items()
        }

    def seconds(self) -> dict[str, float | None]:
        """CPU seconds by store, from the start of the store until now."""
        return {store: _seconds(self._pids[store]) for store in STORES}


def cpu_between(
    before: Mapping[str, float | None], after: Mapping[str, float | None]
) -> dict[str, float | None]:
    """CPU seconds between two readings. None: a reading is missing, or the process has changed."""
    result: dict[str, float | None] = {}
    for store in STORES:
        first, last = before[store], after[store]
        result[store] = None if first is None or last is None or last < first else last - first
    return result


def _addresses(settings: Settings) -> dict[str, tuple[str, int]]:
    point = settings.cassandra.contact_points[0] if settings.cassandra.contact_points else ""
    host, colon, port = point.rpartition(":")
    alone = not colon or ":" in host  # a bare IPv6 address has colons and no port
    rabbit, s3 = urlsplit(settings.rabbitmq.url.get_secret_value()), urlsplit(settings.s3.endpoint)
    return {
        "cassandra": (point, settings.cassandra.port) if alone else (host, int(port)),
        "rabbitmq": (
            rabbit.hostname or "",
            rabbit.port or (5671 if rabbit.scheme == "amqps" else 5672),
        ),
        "s3": (s3.hostname or "", s3.port or (443 if s3.scheme == "https" else 80)),
    }


def _is_local(host: str) -> bool:
    """Whether the name is this machine's: a socket can be bound to its address."""
    with suppress(OSError):
        for family, _, _, _, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
            with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind((address[0], 0))
                return True
    return False


def _listening() -> dict[int, tuple[int, ...]]:
    """Port -> ids of the processes that listen on it. Empty without psutil or permission."""
    try:
        import psutil
    except ImportError:  # the worker image has no psutil
        return {}
    listening: dict[int, set[int]] = {}
    with suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            is_listening = connection.status == psutil.CONN_LISTEN and connection.pid
            if is_listening and psutil.Process(connection.pid).name() not in _FORWARDERS:
                listening.setdefault(connection.laddr.port, set()).add(connection.pid)
        return {port: tuple(pids) for port, pids in listening.items()}
    return {}


def _seconds(pids: tuple[int, ...]) -> float | None:
    if not pids:
        return None
    import psutil

    try:
        times = [psutil.Process(pid).cpu_times() for pid in pids]
    except psutil.Error:
        return None
    return float(sum(cpu.user + cpu.system for cpu in times))
