"""The gate over rows in this process: a few facts, and a plan's rows as an Arrow table."""

import pyarrow as pa
import pytest

from tests.contracts.gates import GateContract


class TestFacts(GateContract):
    @pytest.fixture
    def rows(self):
        return lambda columns: [
            dict(zip(columns, values, strict=True))
            for values in zip(*columns.values(), strict=True)
        ]


class TestArrowTable(GateContract):
    @pytest.fixture
    def rows(self):
        return pa.table
