"""One connection to MariaDB by PyMySQL, for one thread. Times are naive UTC, with microseconds."""

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
"""How long a statement waits for a row, or a table, that somebody else has locked; and at most this
part of the time-out, behind which no answer is an outage."""
_WAIT = "innodb_lock_wait_timeout = {0}, lock_wait_timeout = {0}"
_LEFT = "/*M!100300 , idle_transaction_timeout = 5 */"  # a client that hangs keeps no row locked
_SESSION = f"SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES', {_WAIT} {_LEFT}"
_SILENT_SECONDS, _SHORT_SECONDS = 60, 2
"""So long after a server was silent for a whole time-out nobody waits that long for it again."""
_AT_ONCE = f"SET STATEMENT {_WAIT.format(0)} FOR "


def quoted(*names: str) -> str:
    """A database, table or column as statements name it: `postal-server-1`.`messages`."""
    return ".".join("`" + name.replace("`", "``").replace("%", "%%") + "`" for name in names)


class MariaDb:
    """Opened at its first use. Raises StoreUnavailable, BadSetting, and those of `failures`."""

    _silent: ClassVar[dict[str, float]] = {}
    """Addresses of servers that gave no answer, and when (monotonic): all connections know it."""

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
        """The rows of a statement that only reads: asked again when the connection was lost."""
        return list(self._repeated(lambda: self._do(sql, params))[1])

    def execute(self, sql: str, params: Sequence[object] = ()) -> int:
        """One writing statement in a transaction of its own; how many rows it found."""
        with self.transaction() as transaction:
            return transaction.execute(sql, params)

    @contextmanager
    def transaction(self) -> Iterator[MariaDbTransaction]:
        """READ COMMITTED; commits at the end. After StoreUnavailable it may be committed."""
        self._repeated(self._start)
        try:
            yield MariaDbTransaction(self._do)
            self._do("COMMIT")
        except BaseException:
            self._roll_back()
            raise

    def close(self) -> None:
        """Close the connection. May be called twice; the next statement opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(pymysql.Error, OSError):
                connection.close()

    def _repeated(self, ask: Callable[[], Any]) -> Any:
        """The answer to what changes nothing: asked again where an idle connection was closed."""
        was_open = self._is_open()
        try:
            return ask()
        except StoreUnavailable:
            if not was_open:
                raise
            return ask()

    def _start(self) -> None:
        self._do("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        self._do("START TRANSACTION")

    def _roll_back(self) -> None:
        if self._connection is None:
            return  # it was lost: the server rolls back
        try:
            self._do("ROLLBACK")
        except Exception:  # noqa: BLE001
            self.close()  # which rolls back, too

    def _is_open(self) -> bool:
        """Between transactions: one that is older than the server's silence is as silent."""
        if self._connection is not None and self._opened < self._silent.get(self.address, 0):
            self.close()
        return self._connection is not None

    def _do(self, sql: str, params: Sequence[object] = ()) -> tuple[int, Sequence[Row]]:
        """Rows that the statement found, and those that it gave."""
        connection, began = self._connected(), time.monotonic()
        try:
            with connection.cursor() as cursor:
                found = cursor.execute(sql, tuple(params))  # also (): else a %% would stay
                return found, cursor.fetchall()
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
            return pymysql.connect(
                host=self.url.host,
                port=self.url.port,
                user=self.url.user,
                password=self.url.password.encode(),  # a str would be Latin-1
                charset="utf8mb4",
                autocommit=True,
                client_flag=CLIENT.FOUND_ROWS,
                init_command=_SESSION.format(min(_LOCK_WAIT_SECONDS, int(_OF_TIMEOUT * seconds))),
                connect_timeout=max(1, int(seconds)),
                read_timeout=seconds,
                write_timeout=seconds,
                ssl=client_tls(self._settings, "POSTAL") if self._settings.tls_enabled else None,
            )
        except UnicodeError:  # its text may have a character of the password
            where = f"{self._setting}: the host {self.url.host!r}"
            raise BadSetting(f"{where}, or its user or password, cannot be encoded") from None
        except (pymysql.Error, OSError, RuntimeError) as error:
            self._fail(error, began)

    def _fail(self, error: BaseException, began: float) -> NoReturn:
        told = translated(error, f"{self.url.user}@{self.address}", self._setting)
        if isinstance(told, StoreUnavailable):
            self.close()
            if time.monotonic() - began > 0.9 * self._settings.timeout.total_seconds():
                self._silent[self.address] = time.monotonic()
        raise told from error


class MariaDbTransaction:
    """What may be asked between begin and commit. An error ends the transaction."""

    def __init__(self, do: Callable[..., tuple[int, Sequence[Row]]]) -> None:
        self._do = do
        self._prefix = ""

    def hurry(self) -> None:
        """From now on no statement waits for a lock: somebody may wait for one of ours."""
        self._prefix = _AT_ONCE

    def rows(self, sql: str, params: Sequence[object] = ()) -> list[Row]:
        return list(self._do(self._prefix + sql, params)[1])

    def execute(self, sql: str, params: Sequence[object] = ()) -> int:
        """How many rows a writing statement found (also those that it left as they were)."""
        return self._do(self._prefix + sql, params)[0]
