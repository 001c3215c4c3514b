"""What Postal's databases are told where a COMMIT is late, clocks differ, or mailslice hangs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mailslice.duties.stuck_mails_postal.keeping import new_log_id
from mailslice.duties.stuck_mails_postal.rules import is_answered
from mailslice.model.mariadb_url import MariaDbUrl
from mailslice.model.settings import load_settings
from mailslice.stores.mariadb.client import MariaDb, MariaDbTransaction
from mailslice.stores.postal.changes import PostalChanges, PostalRecord
from mailslice.stores.postal.databases import PostalDatabases
from mailslice.stores.postal.messages import ServerMessages
from mailslice.stores.postal.rows import PostalQueue
from mailslice.testing.postal.databases import FreshPostal, MariaDbLogin
from mailslice.testing.postal.mails import Ended, PostalMails
from tests.conftest import Fresh

CLOSE = ("duty", "run", "stuck_mails_postal", "--mode", "close", "--json")


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
