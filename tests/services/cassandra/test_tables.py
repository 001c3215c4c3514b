"""The tables of the queue view on a real Cassandra."""

import pytest

from mailslice.model.names import QueueTable
from mailslice.stores import open_stores
from mailslice.stores.cassandra.ddl import create_queue_tables
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
