"""Tests of this tier open no connection: a test that tries to fails at once with the reason."""

import socket
import threading

import pytest

BESIDE = "drop-tenants"
"""Name prefix of threads that drop the stores of tests of another tier, beside the tests."""


@pytest.fixture(autouse=True)
def _no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("connect", "connect_ex"):
        connect = getattr(socket.socket, name)

        def refuse(of: socket.socket, address: object, connect=connect) -> object:
            if threading.current_thread().name.startswith(BESIDE):
                return connect(of, address)
            raise AssertionError(
                f"a test in tests/unit connects to {address!r}; tests that need a socket live in "
                "tests/services or tests/acceptance"
            )

        monkeypatch.setattr(socket.socket, name, refuse)
