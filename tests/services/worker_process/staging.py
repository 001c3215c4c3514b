"""A relaying worker that sends itself SIGKILL or SIGSTOP at a named point: `staging.py MODE POINT
QUEUE PORT`. MODE is kill, stop or none; POINT is, for example, `dot#2`.

A point is a step of a delivery, `#n` its n-th time: `read` (stage mark), `loaded`, `sending` and
`began` (before and after that mark), `dot` and `unanswered` (before and after the last byte of
DATA), `answered` and `sent` (before and after that mark), `again` and `next` (before and after a
retry's mark), `publish`, `published`, `mark`, `marked`, `ack`, `acked`.

The worker prints each point, and `settled` after each outcome. SIGTERM ends it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from datetime import timedelta
from typing import Any

from prometheus_client import CollectorRegistry

from mailslice.model.back_off import BackOff
from mailslice.model.mail import QueueName
from mailslice.model.settings import Settings, load_settings
from mailslice.model.stages import MailStage, Stage
from mailslice.stores.rabbitmq.consumer import Message
from mailslice.stores.rabbitmq.publisher import Publisher
from mailslice.worker import open_worker
from mailslice.worker.handlers.next_hop import Connection
from mailslice.worker.io.content_loader import Loader
from mailslice.worker.io.context import QueueContext
from mailslice.worker.metrics import ConsumerMetrics
from mailslice.worker.process import handler_pool
from mailslice.worker.process.handler_spec import load_handler
from mailslice.worker.stages.stage_log import Stages

SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def say(word: str) -> None:
    print(word, flush=True)


def points(mode: str, wanted: str) -> None:
    """Patches the worker so that it reports points, and acts at the requested one."""
    passed: Counter[str] = Counter()

    def at(name: str) -> None:
        passed[name] += 1
        say(f"{name}#{passed[name]}")
        if f"{name}#{passed[name]}" == wanted and mode in SIGNALS:
            os.kill(os.getpid(), SIGNALS[mode])

    def around(
        owner: Any, method: str, before: Callable[..., str | None], after: Callable[..., str | None]
    ) -> None:
        original = getattr(owner, method)

        async def awaited(*args: Any, **kwargs: Any) -> Any:
            if name := before(*args):
                at(name)
            result = await original(*args, **kwargs)
            if name := after(*args):
                at(name)
            return result

        def called(*args: Any, **kwargs: Any) -> Any:
            if name := before(*args):
                at(name)
            result = original(*args, **kwargs)
            if name := after(*args):
                at(name)
            return result

        setattr(owner, method, awaited if asyncio.iscoroutinefunction(original) else called)

    def moved(names: tuple[str, str, str]) -> Callable[..., str]:
        def name(_stages: Stages, before: MailStage, after: MailStage) -> str:
            if after.attempt > before.attempt:
                return names[2]
            return names[0] if Stage.SENDING in after.recipients.values() else names[1]

        return name

    def dot(name: str) -> Callable[..., str | None]:
        return lambda _connection, data: (
            name if isinstance(data, bytes) and data.endswith(b"\r\n.\r\n") else None
        )

    around(Stages, "ask", lambda *_: "read", lambda *_: None)
    around(Loader, "load", lambda *_: None, lambda *_: "loaded")
    around(
        Stages, "advance", moved(("sending", "answered", "again")), moved(("began", "sent", "next"))
    )
    around(Connection, "send", dot("dot"), dot("unanswered"))
    around(Publisher, "publish", lambda *_: "publish", lambda *_: "published")
    around(QueueContext, "mark", lambda *_: "mark", lambda *_: "marked")
    around(Message, "ack", lambda *_: "ack", lambda *_: "acked")


async def relaying(
    settings: Settings,
    queue: QueueName,
    stop: asyncio.Event,
    on_idle: Callable[[float], None] = lambda _seconds: None,
) -> None:
    """Relays mails until `stop`. Calls `on_idle` with the seconds since the last mail.

    Retries do not wait. Tests call it, without points.
    """
    at_once = handler_pool.Policy(BackOff(cap=timedelta(0)))
    async with open_worker(settings, queue) as worker:
        running = handler_pool.HandlerPool(
            load_handler("relay", settings), 2, ConsumerMetrics(queue, CollectorRegistry()), at_once
        )
        async with aclosing(worker.deliveries(4)) as deliveries:
            while not stop.is_set():
                try:
                    delivery = await asyncio.wait_for(anext(deliveries), 0.2)
                except TimeoutError:
                    on_idle(0.0 if running.in_flight else deliveries.idle_seconds)
                    continue
                await running.start(delivery)
            await running.drain(5)


def saying_settled() -> None:
    original = ConsumerMetrics.settled

    def told(*args: Any) -> None:
        original(*args)
        say("settled")

    ConsumerMetrics.settled = told


async def main() -> None:
    mode, point, queue, port = sys.argv[1:]
    points(mode, point)
    saying_settled()
    settings = load_settings()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await relaying(
        settings.model_copy(
            update={"relay": settings.relay.model_copy(update={"port": int(port)})}
        ),
        QueueName(queue),
        stop,
    )


if __name__ == "__main__":
    asyncio.run(main())
