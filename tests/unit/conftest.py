"""Tests of this tier open no connection: one that tries fails at once, and says so."""

import socket

import pytest


@pytest.fixture(autouse=True)
def _no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: socket.socket, address: object) -> None:
        raise AssertionError(f"a test in tests/unit connects to {address!r}; tests that need a socket live in tests/services or tests/acceptance")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)
