"""Cassandra 4.1: the tests of the view's tables, of a cleanup and of a worker, run against it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from stack.settings import Profile, stack_settings
from tests.own_cluster import Cluster
from tests.ports import free_ports
from tests.versions.tiers import run_tests

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1700)]
VERSION = "4.1.10"
_PORTS = ("CASSANDRA_PORT", "CASSANDRA_STORAGE_PORT", "CASSANDRA_JMX_PORT")
TESTS = (
    "tests/services/cassandra",
    "tests/services/duties/queue_cleanup",
    "tests/services/worker/test_round_trip.py",
    "tests/services/worker/test_delays.py",
    "tests/services/worker/test_stage_marks.py",
)

OF_5 = (
    "--deselect",
    "tests/services/cassandra/test_ddl.py::test_created_tables_are_described_as_james_own",
)
"""Compares with what DESCRIBE of Cassandra 5 says: 4.1 names the options of a table otherwise."""


@pytest.fixture(scope="module")
def services(
    stack: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, str]]:
    """MAILSLICE_* of the session's RabbitMQ and S3, and of a Cassandra of this module's own."""
    environ = {
        **os.environ,
        **{
            f"MAILSLICE_STACK_TEST_{name}": str(port)
            for name, port in zip(_PORTS, free_ports(len(_PORTS)), strict=True)
        },
        "MAILSLICE_STACK_TEST_STATE": str(tmp_path_factory.mktemp("cassandra")),
        "MAILSLICE_STACK_CASSANDRA_VERSION": VERSION,
        "MAILSLICE_STACK_CASSANDRA_HEAP": "1000m",
        "MAILSLICE_STACK_START_TIMEOUT": "300",
    }
    with Cluster(stack_settings(Profile.TEST, environ), count=1) as cluster:
        yield {**stack, **cluster.settings()}


def test_the_tests_of_tables_cleanup_and_worker_pass(
    services: Mapping[str, str], tmp_path: Path
) -> None:
    assert run_tests(services, tmp_path, *TESTS, *OF_5) > 200
