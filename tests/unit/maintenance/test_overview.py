"""The overview of queues while Cassandra gives nothing."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from cassandra import AuthenticationFailed, InvalidRequest, OperationTimedOut, Unauthorized
from cassandra.cluster import NoHostAvailable

from mailslice.maintenance.health import Health
from mailslice.maintenance.overview import overview
from mailslice.model.mail import QueueName
from mailslice.model.settings import Settings
from mailslice.stores.cassandra.failures import translated

NOW = datetime(2026, 11, 29, 3, tzinfo=UTC)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (
            NoHostAvailable("no host", {"db:9042": AuthenticationFailed("bad password")}),
            "Cassandra at db:9042 refuses the credentials of MAILSLICE_CASSANDRA_USERNAME, ",
        ),
        (
            Unauthorized("User u has no SELECT permission"),
            "Cassandra at db:9042: the user of MAILSLICE_CASSANDRA_USERNAME, ",
        ),
        (
            InvalidRequest("Keyspace 'jmaes' does not exist"),
            "Cassandra at db:9042 refuses a statement, are MAILSLICE_CASSANDRA_KEYSPACE and ",
        ),
        (OperationTimedOut({"db": "slow"}), "Cassandra did not answer"),
    ],
)
def test_an_unknown_queue_says_whether_cassandra_was_silent_or_refused(error, why):
    def newest_runs():
        raise translated(error, "db:9042")

    stores = SimpleNamespace(
        settings=Settings(),
        management=SimpleNamespace(queues=lambda _columns: []),
        existing_runs=newest_runs,
    )
    (one,) = overview(stores, lambda: NOW, [QueueName("spool")])
    assert (one.verdict.health, one.verdict.next) == (Health.UNKNOWN, "mailslice config check")
    assert one.verdict.why.startswith(why)
