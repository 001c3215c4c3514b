from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from mailslice.bench.own_mails import complete_own, progressing
from mailslice.model.errors import Refused


class _Delivery:
    def __init__(self, name: str) -> None:
        self.item = SimpleNamespace(mail=SimpleNamespace(name=name))
        self.became: list[str] = []

    async def complete(self) -> None:
        self.became.append("completed")

    async def requeue(self) -> None:
        self.became.append("given back")


def test_only_a_benchmarks_own_mail_is_completed() -> None:
    own: Any = _Delivery("mailslice-bench-7")
    asyncio.run(complete_own(own))
    assert own.became == ["completed"]
    other: Any = _Delivery("mailslice-benches")
    with pytest.raises(Refused, match="'mailslice-benches'"):
        asyncio.run(complete_own(other))
    assert other.became == ["given back"]


def test_what_does_not_come_is_not_waited_for_for_ever() -> None:
    done = 0

    async def stalling() -> None:
        nonlocal done
        async with progressing(lambda: done, 10, 0.2):
            for _ in range(6):
                await asyncio.sleep(0.1)
                done += 1
            await asyncio.Event().wait()

    with pytest.raises(Refused, match="4 of 10 mails did not come back"):
        asyncio.run(stalling())


def test_a_timeout_of_the_block_is_its_own() -> None:
    async def failing() -> None:
        async with progressing(lambda: 0, 1):
            raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        asyncio.run(failing())
