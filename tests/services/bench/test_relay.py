from __future__ import annotations

from datetime import timedelta

from mailslice.bench.relay import measure_relay
from mailslice.model.settings import Settings


def test_kept_connections_are_worth_at_least_twice_the_mails_where_a_round_trip_costs() -> None:
    """Eight round trips a mail against two; the rest of the factor is left to a loaded machine."""
    found = measure_relay(
        Settings(),
        mails=40,
        size=4096,
        recipients=2,
        concurrency=4,
        rtt=timedelta(milliseconds=40),
        print_progress=lambda _: None,
    )
    assert found["ratio"] > 2
    assert found["oneMailAConnection"]["mailsPerSecond"] < 4 / (7 * 0.04)
