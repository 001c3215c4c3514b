"""A MariaDB connection by PyMySQL, for one thread. Times are naive UTC with microseconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, NoReturn

import pymysql
from pymysql.constants import CLIENT

from mailslice.model.errors import BadSetting, StoreUnavailable
from mailslice.model.mariadb_url import MariaDbUrl
from mailslice.model.settings import PostalSettings
from mailslice.stores.mariadb.failures import translated
from mailslice.stores.tls import client_tls

Row = tuple[Any, ...]
_LOCK_WAIT_SECONDS, _OF_TIMEOUT = 3, 0.6
"""How long a statement waits for a locked row or table; and the largest part of the time-out that
the wait may take: after the time-out, a missing answer counts as an outage."""
_WAIT = "innodb_lock_wait_timeout = {0}, lock_wait_timeout = {0}"
_LEFT = "/*M!100300 , idle_transaction_timeout = 5 */"  # a client that hangs keeps no row locked
_SESSION = f"SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES', {_WAIT} {_LEFT}"
_SILENT_SECONDS, _SHORT_SECONDS = 60, 2
"""For 60 s after a server was silent for a whole time-out, connecting to it waits 2 s at most."""
_AT_ONCE = f"SET STATEMENT {_WAIT.format(0)} FOR "


def quoted(*names: str) -> str:
    """The quoted name of a database, table or column: `postal-server-1`.`messages`."""
    return ".".join("`" + name.replace("`", "``").replace("%", "%%") + "`" for name in names)


class MariaDb:
    """Connects at its first use. Raises StoreUnavailable, BadSetting, and those of `failures`."""

    _silent: ClassVar[dict[str, float]] = {}
    """Server address -> when it last gave no answer (monotonic). All connections share it."""

    def __init__(
        self, url: MariaDbUrl, settings: PostalSettings, *, setting: str = "MAILSLICE_POSTAL_URL"
    ) -> None:
        self.url = url
        self.address = url.address
        self._settings = settings
        self._setting = setting
        self._connection: pymysql.Connection[Any] | None = None
        self._opened = 0.0

    def rows(self, sql: str, params: Sequence[object] = ()) -> list[Row]:
        """The rows of a statement that only reads. Repeats it if an idle connection was lost."""
        return list(self._repeated(lambda: self._do(sql, params))[1])

    def execute(self, sql: str, params: Sequence[object] = ()) -> int:
        """One writing statement in its own transaction. Returns how many rows it matched."""
        with self.transaction() as transaction:
            return transaction.execute(sql, params)

    @contextmanager
    def transaction(self) -> Iterator[MariaDbTransaction]:
        """A READ COMMITTED transaction, committed at the end. StoreUnavailable: outcome unknown."""
        self._repeated(lambda: self._do("START TRANSACTION"))
        try:
            yield MariaDbTransaction(self._do)
            self._do("COMMIT")
        except BaseException:
            self._roll_back()
            raise

    def close(self) -> None:
        """Closes the connection. May be called twice; the next statement opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(pymysql.Error, OSError):
                connection.close()

    def _repeated(self, ask: Callable[[], Any]) -> Any:
        """The result of `ask`, which changes nothing. Repeats it if an open connection was lost."""
        was_open = self._is_open()
        try:
            return ask()
        except StoreUnavailable:
            if not was_open:
                raise
            return ask()

    def _roll_back(self) -> None:
        if self._connection is None:
            return  # the connection was lost, so the server rolls back
        try:
            self._do("ROLLBACK")
        except Exception:  # noqa: BLE001
            self.close()  # the server then rolls back

    def _is_open(self) -> bool:
        """Whether a connection is open. Closes one that is older than the server's last silence."""
        if self._connection is not None and self._opened < self._silent.get(self.address, 0):
            self.close()
        return self._connection is not None

    def _do(self, sql: str, params: Sequence[object] = ()) -> tuple[int, Sequence[Row]]:
        """(how many rows the statement matched, the rows that it returned)."""
        connection, began = self._connected(), time.monotonic()
        try:
            with connection.cursor() as cursor:
                matched = cursor.execute(sql, tuple(params))  # an empty tuple also turns %% to %
                return matched, cursor.fetchall()
        except (pymysql.Error, OSError) as error:
            self._fail(error, began)

    def _connected(self) -> pymysql.Connection[Any]:
        if self._connection is None:
            seconds, now = self._settings.timeout.total_seconds(), time.monotonic()
            if now < self._silent.get(self.address, -_SILENT_SECONDS) + _SILENT_SECONDS:
                self._open(min(seconds, _SHORT_SECONDS)).close()
                self._silent.pop(self.address, None)
            self._connection, self._opened = self._open(seconds), time.monotonic()
        return self._connection

    def _open(self, seconds: float) -> pymysql.Connection[Any]:
        began = time.monotonic()
        try:
            connection = pymysql.connect(
                host=self.url.host,
                port=self.url.port,
                user=self.url.user,
                password=self.url.password.encode(),  # PyMySQL encodes a str as Latin-1
                charset="utf8mb4",
                autocommit=True,
                client_flag=CLIENT.FOUND_ROWS,
                init_command=_SESSION.format(min(_LOCK_WAIT_SECONDS, int(_OF_TIMEOUT * seconds))),
                connect_timeout=max(1, int(seconds)),
                read_timeout=seconds,
                write_timeout=seconds,
                ssl=client_tls(self._settings, "POSTAL") if self._settings.tls_enabled else None,
            )
            connection.query("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        except UnicodeError:  # not chained: its text may have a character of the password
            where = f"{self._setting}: the host {self.url.host!r}"
            raise BadSetting(f"{where}, or its user or password, cannot be encoded") from None
        except (pymysql.Error, OSError, RuntimeError) as error:
            self._fail(error, began)
        return connection

    def _fail(self, error: BaseException, began: float) -> NoReturn:
        known = translated(error, f"{self.url.user}@{self.address}", self._setting)
        if isinstance(known, StoreUnavailable):
            self.close()
            if time.monotonic() - began > 0.9 * self._settings.timeout.total_seconds():
                self._silent[self.address] = time.monotonic()
        raise known from error


class MariaDbTransaction:
    """Statements of one transaction. An error ends the transaction."""

    def __init__(self, do: Callable[..., tuple[int, Sequence[Row]]]) -> None:
        self._do = do
        self._prefix = ""

    def stop_waiting(self) -> None:
        """From now on no statement waits for a lock, as others may wait for our locks."""
        self._prefix = _AT_ONCE

    def rows(self, sql: str, params: Sequence[object] = ()) -> list[Row]:
        return list(self._do(self._prefix + sql, params)[1])

    def execute(self, sql: str, params: Sequence[object] = ()) -> int:
        """How many rows a writing statement matched (also those that it left unchanged)."""
        return self._do(self._prefix + sql, params)[0]
