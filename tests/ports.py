"""Ports for servers that a test starts."""

from __future__ import annotations

import random
import socket


def free_ports(count: int) -> list[int]:
    """Consecutive free ports of loopback, below Linux' ephemeral ports: a connection that opens
    before the server listens cannot take one.
    """
    for _ in range(200):
        base = random.randrange(20_000, 32_000 - count)
        row = range(base, base + count)
        if all(_is_free(port) for port in row):
            return list(row)
    raise AssertionError("no free ports")


def free_port() -> int:
    """One free port, as of `free_ports`."""
    return free_ports(1)[0]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
