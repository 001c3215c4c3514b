"""Twenty-five workers are killed over one mail, on whatever RabbitMQ the settings name.

RabbitMQ 4 counts each of them as a return of the mail, and allows 20 by default.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from mailslice.worker import open_worker
from tests.acceptance.command import Cli
from tests.services.worker.conftest import at, mail
from tests.services.worker.test_faults import CONTENT, next_of

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]
KILLS = 25
QUORUM = {"MAILSLICE_QUEUE_QUORUM": "true", "MAILSLICE_QUEUE_QUORUM_GROUP_SIZE": "1"}

KILLED = """
import asyncio, json, os, select, signal, sys

from mailslice.model.settings import load_settings
from mailslice.worker import open_worker

async def hold(pipe):
    async with open_worker(load_settings(), "spool") as worker:
        async for delivery in worker.deliveries(1):
            os.write(pipe, delivery.item.mail.name.encode())
            await asyncio.sleep(3600)

handed_out = []
for _ in range(int(sys.argv[1])):
    reading, writing = os.pipe()
    worker = os.fork()
    if not worker:
        asyncio.run(hold(writing))
    os.close(writing)
    if select.select([reading], [], [], float(sys.argv[2]))[0]:
        handed_out.append(os.read(reading, 1000).decode())
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)
    os.close(reading)
print(json.dumps(handed_out))
"""


def kill_workers(environ: dict[str, str]) -> list[str]:
    """Each worker process is killed (-9) as soon as it has a mail in hand, or after 10 s without
    one. The names of the mails that they had.
    """
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(KILLS), "10"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    names: list[str] = json.loads(done.stdout)
    return names


def limit_of(spool: Any) -> int | None:
    limit: int | None = spool.stores.management.delivery_limit(spool.names.work_queue)
    return limit


@pytest.mark.parametrize("kind", ["classic", "quorum"])
async def test_without_a_limit_the_mail_is_delivered_by_the_next_worker(
    fresh: Any, kind: str
) -> None:
    env = QUORUM | {"MAILSLICE_QUEUE_DELIVERY_LIMIT": "1000000000"} if kind == "quorum" else {}
    here = fresh.but(**env)
    for spool in at(here.settings):
        assert limit_of(spool) is None
        async with open_worker(spool.settings, spool.queue) as worker:
            item = await worker.enqueue(mail("m-1"), CONTENT)
        assert kill_workers(here.environ) == ["m-1"] * KILLS
        async with open_worker(spool.settings, spool.queue) as worker:
            delivery = await next_of(worker.deliveries(1), 30)
            assert (delivery.item, delivery.content) == (item, CONTENT)
            await delivery.complete()
        assert spool.ready(spool.names.dead_letter_queue) == 0
        assert spool.live() == []


async def test_on_a_queue_as_james_declares_it_the_mail_is_delivered_or_a_dead_letter(
    fresh: Any,
) -> None:
    """Never lost: what RabbitMQ 4 dead-letters at its limit is redriven whole."""
    here = fresh.but(**QUORUM)
    cli = Cli(here.environ)
    for spool in at(here.settings):
        limit = limit_of(spool)
        assert limit in (None, 20)
        async with open_worker(spool.settings, spool.queue) as worker:
            item = await worker.enqueue(mail("m-1"), CONTENT)
        handed_out = kill_workers(here.environ)
        assert handed_out == ["m-1"] * (KILLS if limit is None else limit + 1)
        if limit is not None:
            (letter,) = cli.json("queue", "dead", "spool")
            assert (letter["name"], letter["cause"]) == ("m-1", "delivery limit")
            words = ("--redrive", "--cause", "delivery limit", "--reason", "deployed too often")
            cli("duty", "run", "dead_letters", "--queue", "spool", *words, timeout=300)
        async with open_worker(spool.settings, spool.queue) as worker:
            delivery = await next_of(worker.deliveries(1), 30)
            assert (delivery.item, delivery.content) == (item, CONTENT)
            await delivery.complete()
        assert spool.ready(spool.names.dead_letter_queue) == 0
        assert spool.live() == []


def test_config_check_tells_what_happens_at_the_limit(fresh: Any) -> None:
    here = fresh.but(**QUORUM)
    cli = Cli(here.env).inside()
    for spool in at(here.settings):
        spool.stores.rabbitmq.declare_delays(spool.queue, [5])
        limit = limit_of(spool)
        shown = cli("config", "check", "--json").one
        queues = {each["queue"]: each for each in shown["queues"]}
        assert set(queues) == {
            spool.names.work_queue,
            spool.names.dead_letter_queue,
            spool.names.hop_queue,
            spool.names.park_queue,
            spool.names.delay_queue(5),
        }
        work = queues.pop(spool.names.work_queue)
        assert (work["type"], work["deliveryLimit"]) == ("quorum", limit)
        assert work["atLimit"] == ("returned" if limit is None else "dead-lettered")
        assert {each["atLimit"] for each in queues.values()} == {"returned"}
        assert shown["unsafeQueues"] == []
