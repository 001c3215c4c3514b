"""Where the port of /livez, /readyz and /metrics is opened."""

from __future__ import annotations

from urllib.request import urlopen

import pytest

from mailslice.model.errors import BadSetting
from mailslice.model.host_port import host_port
from mailslice.worker.health import HealthServer


@pytest.mark.parametrize(
    ("host", "reached_at"),
    [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "::1"), ("::", "127.0.0.1")],
)
def test_it_listens_on_addresses_of_ipv6_too_and_on_all_of_both_kinds(
    host: str, reached_at: str
) -> None:
    server = HealthServer(host, 0, {"/livez": lambda: (200, "text/plain", b"yes")})
    server.start()
    try:
        with urlopen(f"http://{host_port(reached_at, server.port)}/livez", timeout=5) as answer:
            assert answer.read() == b"yes"
    finally:
        server.stop()


@pytest.mark.parametrize("host", ["2001:db8::1", "no.address.invalid", "\u00fc" * 64])
def test_an_address_that_cannot_be_opened_is_a_bad_setting_that_names_it(host: str) -> None:
    with pytest.raises(BadSetting) as refused:
        HealthServer(host, 9, {})
    assert str(refused.value).startswith(f"health port {host_port(host, 9)} cannot be opened: ")
