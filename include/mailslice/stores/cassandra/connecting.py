"""What the settings say about reaching Cassandra: addresses and credentials."""

from __future__ import annotations

from cassandra.auth import PlainTextAuthProvider

from mailslice.model.errors import BadSetting
from mailslice.model.settings import CassandraSettings


def contact_points(settings: CassandraSettings) -> list[tuple[str, int]]:
    """(host, port) of each contact point; `host:port` and `[v6]:port` override the port setting. Raises BadSetting."""
    if not settings.contact_points:
        raise BadSetting("MAILSLICE_CASSANDRA_CONTACT_POINTS is empty: at least one host")
    return [_point(text, settings.port) for text in settings.contact_points]


def _point(text: str, port: int) -> tuple[str, int]:
    host, separator, given = text.rpartition(":")
    if not separator or (text.count(":") > 1 and not text.startswith("[")):
        return text.strip("[]"), port  # a name, an IPv4 address, or a bare IPv6 address
    if text.endswith("]"):
        return text[1:-1], port
    if not host or not given.isdecimal() or not 1 <= int(given) <= 65535:
        raise BadSetting(f"MAILSLICE_CASSANDRA_CONTACT_POINTS: {text!r} is not host or host:port")
    return host.strip("[]"), int(given)


def address(settings: CassandraSettings) -> str:
    """The contact points as messages show them."""
    return ", ".join(
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        for host, port in contact_points(settings)
    )


def credentials(settings: CassandraSettings) -> PlainTextAuthProvider | None:
    """User and password, when both are set. Raises BadSetting when only one is."""
    if settings.username is None and settings.password is None:
        return None
    if settings.username is None or settings.password is None:
        raise BadSetting(
            "MAILSLICE_CASSANDRA_USERNAME and MAILSLICE_CASSANDRA_PASSWORD go together: one of them is not set"
        )
    return PlainTextAuthProvider(settings.username, settings.password.get_secret_value())
