"""An async handler behind a plain decorator gets what blocks, and is told so: no loop freezes."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest

from mailslice.model.errors import BadInput
from mailslice.worker.io.destination_throttle import BlockingThrottle
from mailslice.worker.process.handler_spec import checked_handler
from mailslice.worker.stages.handler_stage import BlockingStage


class Marks:
    """Stage marks, and a throttle, that answer at once."""

    async def sending(self, _recipients: object) -> None: ...

    async def enter(self, *_: object, waited: bool) -> dict[str, Any]:
        return {"waited": waited} if waited else {}

    def leave(self, *_: object) -> None: ...


def plain(handler: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(handler)
    def wrapper(*args: Any, **keywords: Any) -> Any:
        return handler(*args, **keywords)

    return wrapper


async def test_blocking_calls_on_the_loop_that_would_answer_are_bad_input() -> None:
    @plain
    async def handle(_mail: object, _content: bytes, *, stage: BlockingStage) -> None:
        stage.sending()

    marks: Any = Marks()
    loop = asyncio.get_running_loop()
    stage, throttle = BlockingStage(marks, loop=loop), BlockingThrottle(marks, loop=loop)
    assert not checked_handler(handle).is_async
    async with asyncio.timeout(5):
        with pytest.raises(BadInput, match=r"sending would block its own event loop.*decorator"):
            await handle(None, b"", stage=stage)
        with pytest.raises(BadInput, match="enter would block"), throttle.entering(["a.example"]):
            pass
        await asyncio.to_thread(stage.sending)
        await asyncio.to_thread(lambda: throttle.entering(["a.example"]).__enter__())
