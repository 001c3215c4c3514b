"""What cannot be handled goes to the dead letter queue, and the next mail goes on; deleted mails
are dropped; retries.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from mailslice.codec import message
from mailslice.model import crash
from mailslice.model.errors import BadInput
from mailslice.model.mail import BlobId, EnqueueId, Partition, QueuedMail
from mailslice.model.slices import slice_start
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.stores.rabbitmq.link import Link
from mailslice.worker import Deliveries, Delivery, open_worker
from mailslice.worker.dequeue import retry_message
from tests.services.worker.conftest import at, golden, golden_body, mail

CONTENT = b"A: b\r\n\r\nc"


async def next_of(deliveries: Deliveries, seconds: float = 15) -> Delivery:
    return await asyncio.wait_for(anext(deliveries), seconds)


async def test_json_that_is_no_mail_goes_to_the_dead_letters_and_the_next_mail_goes_on(
    spool: Any, caplog: pytest.LogCaptureFixture
) -> None:
    # The last one is JSON to one parser, and too deep for the one that looks for keys that are
    # given twice.
    deep = (
        golden_body("minimal")[:-1] + b',"x":{"name":1},"deep":' + b"[" * 1000 + b"]" * 1000 + b"}"
    )
    for body in (b"", b"{", b"[]", b'{"enqueueId":"x"}', b"\xff\xfe", deep):
        spool.publish(spool.names.exchange, body)
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await worker.enqueue(mail(), CONTENT)
        with caplog.at_level(logging.WARNING):
            async with aclosing(worker.deliveries(3)) as deliveries:
                delivery = await next_of(deliveries)
                assert delivery.item == item
                await delivery.complete()
                assert (
                    await asyncio.to_thread(spool.wait_for_ready, spool.names.dead_letter_queue, 6)
                    == 6
                )
    properties, body = spool.take(spool.names.dead_letter_queue)
    assert body == b""
    assert properties.headers["x-death"][0]["reason"] == "rejected"
    assert (
        sum(
            "dead letter: a message that is no mail: not a mail: " in record.message
            for record in caplog.records
        )
        == 6
    )


async def test_a_mail_whose_blob_is_gone_goes_to_the_dead_letters_and_the_next_mail_goes_on(
    spool: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        bare = [await worker.enqueue(mail(name), CONTENT) for name in ("no-header", "no-body")]
        whole = await worker.enqueue(mail("whole"), CONTENT)
        spool.stores.blobs.delete_many([bare[0].header_blob_id, bare[1].body_blob_id])
        with caplog.at_level(logging.WARNING):
            async with aclosing(worker.deliveries(3)) as deliveries:
                assert (await next_of(deliveries)).item == whole
                assert (
                    await asyncio.to_thread(spool.wait_for_ready, spool.names.dead_letter_queue, 2)
                    == 2
                )
    assert any(
        f"dead letter: {bare[0].enqueue_id}: content missing: " in record.message
        for record in caplog.records
    )
    assert {row.enqueue_id for row in spool.live()} == {item.enqueue_id for item in (*bare, whole)}


async def test_a_bucket_that_is_gone_is_no_missing_content(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await worker.enqueue(mail(), CONTENT)
        spool.stores.blobs.delete_many(spool.blob_keys())
        spool.stores.blobs.client.delete_bucket(Bucket=spool.stores.blobs.bucket)
        async with aclosing(worker.deliveries(3)) as deliveries:
            with pytest.raises(TimeoutError):
                await next_of(deliveries, 2)
            spool.stores.blobs.ensure_bucket()
            spool.stores.blobs.put(item.header_blob_id, b"A: b\r\n\r\n")
            spool.stores.blobs.put(item.body_blob_id, b"c")
            assert (await next_of(deliveries)).content == CONTENT
    assert spool.ready(spool.names.dead_letter_queue) == 0


async def test_a_rejected_mail_is_on_the_dead_letter_queue_as_james_leaves_it(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await worker.enqueue(mail(), CONTENT)
        async with aclosing(worker.deliveries(3)) as deliveries:
            await (await next_of(deliveries)).reject("no such user")
    properties, body = spool.take(spool.names.dead_letter_queue)
    expected = golden("outcomes")["rejected_on_dead_letter_queue"]
    assert body == message.encode(item)
    death = properties.headers["x-death"][0]
    assert (death["reason"], death["count"], death["routing-keys"]) == ("rejected", 1, [""])
    assert set(expected["properties"]["headers"]) <= set(properties.headers)
    assert set(death) == set(expected["properties"]["headers"]["x-death"][0])
    assert properties.headers["x-mailslice-reason"] == "no such user"
    assert spool.marks() == set()
    assert len(spool.blob_keys()) == 2


@pytest.mark.new_keyspaces
async def test_a_queue_of_james_3_5_without_a_dead_letter_exchange_keeps_what_is_rejected(
    fresh: Any,
) -> None:
    from mailslice.stores import open_stores
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
        from tests.services.worker.conftest import Place4Queue

        spool = Place4Queue(settings, stores, "spool")  # type: ignore[arg-type]
        async with open_worker(settings, spool.queue) as worker:
            item = await worker.enqueue(mail(), CONTENT)
            spool.publish(spool.names.exchange, b"no mail")
            async with aclosing(worker.deliveries(3)) as deliveries:
                await (await next_of(deliveries)).reject("no such user \udcff")
                assert (
                    await asyncio.to_thread(spool.wait_for_ready, spool.names.dead_letter_queue, 2)
                    == 2
                )
        bodies = {}
        while (taken := spool.take(spool.names.dead_letter_queue, 0)) is not None:
            bodies[taken[1]] = taken[0].headers["x-mailslice-reason"]
        assert bodies[message.encode(item)] == "no such user ?", (
            "bytes that are no text, as handlers read them out of mails"
        )
        assert bodies[b"no mail"].startswith("not a mail")
        assert spool.ready(spool.names.work_queue) == 0


async def test_a_mail_that_is_rejected_twice_at_once_or_cut_short_is_settled_once(
    spool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = asyncio.Event()

    async def stuck(_link: object) -> None:
        copied.set()
        await asyncio.Event().wait()

    async with open_worker(spool.settings, spool.queue) as worker:
        for number in range(4):
            await worker.enqueue(mail(f"m-{number}"), CONTENT)
        async with aclosing(worker.deliveries(4)) as deliveries:
            first, second, third, last = [await next_of(deliveries) for _ in range(4)]
            await asyncio.gather(
                first.reject("no"), first.reject("no"), second.reject("no"), second.complete()
            )
            monkeypatch.setattr(Link, "flushed", stuck)
            rejecting = asyncio.create_task(third.reject("no"))
            await asyncio.wait_for(copied.wait(), 20)
            rejecting.cancel()
            await asyncio.wait({rejecting})
            monkeypatch.undo()
            await third.retry()
            await asyncio.sleep(0.3)  # for a broker that closes the channel
            assert deliveries.connected
            await last.complete()
            with pytest.raises(TimeoutError):
                await next_of(deliveries, 1)
    assert spool.ready(spool.names.work_queue) == 0


@pytest.mark.parametrize("gone", ["queue", "binding", "exchange"])
async def test_what_is_rejected_while_somebody_deletes_the_dead_letters_is_kept(
    spool: Any, gone: str
) -> None:
    """A `basic.reject` has no answer: the broker drops what it cannot route.

    Enqueues on the other connection go on meanwhile.
    """
    names = spool.names
    async with (
        open_worker(spool.settings, spool.queue) as worker,
        aclosing(worker.deliveries(4)) as deliveries,
    ):
        items = [await worker.enqueue(mail(f"m-{number}"), CONTENT) for number in range(3)]
        first, second, third = [await next_of(deliveries) for _ in items]
        await first.reject("before")
        with blocking_connection(spool.settings.rabbitmq) as connection:
            channel = connection.channel()
            if gone == "queue":
                channel.queue_delete(names.dead_letter_queue)
            elif gone == "binding":
                channel.queue_unbind(names.dead_letter_queue, names.dead_letter_exchange, "")
            else:
                channel.exchange_delete(names.dead_letter_exchange)
        link = worker.context.publisher._link
        await asyncio.gather(
            second.reject("after"), worker.enqueue(mail("beside"), CONTENT), third.reject("after")
        )
        assert worker.context.publisher._link is link
        assert link.is_open
    letters = {}
    while (taken := spool.take(names.dead_letter_queue, 0)) is not None:
        letters[message.decode(taken[1]).enqueue_id] = taken[0]
    rejected = [
        delivery.item.enqueue_id for delivery in (second, third)
    ]  # ready mails have no order
    assert letters.keys() >= set(rejected)
    reasons = [letters[enqueue_id].headers["x-mailslice-reason"] for enqueue_id in rejected]
    assert reasons == ["after", "after"]


async def test_a_letter_that_is_dropped_with_its_queue_although_confirmed_is_sent_anew(
    spool: Any,
) -> None:
    """RabbitMQ confirms what it drops when the queue is deleted as the message comes."""
    names = spool.names
    deletions = 0

    def delete(point: str) -> None:
        nonlocal deletions
        if point == "publish:confirmed" and not deletions:
            deletions += 1
            with blocking_connection(spool.settings.rabbitmq) as connection:
                connection.channel().queue_delete(names.dead_letter_queue)

    async with (
        open_worker(spool.settings, spool.queue) as worker,
        aclosing(worker.deliveries(4)) as deliveries,
    ):
        await worker.enqueue(mail(), CONTENT)
        delivery = await next_of(deliveries)
        crash.arm(delete)
        try:
            await delivery.reject("no")
        finally:
            crash.arm(None)
    assert (deletions, spool.ready(names.dead_letter_queue)) == (1, 1)


async def test_a_dead_letter_is_the_message_that_james_would_find_there(spool: Any) -> None:
    """Its body and properties as they were, with our headers on top, which James ignores."""
    body = golden_body("full")
    spool.publish(spool.names.exchange, body)
    async with (
        open_worker(spool.settings, spool.queue) as worker,
        aclosing(worker.deliveries(4)) as deliveries,
    ):
        with pytest.raises(TimeoutError):  # it has no content, so nobody is given it
            await next_of(deliveries, 3)
    properties, letter = spool.take(spool.names.dead_letter_queue)
    assert letter == body
    expected = golden("full")["amqp"]["properties"]
    for name in ("content_type", "delivery_mode", "priority", "message_id", "expiration"):
        assert getattr(properties, name) == expected[name]
    assert properties.headers.items() >= expected["headers"].items()
    assert properties.headers["x-mailslice-reason"].startswith("content missing: ")


async def test_a_marked_mail_is_dropped_before_its_content_is_loaded(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        gone = await worker.enqueue(mail("gone"), CONTENT)
        bare = await worker.enqueue(mail("bare"), CONTENT)
        kept = await worker.enqueue(mail("kept"), CONTENT)
        spool.stores.tables.deleted.mark_many(spool.queue, [gone.enqueue_id, bare.enqueue_id])
        spool.stores.blobs.delete_many([bare.header_blob_id])
        async with aclosing(worker.deliveries(3)) as deliveries:
            assert (await next_of(deliveries)).item == kept
    assert spool.ready(spool.names.dead_letter_queue) == 0
    assert spool.blob_keys() == {kept.header_blob_id, kept.body_blob_id}


@pytest.mark.parametrize(
    "case",
    [
        "minimal",
        "full",
        "null-sender",
        "mime-8bit",
        "mime-empty",
        "mime-folded",
        "mime-no-body",
        "deduplication",
        "generation-aware",
    ],
)
async def test_what_james_wrote_is_handled_and_its_random_blobs_go(spool: Any, case: str) -> None:
    import base64

    given = golden(case)
    item = message.decode(golden_body(case))
    stored = {
        given["s3"][part]["key"]: base64.b64decode(given["s3"][part]["base64"])
        for part in ("header", "body")
    }
    world = Partition(slice_start(datetime.now(UTC), spool.settings.queue.slice_window), 0)
    spool.put_as_james(item, stored[item.header_blob_id], stored[item.body_blob_id], world)
    async with (
        open_worker(spool.settings, spool.queue) as worker,
        aclosing(worker.deliveries(3)) as deliveries,
    ):
        delivery = await next_of(deliveries)
        assert delivery.item == item
        assert delivery.content == stored[item.header_blob_id] + stored[item.body_blob_id]
        await delivery.complete()
    assert spool.marks() == {item.enqueue_id}
    assert spool.blob_keys() == (
        set(stored) if given["blob_strategy"] == "deduplication" else set()
    )


async def test_a_message_of_ours_is_one_of_james_but_for_our_headers(spool: Any) -> None:
    expected = golden("minimal")["amqp"]
    given = message.decode(golden_body("minimal")).mail
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await worker.enqueue(
            given, b"From: alice@example.org\r\nTo: bob@example.net\r\nSubject: hi\r\n\r\nbody\r\n"
        )
    properties, body = spool.take(spool.names.work_queue)
    ours = body.decode()
    for new, old in (
        (str(item.enqueue_id), "85e7edf7-ee7e-42bf-b5b0-111d864fb18e"),
        (item.header_blob_id, "a3ffe2aa-51ff-40e3-8f4b-ec489435b214"),
        (item.body_blob_id, "7a66a3a1-ca4f-4f27-bb95-b19c619cbb0e"),
    ):
        ours = ours.replace(new, old)
    assert ours == expected["body_text"]
    for name in (
        "content_type",
        "delivery_mode",
        "priority",
        "message_id",
        "expiration",
        "correlation_id",
    ):
        assert getattr(properties, name) == expected["properties"][name]
    assert properties.headers.items() >= expected["properties"]["headers"].items()


async def test_retry_hands_the_mail_out_again_at_once(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await worker.enqueue(mail(), CONTENT)
        async with aclosing(worker.deliveries(3)) as deliveries:
            first = await next_of(deliveries)
            assert not first.redelivered
            await first.retry()
            again = await next_of(deliveries)
            assert again.redelivered
            assert again.item == item
            await again.complete()
    assert spool.ready(spool.names.work_queue) == 0


async def test_retry_with_the_recipients_that_remain_keeps_the_identity_and_shows_them_in_the_view(
    spool: Any,
) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await worker.enqueue(mail(recipients=("a@x", "b@x", "c@x")), CONTENT)
        async with aclosing(worker.deliveries(3)) as deliveries:
            first = await next_of(deliveries)
            with pytest.raises(BadInput, match="retry names 1 recipients"):
                await first.retry(recipients=["d@x"])
            await first.retry(recipients=["c@x"])
            again = await next_of(deliveries)
            assert again.item.enqueue_id == item.enqueue_id
            assert again.item.mail.recipients == ("c@x",)
            assert again.content == CONTENT
            (row,) = spool.rows()
            assert row.item.mail.recipients == ("c@x",)
            await again.retry(recipients=[])
    assert spool.marks() == {item.enqueue_id}
    assert spool.ready(spool.names.work_queue) == 0


async def test_a_row_that_a_cleanup_deletes_in_the_middle_of_a_retry_does_not_come_back(
    spool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = retry_message.row_of

    async def read_and_cleaned(*args: Any, **options: Any) -> Any:
        if row := await read(*args, **options):
            deletes = spool.stores.tables.written.delete_partition_future
            deletes(spool.queue, row.partition, 2**62).result()
        return row

    async with open_worker(spool.settings, spool.queue) as worker:
        await worker.enqueue(mail(recipients=("a@x", "b@x")), CONTENT)
        async with aclosing(worker.deliveries(3)) as deliveries:
            monkeypatch.setattr(retry_message, "row_of", read_and_cleaned)
            await (await next_of(deliveries)).retry(recipients=["b@x"])
            assert (await next_of(deliveries)).item.mail.recipients == ("b@x",)
    assert spool.rows() == []


async def test_a_mail_deleted_while_it_was_handled_is_not_retried(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await worker.enqueue(mail(recipients=("a@x", "b@x")), CONTENT)
        async with aclosing(worker.deliveries(3)) as deliveries:
            delivery = await next_of(deliveries)
            spool.stores.tables.deleted.mark_many(spool.queue, [item.enqueue_id])
            await delivery.retry(recipients=["b@x"])
    assert spool.ready(spool.names.work_queue) == 0


def unknown(name: str = "stranger") -> QueuedMail:
    return QueuedMail(
        EnqueueId(UUID(int=77)),
        mail(name),
        BlobId("11111111-1111-4111-8111-111111111111"),
        BlobId("22222222-2222-4222-8222-222222222222"),
    )


@pytest.mark.parametrize("shared", ["true", "false"])
async def test_a_mail_without_row_and_mark_is_cleaned_on_an_own_queue_and_handled_on_a_shared_one(
    fresh: Any, shared: str
) -> None:
    for spool in at(fresh.but(MAILSLICE_QUEUE_SHARED=shared).settings):
        spool.put_as_james(unknown(), b"A: b\r\n\r\n", b"c", None)
        async with (
            open_worker(spool.settings, spool.queue) as worker,
            aclosing(worker.deliveries(3)) as deliveries,
        ):
            if shared == "true":
                assert (await next_of(deliveries)).content == CONTENT
            else:
                with pytest.raises(TimeoutError):
                    await next_of(deliveries, 3.5)
                assert (
                    await asyncio.to_thread(spool.wait_for_ready, spool.names.dead_letter_queue, 1)
                    == 1
                )
        assert spool.ready(spool.names.dead_letter_queue) == (0 if shared == "true" else 1)


@pytest.mark.parametrize("began", ["now", "before V4 was made"])
async def test_on_an_own_queue_an_old_mail_that_still_has_its_row_is_handled(
    fresh: Any, began: str
) -> None:
    """By the partition of its message, or without one, as James publishes it."""
    for spool in at(
        fresh.but(MAILSLICE_QUEUE_SHARED="false", MAILSLICE_QUEUE_SLICE_WINDOW="2s").settings
    ):
        spool.put_as_james(
            unknown(),
            b"A: b\r\n\r\n",
            b"c",
            Partition(slice_start(datetime.now(UTC), spool.settings.queue.slice_window), 0),
        )
        async with open_worker(spool.settings, spool.queue) as worker:
            ours = await worker.enqueue(mail("ours"), CONTENT)
            if began != "now":
                worker.context.tables.__dict__["existing"] = ()
            await asyncio.sleep(4.5)
            async with aclosing(worker.deliveries(3)) as deliveries:
                found = [await next_of(deliveries), await next_of(deliveries)]
                assert {delivery.item.enqueue_id for delivery in found} == {
                    unknown().enqueue_id,
                    ours.enqueue_id,
                }


async def test_on_an_own_queue_a_row_that_comes_a_moment_after_its_message_is_waited_for(
    fresh: Any,
) -> None:
    for spool in at(
        fresh.but(MAILSLICE_QUEUE_SHARED="false", MAILSLICE_QUEUE_SLICE_WINDOW="2s").settings
    ):
        world = Partition(slice_start(datetime.now(UTC), spool.settings.queue.slice_window), 0)
        spool.put_as_james(unknown(), b"A: b\r\n\r\n", b"c", None)
        spool.stores.tables.browse_starts.insert_first(spool.queue, world.slice_start)
        async with (
            open_worker(spool.settings, spool.queue) as worker,
            aclosing(worker.deliveries(3)) as deliveries,
        ):
            coming = asyncio.ensure_future(next_of(deliveries))
            await asyncio.sleep(0.7)
            from mailslice.model.mail import ViewRow

            spool.stores.tables.written.insert_many(
                [ViewRow(spool.queue, world, world.slice_start, unknown())]
            )
            assert (await coming).item == unknown()


async def test_on_an_own_queue_a_mail_whose_rows_were_cleaned_with_its_mark_is_never_handled(
    fresh: Any,
) -> None:
    for spool in at(
        fresh.but(MAILSLICE_QUEUE_SHARED="false", MAILSLICE_QUEUE_SLICE_WINDOW="1s").settings
    ):
        async with open_worker(spool.settings, spool.queue) as worker:
            await worker.enqueue(mail("cleaned"), CONTENT)
            await asyncio.sleep(1.2)
            (row,) = spool.rows()
            spool.stores.tables.written.delete_partition_future(
                spool.queue, row.partition, 2**62
            ).result()
            kept = await worker.enqueue(mail("kept"), CONTENT)
            async with aclosing(worker.deliveries(4)) as deliveries:
                assert (await next_of(deliveries, 25)).item == kept
                assert (
                    await asyncio.to_thread(spool.wait_for_ready, spool.names.dead_letter_queue, 1)
                    == 1
                )
