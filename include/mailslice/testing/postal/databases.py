"""The databases of one Postal on a MariaDB: creates, queries and drops them, each by an own
connection and without the code under test.

The caller chooses every name, so that one server can have many Postals.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pymysql
from pymysql.connections import Connection

from mailslice.testing.postal import grants
from mailslice.testing.postal.schema import Version, main_statements, message_statements

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MariaDbLogin:
    """The address of a MariaDB, and a user with its password."""

    port: int
    host: str = "127.0.0.1"
    user: str = "root"
    password: str = field(default="", repr=False)

    def connect(self, database: str | None = None, **options: Any) -> Connection[Any]:
        """Opens a connection in UTC with autocommit, as Postal does."""
        return pymysql.connect(
            **{
                "host": self.host,
                "port": self.port,
                "user": self.user,
                "password": self.password,
                "database": database,
                "charset": "utf8mb4",
                "autocommit": True,
                "init_command": "SET time_zone = '+00:00'",
                **options,
            }
        )

    def url(self, database: str = "") -> str:
        """The URL in the form of MAILSLICE_POSTAL_URL."""
        user = f"{quote(self.user, safe='')}:{quote(self.password, safe='')}"
        return f"mysql://{user}@{self.host}:{self.port}/{quote(database, safe='')}"


class SqlSession:
    """One connection with the few calls that tests need. Not thread-safe."""

    def __init__(self, connection: Connection[Any]) -> None:
        self.connection = connection

    def rows(self, sql: str, *values: object) -> list[Row]:
        """The rows of a SELECT as dictionaries."""
        with self.connection.cursor(pymysql.cursors.DictCursor) as cursor:
            cursor.execute(sql, values or None)
            return list(cursor.fetchall())

    def one(self, sql: str, *values: object) -> Any:
        """The first column of the first row; None without a row."""
        rows = self.rows(sql, *values)
        return next(iter(rows[0].values())) if rows else None

    def run(self, sql: str, *values: object) -> int:
        """Runs a statement; returns how many rows it changed."""
        with self.connection.cursor() as cursor:
            return int(cursor.execute(sql, values or None))

    def insert(self, table: str, **values: object) -> int:
        """Inserts a row; returns its id. The caller quotes `table` if that is needed."""
        columns = ", ".join(f"`{name}`" for name in values)
        marks = ", ".join(["%s"] * len(values))
        with self.connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", [*values.values()])
            return int(cursor.lastrowid or 0)

    def insert_all(self, table: str, columns: Iterable[str], rows: list[tuple[Any, ...]]) -> None:
        """Inserts many rows at once. Their ids come from the caller or from the server."""
        names = list(columns)
        sql = (
            f"INSERT INTO {table} ({', '.join(f'`{name}`' for name in names)}) "
            f"VALUES ({', '.join(['%s'] * len(names))})"
        )
        with self.connection.cursor() as cursor:
            cursor.executemany(sql, rows)

    def close(self) -> None:
        """Ends the connection."""
        self.connection.close()


@dataclass(frozen=True, slots=True)
class ServerDatabase:
    """A mail server of Postal: its id, its message database, and a session of that database."""

    id: int
    database: str
    session: SqlSession


class FreshPostal:
    """A main database and the message databases of its servers, on one MariaDB or on two."""

    def __init__(
        self,
        login: MariaDbLogin,
        name: str,
        version: Version = Version.V3_3,
        *,
        message_login: MariaDbLogin | None = None,
    ) -> None:
        self.login = login
        self.message_login = message_login or login
        self.name = name
        """Name of the main database."""
        self.prefix = name
        """Prefix of the names of message databases."""
        self.own = f"{name}_own"
        """Name reserved for mailslice's own database."""
        self.version = version
        self.main = SqlSession(login.connect())
        self.servers: dict[int, ServerDatabase] = {}
        self._users: list[str] = []

    def install(self) -> None:
        """Creates the main database with one organization."""
        self.main.run(f"CREATE DATABASE `{self.name}` CHARACTER SET utf8mb4")
        self.main.connection.select_db(self.name)
        for statement in main_statements(self.version):
            self.main.run(statement)
        now = self.now()
        self.main.insert(
            "organizations",
            uuid=secrets.token_hex(16),
            name="Acme",
            permalink="acme",
            created_at=now,
            updated_at=now,
        )

    def add_server(self, *, mode: str = "Live", name: str = "") -> ServerDatabase:
        """Creates one more server with its message database."""
        now, number = self.now(), len(self.servers) + 1
        identity = self.main.insert(
            "servers",
            organization_id=1,
            uuid=secrets.token_hex(16),
            name=name or f"Server {number}",
            permalink=f"server-{number}",
            mode=mode,
            token=secrets.token_hex(3),
            created_at=now,
            updated_at=now,
        )
        database = f"{self.prefix}-server-{identity}"
        session = SqlSession(self.message_login.connect())
        session.run(
            f"CREATE DATABASE `{database}` CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci"
        )
        session.connection.select_db(database)
        for statement in message_statements():
            session.run(statement)
        self.servers[identity] = ServerDatabase(identity, database, session)
        return self.servers[identity]

    def now(self) -> datetime:
        """The UTC time of the database's clock, naive, with microseconds."""
        now: datetime = self.main.one("SELECT UTC_TIMESTAMP(6)")
        return now

    def guest(self, *, writes: bool = True, own: bool = True) -> MariaDbLogin:
        """Creates a user with the least privileges on all present servers.

        If the message databases are on another MariaDB, the same user is created there.
        """
        name, password = f"g{secrets.token_hex(6)}", secrets.token_urlsafe(12) + "/@:%"
        user = f"'{name}'@'%'"
        databases = [server.database for server in self.servers.values()]
        on_main = grants.main_reads(self.name, user)
        on_servers = [grant for each in databases for grant in grants.server_reads(each, user)]
        if writes:
            on_main += grants.main_writes(self.name, user)
            on_servers += [
                grant for each in databases for grant in grants.server_writes(each, user)
            ]
        if own:
            on_main += grants.own_database(self.own, user)
        for login, statements in self._by_login(on_main, on_servers):
            with admin(login) as session:
                session.run(f"CREATE USER '{name}'@'%%' IDENTIFIED BY %s", password)
                for statement in statements:
                    session.run(statement)
        self._users.append(user)
        return MariaDbLogin(self.login.port, self.login.host, name, password)

    def settings(self, guest: MariaDbLogin) -> dict[str, str]:
        """MAILSLICE_* variables by which the guest uses this Postal without Cassandra."""
        settings = {
            "MAILSLICE_POSTAL_URL": guest.url(self.name),
            "MAILSLICE_POSTAL_MESSAGE_PREFIX": self.prefix,
            "MAILSLICE_OWN_URL": guest.url(self.own),
        }
        if self.message_login != self.login:
            there = MariaDbLogin(
                self.message_login.port, self.message_login.host, guest.user, guest.password
            )
            settings["MAILSLICE_POSTAL_MESSAGE_URL"] = there.url()
        return settings

    def drop(self) -> None:
        """Removes the databases and the guests."""
        databases = [server.database for server in self.servers.values()]
        on_main = [f"DROP DATABASE IF EXISTS `{each}`" for each in (self.name, self.own)]
        on_servers = [f"DROP DATABASE IF EXISTS `{each}`" for each in databases]
        users = [f"DROP USER IF EXISTS {user}" for user in self._users]
        for login, statements in self._by_login(on_main, on_servers):
            with admin(login) as session:
                for statement in (*statements, *users):
                    session.run(statement)
        self.close()

    def close(self) -> None:
        """Ends the connections."""
        for session in (self.main, *(server.session for server in self.servers.values())):
            if session.connection.open:
                session.close()

    def _by_login(
        self, on_main: list[str], on_servers: list[str]
    ) -> list[tuple[MariaDbLogin, list[str]]]:
        if self.message_login == self.login:
            return [(self.login, on_main + on_servers)]
        return [(self.login, on_main), (self.message_login, on_servers)]


@contextmanager
def admin(login: MariaDbLogin) -> Iterator[SqlSession]:
    """A session without a database, for a few statements."""
    session = SqlSession(login.connect())
    try:
        yield session
    finally:
        session.close()


def epoch(at: datetime) -> float:
    """Seconds since the epoch of a naive UTC time, as message databases store times."""
    return at.replace(tzinfo=UTC).timestamp()
