"""Mails at the edge of what anybody sends: they pass whole, and are held in memory once."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from mailslice.codec.content import split
from mailslice.model.settings import Settings
from mailslice.worker import open_worker
from tests.services.worker.conftest import at, mail
from tests.services.worker.measured import resident_growth
from tests.services.worker.test_faults import next_of

MIB = 1 << 20


async def through_the_queue(spool: Any, sent: Any, content: bytes) -> None:
    async with (
        open_worker(spool.settings, spool.queue) as worker,
        aclosing(worker.deliveries(2)) as deliveries,
    ):
        item = await worker.enqueue(sent, content)
        delivery = await next_of(deliveries, 60)
        assert delivery.item == item
        assert delivery.item.mail.recipients == sent.recipients
        assert delivery.content == content
        await delivery.complete()
        await worker.settle()
    assert spool.live() == []
    assert spool.blob_keys() == set()


async def test_ten_thousand_recipients_pass_and_are_shown_and_fewer_of_them_remain_in_a_retry(
    spool: Any,
) -> None:
    recipients = tuple(
        f"recipient-{number:05}@a-rather-long-domain-name-{number % 100}.example"
        for number in range(10_000)
    )
    sent = mail(recipients=recipients)
    async with (
        open_worker(spool.settings, spool.queue) as worker,
        aclosing(worker.deliveries(2)) as deliveries,
    ):
        await worker.enqueue(sent, b"A: b\r\n\r\nc")
        (row,) = spool.live()
        assert row.item.mail.recipients == recipients
        await (await next_of(deliveries)).retry(recipients=recipients[5_000:])
        again = await next_of(deliveries)
        assert again.item.mail.recipients == recipients[5_000:]
        (row,) = spool.live()
        assert set(row.item.mail.recipients) == set(recipients[5_000:])
        await again.complete()


async def test_a_row_that_fills_the_connection_to_cassandra_fails_no_other_enqueue(
    spool: Any,
) -> None:
    """As large a row as Cassandra takes; where it is far away, a small one fills the socket."""
    large = mail("large", attributes={"a": b'{"value":"%b"}' % (b"x" * 12 * MIB)})
    async with open_worker(spool.settings, spool.queue) as worker:
        running = asyncio.create_task(worker.enqueue(large, b"A: b\r\n\r\nc"))
        others = 0
        while not running.done():
            small = (worker.enqueue(mail(f"m-{n}"), b"A: b\r\n\r\nc") for n in range(16))
            others += len(await asyncio.gather(*small))
        await running
        assert others


async def test_a_header_of_a_megabyte_is_a_header(spool: Any) -> None:
    header = (
        b"".join(b"X-Line-%06d: %s\r\n" % (number, b"x" * 80) for number in range(11_000)) + b"\r\n"
    )
    assert len(header) > MIB
    content = header + b"body"
    assert bytes(split(content)[0]) == header
    await through_the_queue(spool, mail(), content)


async def test_a_header_without_an_end_passes_too(spool: Any) -> None:
    await through_the_queue(spool, mail(), b"Subject: " + b"x" * MIB)


@pytest.mark.parametrize("mib", [40, pytest.param(150, marks=pytest.mark.soak)])
async def test_a_large_mail_passes_whole_and_is_in_memory_once(
    fresh: Any, tmp_path: Path, mib: int
) -> None:
    file = tmp_path / "large.eml"
    file.write_bytes(b"Subject: large\r\n\r\n" + os.urandom(mib * MIB - 100))
    for spool in at(fresh.settings):
        enqueued = await resident_growth(_enqueue, fresh, spool.queue, file)
        delivered = await resident_growth(_deliver, fresh, spool.queue, file)
    assert enqueued < mib * 2.3 + 30, "the content, and what is on its way to the store"
    assert delivered < mib * 1.3 + 40


async def _enqueue(settings: Settings, queue: Any, file: Path) -> None:
    async with open_worker(settings, queue) as worker:
        await worker.enqueue(mail(), file)


async def _deliver(settings: Settings, queue: Any, file: Path) -> None:
    async with open_worker(settings, queue) as worker, aclosing(worker.deliveries(2)) as deliveries:
        delivery = await next_of(deliveries, 100)
        assert (len(delivery.content), delivery.content[-1000:]) == await asyncio.to_thread(
            _size_and_end, file
        )
        await delivery.complete()


def _size_and_end(file: Path) -> tuple[int, bytes]:
    with file.open("rb") as opened:
        size = opened.seek(-1000, os.SEEK_END) + 1000
        return size, opened.read()
