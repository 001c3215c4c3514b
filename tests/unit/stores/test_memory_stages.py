"""The stage marks in memory keep the contract that Cassandra keeps."""

import pytest

from mailslice.testing.memory import MemoryMailStages
from tests.contracts.stages import StagesContract
from tests.contracts.tables import some_queue


class TestStagesInMemory(StagesContract):
    @pytest.fixture
    def stages(self):
        return MemoryMailStages()

    @pytest.fixture
    def queue(self):
        return some_queue()
