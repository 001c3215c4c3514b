"""The made tables against what docs say of Postal's: columns, types, indexes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal

import pymysql
import pytest

from mailslice.testing.postal.databases import FreshPostal, MariaDbLogin, SqlSession, admin
from mailslice.testing.postal.mails import Ended, PostalMails

QUEUE = {
    "id": "int(11)",
    "server_id": "int(11)",
    "message_id": "int(11)",
    "domain": "varchar(255)",
    "locked_by": "varchar(255)",
    "locked_at": "datetime(6)",
    "retry_after": "datetime",
    "created_at": "datetime(6)",
    "updated_at": "datetime(6)",
    "ip_address_id": "int(11)",
    "attempts": "int(11)",
    "route_id": "int(11)",
    "manual": "tinyint(1)",
    "batch_key": "varchar(255)",
}
MESSAGES = {
    "token": "varchar(255)",
    "scope": "varchar(10)",
    "rcpt_to": "varchar(255)",
    "mail_from": "varchar(255)",
    "subject": "varchar(255)",
    "message_id": "varchar(255)",
    "timestamp": "decimal(18,6)",
    "status": "varchar(255)",
    "held": "tinyint(1)",
    "hold_expiry": "decimal(18,6)",
    "last_delivery_attempt": "decimal(18,6)",
    "size": "varchar(255)",
    "raw_table": "varchar(255)",
    "raw_headers_id": "int(11)",
    "raw_body_id": "int(11)",
    "inspected": "tinyint(1)",
    "parsed": "tinyint(4)",
    "endpoint_id": "int(11)",
    "endpoint_type": "varchar(255)",
    "bounce_for_id": "int(11)",
}
DELIVERIES = {
    "message_id": "int(11)",
    "status": "varchar(255)",
    "code": "int(11)",
    "output": "varchar(512)",
    "details": "varchar(512)",
    "sent_with_ssl": "tinyint(1)",
    "log_id": "varchar(100)",
    "timestamp": "decimal(18,6)",
    "time": "decimal(8,2)",
}
BOTH = {
    "queued_messages",
    "servers",
    "organizations",
    "ip_addresses",
    "schema_migrations",
    "webhook_requests",
}
STATISTICS = {"stats_hourly", "stats_daily", "stats_monthly", "stats_yearly"}
MESSAGE_TABLES = {
    *("messages", "deliveries", "suppressions", "raw_message_sizes", "live_stats", "links"),
    *("clicks", "loads", "spam_checks", "webhook_requests", "migrations"),
    *STATISTICS,
}


def columns(session: SqlSession, table: str) -> dict[str, str]:
    return {row["Field"]: row["Type"] for row in session.rows(f"SHOW COLUMNS FROM `{table}`")}


def indexes(session: SqlSession, table: str) -> set[tuple[tuple[str, int | None], ...]]:
    by_name: dict[str, list[tuple[str, int | None]]] = {}
    for row in session.rows(f"SHOW INDEX FROM `{table}`"):
        by_name.setdefault(row["Key_name"], []).append((row["Column_name"], row["Sub_part"]))
    return {tuple(parts) for parts in by_name.values()}


def tables(session: SqlSession) -> set[str]:
    return {next(iter(row.values())) for row in session.rows("SHOW TABLES")}


def test_the_queue_has_postals_columns_and_no_index_on_locks(postal: FreshPostal) -> None:
    assert columns(postal.main, "queued_messages") == QUEUE
    assert indexes(postal.main, "queued_messages") == {
        (("id", None),),
        (("domain", 8),),
        (("message_id", None),),
        (("server_id", None),),
    }


def test_3_3_has_roles_and_tasks_that_2_3_has_not(
    postal: FreshPostal, postal_2: FreshPostal
) -> None:
    assert tables(postal.main) == BOTH | {"worker_roles", "scheduled_tasks"}
    assert tables(postal_2.main) == BOTH
    assert columns(postal_2.main, "queued_messages") == QUEUE


def test_a_server_has_postals_message_tables(postal: FreshPostal) -> None:
    session = postal.servers[1].session
    assert tables(session) == MESSAGE_TABLES
    assert MESSAGES.items() <= columns(session, "messages").items()
    assert columns(session, "deliveries") == {"id": "int(11)", **DELIVERIES}
    assert indexes(session, "deliveries") == {(("id", None),), (("message_id", None),)}
    assert (("held", None),) in indexes(session, "messages")
    for table in STATISTICS:
        unique = [
            row["Column_name"]
            for row in session.rows(f"SHOW INDEX FROM {table}")
            if not row["Non_unique"]
        ]
        assert unique == ["id", "time"]
    assert session.one("SELECT MAX(version) FROM migrations") == 20


def test_a_raw_table_comes_with_its_first_message(postal: FreshPostal, mails: PostalMails) -> None:
    server = postal.servers[2]
    mail = mails.mail(server, headers=b"Subject: a", body=b"text\r\n")
    (row,) = server.session.rows("SELECT * FROM messages WHERE id = %s", mail.message)
    arrived = datetime.fromtimestamp(int(row["timestamp"]), UTC)
    assert row["raw_table"] == f"raw-{arrived:%Y-%m-%d}"
    assert columns(server.session, row["raw_table"]) == {
        "id": "int(11)",
        "data": "longblob",
        "next": "int(11)",
    }
    ids = row["raw_headers_id"], row["raw_body_id"]
    raw = f"SELECT data FROM `{row['raw_table']}` WHERE id = %s"
    assert [server.session.one(raw, each) for each in ids] == [b"Subject: a", b"text\r\n"]
    assert mail.content == b"Subject: a\r\n\r\ntext\r\n"
    assert isinstance(row["timestamp"], Decimal)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE queued_messages SET server_id = 2 WHERE id = 1",
        "SELECT uuid FROM servers",
        "DELETE FROM servers WHERE id = 1",
        "SELECT * FROM webhook_requests",
        "CREATE INDEX mine ON queued_messages (locked_at)",
        "UPDATE `{server}`.messages SET rcpt_to = '' WHERE id = 1",
        "DELETE FROM `{server}`.messages WHERE id = 1",
        "INSERT INTO `{server}`.suppressions (address) VALUES ('a')",
        "CREATE TABLE `{server}`.mine (id int)",
    ],
)
def test_a_guest_may_do_no_more_than_it_must(postal: FreshPostal, statement: str) -> None:
    guest = SqlSession(postal.guest().connect(postal.name))
    with pytest.raises(pymysql.err.OperationalError) as denied:
        guest.run(statement.format(server=postal.servers[1].database))
    assert denied.value.args[0] in (1044, 1142, 1143)
    guest.close()


def test_a_guest_may_do_what_closing_needs(postal: FreshPostal, mails: PostalMails) -> None:
    server = postal.servers[1]
    mail = mails.mail(server)
    guest = SqlSession(postal.guest().connect(postal.name))
    database = server.database
    assert guest.run(f"UPDATE `{database}`.messages SET held = 1, status = 'Held' WHERE id = 1")
    assert guest.insert(f"`{database}`.deliveries", message_id=mail.message, status="Held")
    counter = f"INSERT INTO `{database}`.stats_hourly (time, held) VALUES (0, 1)"
    assert guest.run(f"{counter} ON DUPLICATE KEY UPDATE held = held + 1")
    assert guest.run("DELETE FROM queued_messages WHERE id = %s AND server_id = 1", mail.queued)
    assert guest.insert("queued_messages", server_id=1, message_id=mail.message)
    guest.run(f"CREATE DATABASE `{postal.own}`")
    guest.close()


def test_a_reader_may_not_write(postal: FreshPostal, mails: PostalMails) -> None:
    mails.mail(postal.servers[1])
    login = postal.guest(writes=False, own=False)
    guest = SqlSession(login.connect(postal.name))
    assert guest.one("SELECT COUNT(*) FROM queued_messages") == 1
    with pytest.raises(pymysql.err.OperationalError):
        guest.run("DELETE FROM queued_messages WHERE id = 1")
    with pytest.raises(pymysql.err.OperationalError), admin(login) as session:
        session.run(f"CREATE DATABASE `{postal.own}`")
    guest.close()


def test_message_databases_may_be_on_another_server(
    make_postal: Callable[..., FreshPostal], second_mariadb: MariaDbLogin
) -> None:
    postal = make_postal(message_login=second_mariadb)
    names = {server.database for server in postal.servers.values()}
    here = {row["Database"] for row in postal.main.rows("SHOW DATABASES")}
    there = {row["Database"] for row in postal.servers[1].session.rows("SHOW DATABASES")}
    assert names <= there
    assert not names & here
    settings = postal.settings(postal.guest())
    assert f":{second_mariadb.port}/" in settings["MAILSLICE_POSTAL_MESSAGE_URL"]
    PostalMails(postal).mail(postal.servers[2], Ended.SENT)
    assert postal.servers[2].session.one("SELECT status FROM messages") == "Sent"
