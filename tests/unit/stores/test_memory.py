"""The tables in memory keep the contract that Cassandra keeps."""

from pathlib import Path

import pytest

from mailslice.model.names import QueueTable
from mailslice.model.settings import load_settings
from mailslice.testing.memory import MemoryTables
from tests.contracts.tables import TablesContract, some_queue


class TestTablesInMemory(TablesContract):
    @pytest.fixture
    def tables(self):
        return MemoryTables(
            load_settings({}, state_file=Path("/nonexistent")), existing=tuple(QueueTable)
        )

    @pytest.fixture
    def queue(self):
        return some_queue()
