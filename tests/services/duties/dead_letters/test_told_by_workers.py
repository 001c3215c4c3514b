"""What a real worker dead-letters is told by its cause, on a queue of today's James and on one of James 3.5."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from mailslice.model.errors import StoreUnavailable
from mailslice.model.mail import Mail
from mailslice.queue import dead_letters, directory
from mailslice.stores import open_stores
from mailslice.worker import noting, open_worker
from tests.services.duties.dead_letters.conftest import Letters

CONTENT = b"A: b\r\n\r\nc"


async def dead_lettered(letters: Letters, *, noted: bool = True) -> None:
    """One mail that a handler rejects, one without its header, one that is no mail."""
    notes = letters.stores.dead_letter_notes
    await asyncio.to_thread(
        notes.prepare
    )  # a worker that had to make the table might run out of its 5 s, and keep no note
    async with open_worker(letters.settings, letters.queue) as worker:
        rejected = await worker.enqueue(Mail("rejected", "a@b.example", ("c@d.example",)), CONTENT)
        bare = await worker.enqueue(Mail("bare", "a@b.example", ("c@d.example",)), CONTENT)
        await asyncio.to_thread(letters.stores.blobs.delete_many, [bare.header_blob_id])
        await asyncio.to_thread(letters.publish, letters.names.exchange, b"no mail", {})
        async with aclosing(worker.deliveries(4)) as deliveries:
            await (await anext(deliveries)).reject("no such user")
            while await asyncio.to_thread(lambda: len(letters.dead())) < 3:  # noqa: ASYNC110 - the broker tells nobody
                await asyncio.sleep(0.2)
            ids = {rejected.enqueue_id, bare.enqueue_id}
            while noted and set(await asyncio.to_thread(notes.read, letters.queue, ids)) != ids:  # noqa: ASYNC110 - they are written behind the letters
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


async def test_a_note_that_cannot_be_kept_costs_no_letter(
    letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: object) -> None:
        raise StoreUnavailable("Cassandra at nowhere does not answer")

    monkeypatch.setattr(noting, "_notes", away)
    await dead_lettered(letters, noted=False)
    look = await asyncio.to_thread(dead_letters.look, letters.stores, letters.queue)
    judged = await asyncio.to_thread(
        dead_letters.judge, letters.stores, letters.queue, look.letters
    )
    assert sorted(each.cause.value for each in judged) == [
        "bad JSON",
        "missing blob",
        "rejected by a handler",
    ]  # a missing blob is seen, too
    assert all(each.reason is None for each in judged)


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
        directory.require(stores, "spool")
        letters = Letters(settings, stores, "spool", fresh.environ)  # type: ignore[arg-type]
        await dead_lettered(letters)
        report = await asyncio.to_thread(letters.run, redrive=True)
        assert report["causes"] == {"rejected by a handler": 1, "missing blob": 1, "bad JSON": 1}
        assert (
            report["ages"]["rejected by a handler"]["oldestAgeSeconds"] < 120
        )  # by the note: a copy has no death
        ((properties, _),) = await asyncio.to_thread(letters.taken, letters.names.work_queue)
        assert "x-mailslice-reason" not in properties.headers
