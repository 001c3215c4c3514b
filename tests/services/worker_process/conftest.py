"""The loop of the tests that are coroutines is uvloop, as in the processes that they are about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import uvloop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """By name; called by pytest-asyncio for each test."""
    return {"uvloop": uvloop.new_event_loop}
