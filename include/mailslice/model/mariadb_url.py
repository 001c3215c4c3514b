"""The URL of a MariaDB database: mysql://user:password@host:port/database."""

from dataclasses import dataclass, field, replace
from typing import Self
from urllib.parse import unquote, urlsplit

from mailslice.model.host_port import host_port

_PORT = 3306
_SCHEMES = ("mysql", "mariadb")
ALLOWED = "allowed: mysql:// or mariadb://user:password@host:port/database, percent-encoded"


@dataclass(frozen=True, slots=True)
class MariaDbUrl:
    """The parts of the URL."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses the URL. Raises ValueError, whose text quotes no part of it: it has a password."""
        try:
            parts = urlsplit(text)
            port = parts.port or _PORT
        except ValueError:
            raise ValueError(f"this is no URL; {ALLOWED}") from None
        database = unquote(parts.path.removeprefix("/"))
        if parts.scheme not in _SCHEMES or not parts.hostname or not parts.username:
            raise ValueError(f"the scheme, the host or the user is missing or wrong; {ALLOWED}")
        if parts.query or parts.fragment or "/" in database:
            raise ValueError(f"something follows the database; {ALLOWED}")
        return cls(
            parts.hostname, port, unquote(parts.username), unquote(parts.password or ""), database
        )

    @property
    def address(self) -> str:
        """`host:port`, for messages."""
        return host_port(self.host, self.port)

    def with_database(self, database: str) -> Self:
        return replace(self, database=database)
