"""The tables of the queue view on a real Cassandra."""

from uuid import uuid4

import pytest

from mailslice.model.mail import EnqueueId
from mailslice.model.names import QueueTable
from mailslice.stores import open_stores
from mailslice.stores.cassandra.ddl import create_queue_tables
from mailslice.stores.cassandra.deleted_mails import ALL
from mailslice.stores.cassandra.ids import pack
from tests.contracts.tables import TablesContract, some_queue


class TestTablesOnCassandra(TablesContract):
    @pytest.fixture(scope="class")
    def tables(self, fresh_module):
        with open_stores(fresh_module.settings) as stores:
            stores.tables.create()
            create_queue_tables(stores.cassandra, QueueTable.V3)
            yield stores.tables

    @pytest.fixture
    def queue(self):
        return some_queue()


def test_marks_of_many_ids_are_one_answer_however_small_the_pages(fresh_module, monkeypatch):
    """Cassandra reads the partitions of a paged IN one after each other."""
    monkeypatch.setattr("mailslice.stores.cassandra.session.PAGE_ROWS", 10)
    queue = some_queue()
    with open_stores(fresh_module.settings) as stores:
        stores.tables.create()
        ids = [EnqueueId(uuid4()) for _ in range(100)]
        stores.tables.deleted.mark_many(queue, ids)
        assert [
            marked for _, _, marked in stores.tables.deleted.look_up(queue, [("", pack(ids))])
        ] == [ALL]
