"""S3 servers of several kinds: which cases are measured, and what they are compared with."""

import json
from datetime import timedelta

import pytest

from mailslice.bench.delayed import hops
from mailslice.bench.servers import Server, ServerCase, cases, ratios
from mailslice.model.errors import BadInput
from mailslice.model.settings import Settings


def test_a_server_that_runs_already_is_never_cold_and_one_without_tls_has_no_such_case():
    started = Server("a", "http://a", ("java",), secure="https://a", ca="/ca.pem")
    near = [ServerCase("warm", "near", 16), ServerCase("warm", "near", 64)]
    assert cases(started, 16, 64) == [
        ServerCase("cold", "near", 16),
        *near,
        ServerCase("warm", "far", 64),
        ServerCase("warm", "TLS", 64),
    ]
    assert cases(Server("b", "http://b"), 16, 64) == [*near, ServerCase("warm", "far", 64)]


def row(state, in_flight, enqueues, p99):
    latency = {"p99": p99}
    rates = {"enqueue_rate": enqueues, "dequeue_rate": 2 * enqueues}
    return {
        "state": state,
        "way": "near",
        "in_flight": in_flight,
        **rates,
        "enqueue_ms": latency,
        "dequeue_ms": latency,
    }


def test_each_case_is_compared_with_the_first_warm_server_at_as_many_in_flight():
    rows = ratios([row("cold", 16, 50, 30), row("warm", 16, 100, 10), row("warm", 16, 80, 15)])
    assert [each["ratio"]["enqueue_rate"] for each in rows] == [0.5, 1.0, 0.8]
    assert [each["ratio"]["dequeue_ms_p99"] for each in rows] == [3.0, 1.0, 1.5]


def test_a_server_is_read_from_its_file(tmp_path):
    file = tmp_path / "server.json"
    file.write_text(json.dumps({"name": "a", "endpoint": "http://a:1", "secure": "https://a:2"}))
    server = Server.of_file(file)
    assert server.settings(Settings()).s3.endpoint == "http://a:1"
    assert server.settings(Settings(), tls=True).s3.endpoint == "https://a:2"
    file.write_text(json.dumps({"name": "a"}))
    with pytest.raises(BadInput, match=r"server\.json"):
        Server.of_file(file)


@pytest.mark.parametrize(
    ("delay", "count"),
    [
        (timedelta(seconds=7), 1),
        (timedelta(hours=1), 1),
        (timedelta(days=30), 1),
        (timedelta(hours=1, minutes=7), 1),
        (timedelta(days=29, hours=13, minutes=7), 3),
    ],
)
def test_hops_of_a_delay(delay, count):
    assert hops(delay) == count
