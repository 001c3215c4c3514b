"""Enqueue, dequeue, complete, on the real stores."""

from __future__ import annotations

import asyncio
import gc
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from mailslice.admin.enqueue import enter
from mailslice.model.clock import system_clock
from mailslice.model.errors import BadInput
from mailslice.model.mail import EnqueueId, QueuedMail
from mailslice.worker import Deliveries, Delivery, consume, open_worker
from tests.services.worker.conftest import mail

NASTY = [
    b"",
    b"\n",
    b"\r\n\r\n",
    b"From: a@b\nTo: c@d\n\nbare LF\n",
    b"Subject: x\r\n\r\nbody\r\n.\r\n",
    b"no empty line at all",
    b"A: \xff\xfe\r\n\r\n\x00\x80binary\r\r\n\n",
    b"H: 1\r\n\n\r\nmixed",
]


async def take(deliveries: Deliveries, count: int, seconds: float = 15) -> list[Delivery]:
    async with asyncio.timeout(seconds):
        return [await anext(deliveries) for _ in range(count)]


async def test_content_comes_back_byte_for_byte_whatever_it_is(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        for number, content in enumerate(NASTY):
            await worker.enqueue(mail(f"m-{number}"), content)
        async with aclosing(worker.deliveries(4)) as deliveries:
            for _ in NASTY:
                (delivery,) = await take(deliveries, 1)
                number = int(delivery.item.mail.name.removeprefix("m-"))
                assert delivery.content == NASTY[number]
                await delivery.complete()
            async with asyncio.timeout(20):
                while deliveries.idle_seconds <= 0.2:  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.05)
    assert spool.blob_keys() == set()


@given(content=st.binary(max_size=3000))
@hypothesis_settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_bytes_come_back(spool: Any, content: bytes) -> None:
    async def there_and_back() -> bytes:
        async with open_worker(spool.settings, spool.queue) as worker:
            await worker.enqueue(mail(), content)
            async with aclosing(worker.deliveries(1)) as deliveries:
                (delivery,) = await take(deliveries, 1)
                await delivery.complete()
                return delivery.content

    assert asyncio.run(there_and_back()) == content


async def test_the_oldest_are_delivered_first_with_all_their_fields(spool: Any) -> None:
    sent: list[QueuedMail] = []
    async with open_worker(spool.settings, spool.queue) as worker:
        for number in range(20):
            item = mail(
                f"m-{number}",
                sender=None,
                state="bounces",
                attributes={"a": b'{"serializer":"IntSerializer","value":7}'},
                last_updated_ns=5_000_000_001,
            )
            sent.append(await worker.enqueue(item, b"A: b\r\n\r\nc"))
        async with aclosing(worker.deliveries(8)) as deliveries:
            taken = [delivery.item for delivery in await take(deliveries, 8)]
        assert sorted(taken, key=lambda item: item.mail.name) == sent[:8]


async def test_a_completed_mail_leaves_a_row_with_its_mark_and_no_blobs(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await worker.enqueue(mail(), b"A: b\r\n\r\nc")
        assert spool.blob_keys() == {item.header_blob_id, item.body_blob_id}
        assert [row.item for row in spool.live()] == [item]
        async with aclosing(worker.deliveries(4)) as deliveries:
            (delivery,) = await take(deliveries, 1)
            await delivery.complete()
            await delivery.complete()
            assert spool.marks() == {item.enqueue_id}
    assert spool.blob_keys() == set()
    assert spool.ready(spool.names.work_queue) == 0
    assert [row.item for row in spool.rows()] == [item]


async def test_a_queue_of_an_older_james_gets_its_content_start_by_a_cleanup_alone(
    spool: Any,
) -> None:
    """James 3.5 and 3.6 have browseStart alone. The hour of an enqueue would be after it (I4)."""
    tables = spool.stores.tables
    tables.browse_starts.insert_first(spool.queue, datetime(2026, 1, 1, tzinfo=UTC))
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await worker.enqueue(mail(), b"x")
        again = replace(item, enqueue_id=EnqueueId(uuid4()))
        await asyncio.to_thread(enter, spool.stores, spool.queue, again, b"x", system_clock)
    assert {row.enqueue_id for row in spool.rows()} == {item.enqueue_id, again.enqueue_id}
    assert tables.content_starts.get(spool.queue) is None


@pytest.mark.usefixtures("any_clock")
async def test_the_row_is_in_the_slice_and_bucket_that_the_headers_name(fresh: Any) -> None:
    from tests.services.worker.conftest import at

    now = datetime(2026, 11, 21, 10, 7, 33, 123000, tzinfo=UTC)
    for spool in at(
        fresh.but(MAILSLICE_QUEUE_SLICE_WINDOW="10m", MAILSLICE_QUEUE_BUCKET_COUNT="7").settings
    ):
        async with open_worker(spool.settings, spool.queue, clock=lambda: now) as worker:
            await worker.enqueue(mail("a"), b"x")
        (row,) = spool.rows()
        assert row.partition.slice_start == datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
        assert row.partition.bucket == 6  # golden/bucket-vectors.json: "a" of 7
        assert row.enqueued_time == now
        assert spool.stores.tables.browse_starts.get(spool.queue).value == row.partition.slice_start
        assert (
            spool.stores.tables.content_starts.get(spool.queue).value == row.partition.slice_start
        )
        properties, _ = spool.take(spool.names.work_queue)
        assert properties.headers == {
            "x-dead-letter-routing-key": "",
            "x-mailslice-slice": int(row.partition.slice_start.timestamp() * 1000),
            "x-mailslice-bucket": 6,
        }
        assert (properties.content_type, properties.delivery_mode, properties.priority) == (
            "text/plain",
            2,
            0,
        )
        assert properties.timestamp == int(now.timestamp())


async def test_a_file_is_enqueued_as_its_bytes(spool: Any, tmp_path: Path) -> None:
    file = tmp_path / "a.eml"
    file.write_bytes(b"A: b\n\nfrom a file")
    async with open_worker(spool.settings, spool.queue) as worker:
        await worker.enqueue(mail(), file)
        async with aclosing(worker.deliveries(4)) as deliveries:
            (delivery,) = await take(deliveries, 1)
            assert delivery.content == b"A: b\n\nfrom a file"


async def test_a_mail_that_is_too_large_is_refused_before_anything_is_written(fresh: Any) -> None:
    from tests.services.worker.conftest import at

    for spool in at(fresh.but(MAILSLICE_QUEUE_MAX_MAIL_BYTES="10").settings):
        async with open_worker(spool.settings, spool.queue) as worker:
            with pytest.raises(BadInput) as raised:
                await worker.enqueue(mail("big"), b"x" * 11)
            assert (
                str(raised.value)
                == "mail 'big' has 11 bytes; allowed are 10 (MAILSLICE_QUEUE_MAX_MAIL_BYTES)"
            )
        assert spool.blob_keys() == set()
        assert spool.rows() == []


# The last one is 9 MiB as a row, and twice that as a message.
@pytest.mark.parametrize("note", [b"x" * 17 * 2**20, b'\\"' * (9 * 2**19)], ids=["row", "message"])
async def test_a_mail_with_too_large_an_envelope_is_refused_by_its_name(
    spool: Any, note: bytes
) -> None:
    large = replace(mail("large"), attributes={"note": b'"%s"' % note})
    async with open_worker(spool.settings, spool.queue) as worker:
        with pytest.raises(BadInput, match=r"mail 'large' has an envelope of \d+ bytes") as raised:
            await worker.enqueue(large, b"A: b\n\n")
    assert type(raised.value) is BadInput
    assert spool.blob_keys() == set()
    assert spool.rows() == []


async def test_what_is_not_settled_comes_again(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        first = await worker.enqueue(mail("one"), b"1")
        second = await worker.enqueue(mail("two"), b"2")
        async with aclosing(worker.deliveries(4)) as deliveries:
            (delivery,) = await take(deliveries, 1)
            taken = delivery.item
    async with (
        open_worker(spool.settings, spool.queue) as worker,
        aclosing(worker.deliveries(4)) as deliveries,
    ):
        again = await take(deliveries, 2)
        assert taken.enqueue_id in {
            delivery.item.enqueue_id for delivery in again if delivery.redelivered
        }
        assert {delivery.item.enqueue_id for delivery in again} == {
            first.enqueue_id,
            second.enqueue_id,
        }


async def test_a_delivery_in_hand_can_be_completed_after_the_deliveries_were_closed(
    spool: Any,
) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        item = await worker.enqueue(mail(), b"1")
        async with aclosing(worker.deliveries(4)) as deliveries:
            (delivery,) = await take(deliveries, 1)
        await delivery.complete()
    assert spool.marks() == {item.enqueue_id}
    assert spool.ready(spool.names.work_queue) == 0


async def test_large_mails_take_turns_and_all_pass(fresh: Any, tmp_path: Path) -> None:
    from tests.services.worker.conftest import at

    content = b"A: b\r\n\r\n" + bytes(3_000_000)
    for spool in at(fresh.but(MAILSLICE_WORKER_MEMORY_BUDGET_MIB="8").settings):
        async with open_worker(spool.settings, spool.queue) as worker:
            await asyncio.gather(
                *(worker.enqueue(mail(f"m-{number}"), content) for number in range(5))
            )
            async with aclosing(worker.deliveries(5)) as deliveries:
                first = await anext(deliveries)
                try:
                    await asyncio.wait_for(anext(deliveries), 0.7)
                except TimeoutError:
                    pass
                else:
                    raise AssertionError("two contents of 3 MB were held with room for one")
                await first.complete()
                for _ in range(4):
                    (delivery,) = await take(deliveries, 1)
                    assert delivery.content == content
                    await delivery.complete()
        assert spool.blob_keys() == set()


async def test_a_deduplicated_blob_stays(fresh: Any) -> None:
    from tests.services.worker.conftest import at

    for spool in at(fresh.but(MAILSLICE_BLOB_STRATEGY="deduplication").settings):
        async with open_worker(spool.settings, spool.queue) as worker:
            items = [
                await worker.enqueue(mail(name), b"From: alice@example.org\r\n\r\nbody\r\n")
                for name in ("a", "b")
            ]
            assert (
                items[0].body_blob_id
                == items[1].body_blob_id
                == "Ck5SoRNWUpSR4X0COv7R5ub2pUTtl6xz4dTFz++ji4M="
            )
            async with aclosing(worker.deliveries(4)) as deliveries:
                for delivery in await take(deliveries, 2):
                    assert delivery.content == b"From: alice@example.org\r\n\r\nbody\r\n"
                    await delivery.complete()
        assert items[0].body_blob_id in spool.blob_keys()
        assert items[0].header_blob_id in spool.blob_keys()


async def test_a_mail_enqueued_with_a_delay_is_not_delivered_before_it_is_due(spool: Any) -> None:
    async with open_worker(spool.settings, spool.queue) as worker:
        began = asyncio.get_running_loop().time()
        item = await worker.enqueue(mail(), b"later", delay=timedelta(seconds=2.4))
        assert [row.item for row in spool.live()] == [item]
        assert spool.ready(spool.names.work_queue) == 0
        async with aclosing(worker.deliveries(4)) as deliveries:
            (delivery,) = await take(deliveries, 1)
            waited = asyncio.get_running_loop().time() - began
            assert delivery.item == item
            assert 2.4 <= waited < 10
            await delivery.complete()


async def test_a_consumer_lets_go_of_contents_that_are_settled(spool: Any) -> None:
    alive = 0

    async def handle(_mail: Any, _content: bytes) -> None:
        nonlocal alive
        alive = max(
            alive,
            sum(
                type(each) is Delivery and each._context is worker.context
                for each in gc.get_objects()
            ),
        )

    async with open_worker(spool.settings, spool.queue) as worker:
        await asyncio.gather(
            *(worker.enqueue(mail(f"m-{number}"), b"A: b\r\n\r\nc") for number in range(30))
        )
        gc.disable()  # what it would find is what must not be left to it
        try:
            done = await consume(worker, handle, prefetch=2, concurrency=1, most=30)
        finally:
            gc.enable()
    assert done.completed == 30
    assert alive <= 5
