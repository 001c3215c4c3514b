"""The connection to MariaDB, against a real one."""

from __future__ import annotations

import socket
import struct
import sys
import threading
import time
import traceback
from datetime import datetime, timedelta
from typing import Any

import pytest

from mailslice.model.errors import BadSetting, StoreUnavailable
from mailslice.model.mariadb_url import MariaDbUrl
from mailslice.model.settings import PostalSettings
from mailslice.stores.mariadb.client import MariaDb, quoted
from mailslice.stores.mariadb.failures import Contended, NoRight, NoSuchObject

TABLE = quoted("a-b`c", "rows")


@pytest.fixture
def open_db(mariadb_root: Any) -> Any:
    """Gives connections of the administrator; a database with one table is there."""
    opened: list[MariaDb] = []

    def connect(*, seconds: float = 5, **changes: Any) -> MariaDb:
        settings = PostalSettings(timeout=timedelta(seconds=seconds))
        opened.append(MariaDb(mariadb_root(**changes), settings))
        return opened[-1]

    db = connect()
    db.execute(f"CREATE OR REPLACE DATABASE {quoted('a-b`c')}")
    db.execute(
        f"CREATE TABLE {TABLE} (id int PRIMARY KEY, at datetime(6), word varchar(9))"
        " ENGINE=InnoDB CHARSET=utf8mb4"
    )
    yield connect
    db.execute(f"DROP DATABASE {quoted('a-b`c')}")
    for one in opened:
        one.close()


def test_values_come_back_as_they_went(open_db: Any) -> None:
    db = open_db()
    at = datetime(2026, 11, 23, 1, 2, 3, 456789)  # noqa: DTZ001
    assert db.execute(f"INSERT INTO {TABLE} VALUES (%s, %s, %s)", (1, at, "ü€😀'\\%")) == 1
    assert db.rows(f"SELECT * FROM {TABLE}") == [(1, at, "ü€😀'\\%")]
    ((difference,),) = db.rows("SELECT TIMESTAMPDIFF(SECOND, NOW(), UTC_TIMESTAMP())")
    assert difference == 0
    # A row that is found and left as it is counts: a condition held.
    assert db.execute(f"UPDATE {TABLE} SET word = word WHERE id = %s", (1,)) == 1
    assert db.execute(f"UPDATE {TABLE} SET word = word WHERE id = %s", (2,)) == 0


def test_what_raises_is_rolled_back(open_db: Any) -> None:
    db = open_db()

    def half() -> None:
        with db.transaction() as transaction:
            transaction.execute(f"INSERT INTO {TABLE} (id) VALUES (1)")
            assert transaction.rows(f"SELECT id FROM {TABLE}") == [(1,)]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half()
    assert db.rows(f"SELECT id FROM {TABLE}") == []


def test_a_lost_connection_is_opened_anew_outside_of_a_transaction_alone(open_db: Any) -> None:
    db, other = open_db(), open_db()

    def kill() -> None:
        ((ident,),) = db.rows("SELECT CONNECTION_ID()")
        other.execute(f"KILL {int(ident)}")
        time.sleep(0.1)

    kill()
    assert db.rows("SELECT 1") == [(1,)]
    kill()
    assert db.execute(f"INSERT INTO {TABLE} (id) VALUES (1)") == 1

    def killed_half_way() -> None:
        with db.transaction() as transaction:
            transaction.execute(f"INSERT INTO {TABLE} (id) VALUES (2)")
            ((ident,),) = transaction.rows("SELECT CONNECTION_ID()")
            other.execute(f"KILL {int(ident)}")
            time.sleep(0.1)
            transaction.execute(f"INSERT INTO {TABLE} (id) VALUES (3)")

    with pytest.raises(StoreUnavailable, match="MAILSLICE_POSTAL_URL"):
        killed_half_way()
    assert db.rows(f"SELECT id FROM {TABLE}") == [(1,)]


@pytest.mark.parametrize(("seconds", "least", "most"), [(5, 2, 5), (2, 0.5, 2)])
def test_a_row_that_somebody_has_is_contended_after_the_lock_wait(
    open_db: Any, seconds: float, least: float, most: float
) -> None:
    db, other = open_db(), open_db(seconds=seconds)
    db.execute(f"INSERT INTO {TABLE} (id) VALUES (1)")
    began = time.monotonic()
    with db.transaction() as mine:
        mine.execute(f"UPDATE {TABLE} SET word = 'a' WHERE id = 1")
        with pytest.raises(Contended, match="1205"):
            other.execute(f"UPDATE {TABLE} SET word = 'b' WHERE id = 1")
    assert least < time.monotonic() - began < most
    assert db.rows(f"SELECT word FROM {TABLE}") == [("a",)]


def test_a_deadlock_is_contended(open_db: Any) -> None:
    db, other = open_db(), open_db()
    db.execute(f"INSERT INTO {TABLE} (id) VALUES (1), (2)")
    outcomes: list[object] = []

    def change(one: MariaDb, first: int, second: int, both: threading.Barrier) -> None:
        try:
            with one.transaction() as transaction:
                transaction.execute(f"UPDATE {TABLE} SET word = 'x' WHERE id = %s", (first,))
                both.wait(5)
                transaction.execute(f"UPDATE {TABLE} SET word = 'x' WHERE id = %s", (second,))
            outcomes.append("done")
        except Contended as error:
            outcomes.append(error)

    both = threading.Barrier(2)
    threads = [
        threading.Thread(target=change, args=(one, *order, both))
        for one, order in ((db, (1, 2)), (other, (2, 1)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("done") == 1
    assert any("1213" in str(outcome) for outcome in outcomes)


def test_errors_say_whether_it_is_a_right_a_name_or_the_server(
    open_db: Any, mariadb_root: Any
) -> None:
    db = open_db()
    with pytest.raises(NoSuchObject):
        db.rows(f"SELECT * FROM {quoted('a-b`c', 'missing')}")
    with pytest.raises(NoSuchObject):
        db.rows(f"SELECT missing FROM {TABLE}")
    db.execute("CREATE OR REPLACE USER 'nobody'@'%%' IDENTIFIED BY 'se:cr@t'")
    nobody = open_db(user="nobody", password="se:cr@t")
    with pytest.raises(NoRight, match="nobody@127"):
        nobody.rows(f"SELECT * FROM {TABLE}")
    with pytest.raises(BadSetting, match="MAILSLICE_POSTAL_URL") as raised:
        open_db(user="nobody", password="another").rows("SELECT 1")
    assert "another" not in str(raised.value)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{closed.getsockname()[1]}"):
            open_db(port=closed.getsockname()[1]).rows("SELECT 1")
        assert time.monotonic() - began < 30


def test_a_password_may_have_any_characters_and_is_in_no_error(open_db: Any) -> None:
    open_db().execute("CREATE OR REPLACE USER 'nobody'@'%%' IDENTIFIED BY 's€cr€t'")
    assert open_db(user="nobody", password="s€cr€t").rows("SELECT 1") == [(1,)]
    for changes in ({"password": "s€cr€t\udcff"}, {"host": "a..b", "password": "s€cr€t"}):
        with pytest.raises(BadSetting, match="MAILSLICE_POSTAL_URL") as raised:
            open_db(user="nobody", **changes).rows("SELECT 1")
        assert "€" not in "".join(traceback.format_exception(raised.value))


def test_a_server_that_is_silent_ends_in_time(open_db: Any) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        db = open_db(port=silent.getsockname()[1])
        for ask in (db.rows, db.execute):
            began = time.monotonic()
            with pytest.raises(StoreUnavailable):
                ask("SELECT 1")
            assert time.monotonic() - began < 8, "one time-out of 5 s, not two"


_CAPABILITIES = 0x88200
"""PLUGIN_AUTH, SECURE_CONNECTION, PROTOCOL_41."""
_GREETING = b"".join(
    [
        b"\x0a10.11.0-MariaDB\0" + struct.pack("<I", 1) + b"s" * 8 + b"\0",
        struct.pack("<HBHHB", _CAPABILITIES & 0xFFFF, 45, 2, _CAPABILITIES >> 16, 21),
        bytes(10) + b"s" * 12 + b"\0mysql_native_password\0",
    ]
)


def _asks_for(plugin: str, server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        for number, packet in ((0, _GREETING), (2, b"\xfe" + plugin.encode() + b"\0" + b"s" * 32)):
            connection.sendall(struct.pack("<I", len(packet))[:3] + bytes([number]) + packet)
            connection.recv(4096)


@pytest.mark.parametrize(
    ("plugin", "why"),
    [("client_ed25519", "pynacl"), ("auth_gssapi_client", "auth_gssapi_client")],
)
def test_a_plugin_that_pymysql_lacks_is_a_setting(
    plugin: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nacl", None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_asks_for, args=(plugin, server), daemon=True)
        thread.start()
        url = MariaDbUrl("127.0.0.1", server.getsockname()[1], "u", "s3cret", "postal")
        db = MariaDb(url, PostalSettings())
        with pytest.raises(BadSetting, match="MAILSLICE_POSTAL_URL") as raised:
            db.rows("SELECT 1")
    assert why in str(raised.value)
    assert "mysql_native_password" in str(raised.value)
    assert "s3cret" not in str(raised.value)
