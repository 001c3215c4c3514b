"""`enqueue_many` with a worker that enqueues in no time, and mails that end with an error."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from mailslice.model.mail import BlobId, EnqueueId, Mail, QueuedMail
from mailslice.stores.loop_thread import LoopThread
from mailslice.worker.sync_queue import SyncQueue


class FakeWorker:
    def __init__(self) -> None:
        self.enqueued: list[str] = []

    async def enqueue(self, mail: Mail, content: bytes, *, delay: timedelta | None) -> QueuedMail:
        await asyncio.sleep(0.05)
        self.enqueued.append(mail.name)
        return QueuedMail(EnqueueId(UUID(int=1)), mail, BlobId("h"), BlobId("b"))


@pytest.mark.parametrize("error", [KeyError("row 4"), KeyboardInterrupt()])
def test_mails_under_way_are_given_before_the_error_of_the_iterator_is_raised(
    error: BaseException,
) -> None:
    def mails() -> Iterator[tuple[Mail, bytes]]:
        for number in range(3):
            yield Mail(f"m{number}", "a@b", ("c@d",)), b""
        raise error

    loop, worker, results = LoopThread("queue"), FakeWorker(), []
    loop.start()
    try:
        opened = SyncQueue(loop, worker)  # type: ignore[arg-type]
        with pytest.raises(type(error)) as raised:
            results.extend(opened.enqueue_many(mails()))
    finally:
        loop.stop()
    assert raised.value is error
    if isinstance(error, Exception):
        assert sorted(result.mail.name for result in results) == ["m0", "m1", "m2"]
        assert all(result.item is not None for result in results)
    else:
        assert results == []


class StrangeWorker(FakeWorker):
    async def enqueue(self, mail: Mail, content: bytes, *, delay: timedelta | None) -> QueuedMail:
        if mail.name == "m0":
            raise TypeError("not an error of mailslice")
        return await super().enqueue(mail, content, delay=delay)


@pytest.mark.parametrize("drawn", ["its enqueue", "no pair"])
def test_an_error_that_is_no_answer_for_one_mail_hides_no_result_of_the_others(drawn: str) -> None:
    def mails() -> Iterator[Any]:
        for number in range(3 if drawn == "its enqueue" else 2):
            yield Mail(f"m{number + (drawn == 'no pair')}", "a@b", ("c@d",)), b""
        if drawn == "no pair":
            yield Mail("bare", "a@b", ("c@d",))

    loop, worker, results = LoopThread("queue"), StrangeWorker(), []
    loop.start()
    try:
        opened = SyncQueue(loop, worker)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            results.extend(opened.enqueue_many(mails()))
    finally:
        loop.stop()
    assert sorted(result.mail.name for result in results) == ["m1", "m2"]
    assert sorted(worker.enqueued) == ["m1", "m2"]


def test_all_mails_get_the_delay_that_is_given() -> None:
    class DelayingWorker(FakeWorker):
        async def enqueue(
            self, mail: Mail, content: bytes, *, delay: timedelta | None
        ) -> QueuedMail:
            delays.append(delay)
            return await super().enqueue(mail, content, delay=delay)

    delays: list[timedelta | None] = []
    mails = [(Mail(f"m{number}", "a@b", ("c@d",)), b"") for number in range(2)]
    loop, hour = LoopThread("queue"), timedelta(hours=1)
    loop.start()
    try:
        opened = SyncQueue(loop, DelayingWorker())  # type: ignore[arg-type]
        assert len(list(opened.enqueue_many(mails, delay=hour))) == 2
    finally:
        loop.stop()
    assert delays == [hour, hour]
