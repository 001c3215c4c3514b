"""A consumer that is stopped while the broker refuses what it asks."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from mailslice.model.errors import BadSetting
from mailslice.model.settings import Settings
from mailslice.stores.rabbitmq.consumer import Consumer
from mailslice.stores.rabbitmq.link import Link


async def test_a_cancel_that_is_refused_ends_the_consumer_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What follows its end gives mails back, and deletes what is to be deleted."""
    channel = SimpleNamespace(
        add_on_cancel_callback=lambda _: None,
        basic_qos="qos",
        basic_consume="consume",
        basic_cancel="cancel",
    )

    async def call(method: str, *_: object, **__: object) -> Any:
        if method == "cancel":
            raise BadSetting("access refused")
        return SimpleNamespace(method=SimpleNamespace(consumer_tag="tag"))

    lost = asyncio.get_running_loop().create_future()
    link = SimpleNamespace(channel=channel, call=call, lost=lost, is_open=True)

    async def opened(_settings: object) -> Any:
        return link

    monkeypatch.setattr(Link, "open", opened)
    ready = asyncio.Event()
    settings = Settings.model_validate({}).rabbitmq
    consumer = Consumer(settings, "q", 1, on_message=lambda _: None, on_ready=ready.set)
    consumer.start()
    await asyncio.wait_for(ready.wait(), 5)
    await consumer.stop()
