"""What a real worker dead-letters is told by its cause, on a queue of today's James and on one of
James 3.5.
"""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from mailslice.admin import queues
from mailslice.maintenance.runner import Tools
from mailslice.model.mail import Mail
from mailslice.stores import open_stores
from mailslice.worker import open_worker
from tests.services.duties.dead_letters.conftest import Letters
from tests.services.duties.running import judged

CONTENT = b"A: b\r\n\r\nc"


async def dead_lettered(letters: Letters) -> None:
    """One mail that a handler rejects, one without its header, one that is no mail."""
    async with open_worker(letters.settings, letters.queue) as worker:
        await worker.enqueue(Mail("rejected", "a@b.example", ("c@d.example",)), CONTENT)
        bare = await worker.enqueue(Mail("bare", "a@b.example", ("c@d.example",)), CONTENT)
        await asyncio.to_thread(letters.stores.blobs.delete_many, [bare.header_blob_id])
        await asyncio.to_thread(letters.publish, letters.names.exchange, b"no mail")
        async with aclosing(worker.deliveries(4)) as deliveries:
            await (await anext(deliveries)).reject("no such user")
            # The broker tells nobody.
            while len(await asyncio.to_thread(letters.dead)) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.2)


async def test_the_worker_s_reasons_arrive(letters: Letters) -> None:
    await dead_lettered(letters)
    report = await asyncio.to_thread(letters.run, redrive=True)
    assert report["causes"] == {"rejected by a handler": 1, "missing blob": 1, "bad JSON": 1}
    reasons = {each["cause"]: each["reason"] for each in report["sample"]}
    assert reasons["rejected by a handler"] == "no such user"
    assert reasons["missing blob"].startswith("content missing: ")
    assert (report["redriven"], report["exported"], report["keptBy"]) == (
        1,
        1,
        {"its content is missing": 1},
    )
    ((properties, _),) = await asyncio.to_thread(letters.taken, letters.names.work_queue)
    assert set(properties.headers) == {
        "x-dead-letter-routing-key",
        "x-mailslice-slice",
        "x-mailslice-bucket",
        "x-redrive-count",
    }
    assert properties.timestamp is not None
    assert report["ages"]["rejected by a handler"]["oldestAgeSeconds"] < 120


@pytest.mark.new_keyspaces
async def test_letters_of_a_queue_of_james_3_5_have_their_reason_in_a_header_and_go_back_without_it(
    fresh: Any,
) -> None:
    from mailslice.stores.rabbitmq.connection import blocking_connection

    settings = fresh.but(MAILSLICE_QUEUE_TABLE="v3").settings
    with blocking_connection(settings.rabbitmq) as connection:  # golden/v3-declarations.json
        channel = connection.channel()
        channel.exchange_declare("JamesMailQueue-exchange-spool", "direct", durable=True)
        channel.queue_declare("JamesMailQueue-workqueue-spool", durable=True)
        channel.queue_bind(
            "JamesMailQueue-workqueue-spool", "JamesMailQueue-exchange-spool", routing_key=""
        )
    with open_stores(settings) as stores:
        stores.tables.create()
        queues.require(stores, "spool")
        letters = Letters(settings, stores, "spool", Tools(judged))  # type: ignore[arg-type]
        await dead_lettered(letters)
        report = await asyncio.to_thread(letters.run, redrive=True)
        assert report["causes"] == {"rejected by a handler": 1, "missing blob": 1, "bad JSON": 1}
        assert (
            report["ages"]["rejected by a handler"]["oldestAgeSeconds"] < 120
        )  # by the copy's own header: it has no death
        ((properties, _),) = await asyncio.to_thread(letters.taken, letters.names.work_queue)
        assert not {"x-mailslice-reason", "x-mailslice-died"} & set(properties.headers)
