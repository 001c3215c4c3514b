"""Coroutine tests run on uvloop, as the worker processes that they test do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import uvloop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Name -> loop factory. pytest-asyncio calls this for each test."""
    return {"uvloop": uvloop.new_event_loop}
