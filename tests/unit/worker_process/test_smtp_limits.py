"""How many clients may be connected to smtp-in at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mailslice.worker.smtp_server.conversation import ConnectionLimits

LIMITS = ConnectionLimits(of_all=3, of_client=2)


def clients(*keys: str) -> Any:
    """Conversations; a client of the allowed networks has an empty key."""
    return [SimpleNamespace(client=key) for key in keys]


@pytest.mark.parametrize(
    ("one", "others", "exceeded"),
    [
        ("a", ["a"], None),
        ("a", ["a", "a"], "client"),
        ("a", ["b", "c"], None),
        ("a", ["b", "c", "d"], "all"),
        ("a", ["", "", ""], None),
        ("", ["a", "b", "c"], None),
        ("", ["", ""], None),
        ("", ["", "", ""], "all"),
    ],
)
def test_strangers_and_clients_of_the_allowed_networks_do_not_keep_each_other_out(
    one: str, others: list[str], exceeded: str | None
) -> None:
    assert LIMITS.exceeded(clients(one)[0], clients(*others)) == exceeded
