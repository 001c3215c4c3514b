"""What Postal's databases are told where a COMMIT is late, clocks differ, or mailslice hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mailslice.duties.stuck_mails_postal.quarantine import new_log_id
from mailslice.duties.stuck_mails_postal.rules import is_answered
from mailslice.model import crash
from mailslice.model.mariadb_url import MariaDbUrl
from mailslice.model.settings import Settings, load_settings
from mailslice.stores import open_stores
from mailslice.stores.mariadb.client import MariaDb, MariaDbTransaction
from mailslice.stores.postal.changes import PostalChanges, PostalRecord
from mailslice.stores.postal.databases import PostalDatabases
from mailslice.stores.postal.messages import ServerMessages
from mailslice.stores.postal.rows import PostalQueue
from mailslice.testing.postal.databases import FreshPostal, MariaDbLogin, SqlSession, epoch
from mailslice.testing.postal.mails import Ended, PostalMails
from tests.acceptance.command import Cli
from tests.conftest import Fresh

CLOSE = ("duty", "run", "stuck_mails_postal", "--mode", "close", "--json")


def test_a_record_whose_commit_is_late_is_written_once(
    postal: FreshPostal, mails: PostalMails, postal_settings: Settings
) -> None:
    server, log_id = postal.servers[1], new_log_id()
    mail = mails.mail(server, Ended.HEADERS)
    record = PostalRecord.held("set aside", log_id)
    late = SqlSession(postal.login.connect(server.database, autocommit=False))
    now = epoch(postal.now())
    late.insert("deliveries", message_id=mail.message, status="Held", log_id=log_id, timestamp=now)
    late.run("UPDATE messages SET status = 'Held', held = 1 WHERE id = %s", mail.message)
    late.insert("stats_daily", time=int(now) // 86_400 * 86_400, held=1)
    commit = threading.Timer(1, late.connection.commit)
    commit.start()
    with open_stores(postal_settings) as stores:
        PostalChanges(stores.postal).record(server.id, mail.message, record)
    commit.join()
    late.close()
    assert server.session.one("SELECT COUNT(*) FROM deliveries") == 1
    assert server.session.one("SELECT SUM(held) FROM stats_daily") == 1


class Ahead(MariaDb):
    """A MariaDB whose clock is an hour ahead."""

    @contextmanager
    def transaction(self) -> Iterator[MariaDbTransaction]:
        self.rows("SET timestamp = UNIX_TIMESTAMP() + 3600")
        with super().transaction() as transaction:
            yield transaction


def test_our_record_does_not_answer_a_release_where_the_clock_of_messages_is_ahead(
    postal: FreshPostal, mails: PostalMails, postal_env: Fresh, guest: MariaDbLogin
) -> None:
    mail, url = mails.mail(postal.servers[1], Ended.HEADERS), guest.url()
    env = {**postal_env.env, "MAILSLICE_POSTAL_MESSAGE_URL": url}
    databases = PostalDatabases(load_settings(env, state_file=Path("/nonexistent")).postal)
    databases.messages = Ahead(MariaDbUrl.parse(url), databases.settings)
    changes, queue = PostalChanges(databases), PostalQueue(databases.main)
    row = queue.by_id([mail.queued])[mail.queued]
    changes.close(row, PostalRecord.held("set aside", new_log_id()), 0)
    number = changes.requeue(row)
    assert number is not None
    postal.main.run("UPDATE queued_messages SET locked_by = 'a', locked_at = UTC_TIMESTAMP(6)")
    messages = ServerMessages(databases.messages, databases.database_of(1))
    (records,) = messages.deliveries([mail.message]).values()
    assert [record.status for record in records] == ["Held"]
    assert not is_answered(queue.by_id([number])[number], records)
    databases.close()


def test_workers_wait_no_longer_than_seconds_for_a_mailslice_that_hangs(
    postal: FreshPostal, mails: PostalMails, postal_env: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli, mail = Cli(postal_env.env).inside(), mails.mail(postal.servers[1], Ended.HEADERS)
    is_taken, is_through = threading.Event(), threading.Event()
    waited: list[float] = []

    def hang(name: str) -> None:
        if name == "postal:taken" and not waited:
            is_taken.set()
            is_through.wait(20)

    def poll() -> None:
        is_taken.wait(60)
        began = time.monotonic()
        with postal.login.connect(postal.name) as worker, worker.cursor() as cursor:
            cursor.execute(
                "UPDATE queued_messages SET locked_by = 'a', locked_at = UTC_TIMESTAMP(6) "
                "WHERE locked_by IS NULL AND locked_at IS NULL LIMIT 1"
            )
        waited.append(time.monotonic() - began)
        is_through.set()

    monkeypatch.setattr(crash, "point", hang)
    worker = threading.Thread(target=poll)
    worker.start()
    cli(*CLOSE)
    worker.join()
    assert waited[0] < 8
    assert cli(*CLOSE).lines[-1]["closed"] == 1
    statuses = postal.servers[1].session.rows("SELECT message_id, status FROM deliveries")
    assert statuses == [{"message_id": mail.message, "status": "Held"}]
