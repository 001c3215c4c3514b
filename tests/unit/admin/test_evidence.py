"""What can be proved of mails by their ids."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from uuid import UUID

from mailslice.admin.evidence import still_live
from mailslice.model.mail import EnqueueId, Partition
from mailslice.model.names import QueueTable

NOW = datetime(2026, 11, 27, tzinfo=UTC)
ONE = EnqueueId(UUID(int=1))


def test_no_mail_of_a_table_that_was_dropped_since_is_live_and_the_others_are_looked_at():
    """An audit names V3, which somebody drops after the migration."""
    row = SimpleNamespace(enqueue_id=ONE)
    v4 = SimpleNamespace(table=QueueTable.V4, by_ids=lambda *_: [row])
    tables = SimpleNamespace(
        deleted=SimpleNamespace(marked=lambda *_: set()),
        existing=(v4,),
        browse_starts=SimpleNamespace(get=lambda _: None),
    )

    def live(table):
        where = (table, Partition(NOW, 0))
        return still_live(tables, "spool", timedelta(hours=1), where, [ONE])

    assert list(map(live, (QueueTable.V3, QueueTable.V4))) == [{}, {ONE: row}]
