"""`open_queue` and `consume` at their edges: ends, errors, bounds, threads, forks."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from mailslice.admin.queues import create
from mailslice.model.errors import BadInput, StoreUnavailable, UnknownQueue
from mailslice.model.mail import Mail
from mailslice.worker import Reject, consume, open_queue, open_worker, view_of
from tests.acceptance.proxy import Proxy
from tests.services.worker.conftest import Place4Queue, at, mail

IDLE = timedelta(seconds=0.7)


@pytest.fixture(scope="module")
def shared(fresh_module: Any) -> Iterator[Place4Queue]:
    yield from at(fresh_module.settings)


@pytest.fixture
def spool(shared: Place4Queue, request: pytest.FixtureRequest) -> Place4Queue:
    """A queue of the test's own in stores that the module shares."""
    return Place4Queue(
        shared.settings, shared.stores, create(shared.stores, request.node.name[:100])
    )


def put(queue: Any, count: int) -> None:
    assert [
        each.error
        for each in queue.enqueue_many(
            (mail(f"m-{number}"), b"A: b\r\n\r\nc") for number in range(count)
        )
    ] == [None] * count


def eventually(true: Any, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_unknown_queue_is_named_and_no_thread_stays(shared: Place4Queue) -> None:
    with pytest.raises(UnknownQueue, match="'nosuch'"), open_queue("nosuch", shared.settings):
        pass
    with pytest.raises(BadInput, match="'a/b'"), open_queue("a/b", shared.settings):
        pass
    assert [
        thread.name for thread in threading.enumerate() if thread.name.startswith("queue ")
    ] == []


def test_a_closed_queue_says_so(spool: Place4Queue) -> None:
    with open_queue(spool.queue, spool.settings) as queue:
        left = queue.deliveries()
    with pytest.raises(BadInput, match="is closed"):
        queue.enqueue(mail(), b"x")
    with pytest.raises(BadInput, match="is closed"):
        next(left)
    queue.stop()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"prefetch": 0}, "prefetch=0"),
        ({"prefetch": 65_536}, "prefetch=65536"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"idle": 1}, "idle=1"),
    ],
)
def test_what_consume_cannot_do_is_told_at_once(
    spool: Place4Queue, given: dict[str, Any], words: str
) -> None:
    with open_queue(spool.queue, spool.settings) as queue:
        with pytest.raises(BadInput, match=words):
            queue.consume(lambda _mail, _content: None, **given)
        if "concurrency" not in given:
            with pytest.raises(BadInput, match=words):
                next(queue.deliveries(**given))


def test_many_threads_share_one_queue(spool: Place4Queue) -> None:
    with open_queue(spool.queue, spool.settings) as queue:
        threads = [threading.Thread(target=put, args=(queue, 5)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert queue.view.size() == 30


def test_of_many_mails_the_bad_ones_are_given_with_their_errors_and_the_rest_goes_on(
    spool: Place4Queue, tmp_path: Path
) -> None:
    (tmp_path / "good.eml").write_bytes(b"A: b\r\n\r\nfrom a file")
    mails: list[tuple[Mail, Any]] = [
        (mail("good"), b"x"),
        (mail("nobody", recipients=()), b"x"),
        (mail("gone"), tmp_path / "gone.eml"),
        (mail("file"), tmp_path / "good.eml"),
    ]
    mails.append((mail("text"), "x"))
    with open_queue(spool.queue, spool.settings) as queue:
        found = {each.mail.name: each for each in queue.enqueue_many(mails)}
        assert isinstance(found["nobody"].error, BadInput)
        assert isinstance(found["text"].error, BadInput)
        assert isinstance(found["gone"].error, FileNotFoundError)
        assert sorted(row.item.mail.name for row in queue.view.browse()) == ["file", "good"]
    assert found["file"].item is not None
    assert found["gone"].item is None


def test_many_mails_are_drawn_as_there_is_room(spool: Place4Queue) -> None:
    drawn = 0

    def mails() -> Iterator[tuple[Mail, bytes]]:
        nonlocal drawn
        for number in range(40):
            drawn += 1
            yield mail(f"m-{number}"), b"x"

    with open_queue(spool.queue, spool.settings) as queue:
        results = queue.enqueue_many(mails(), in_flight=4)
        assert drawn == 0
        for given, _ in enumerate(results, start=1):
            assert drawn <= given + 4
        assert queue.view.size() == given == 40
        with pytest.raises(BadInput, match="in_flight=0"):
            queue.enqueue_many([], in_flight=0)


def test_when_a_store_goes_away_no_more_mails_are_drawn_and_each_that_was_is_told(
    fresh_module: Any, spool: Place4Queue
) -> None:
    world = urlsplit(fresh_module.env["MAILSLICE_S3_ENDPOINT"])
    proxy = Proxy((world.hostname, world.port))
    settings = fresh_module.but(
        MAILSLICE_S3_ENDPOINT=f"http://127.0.0.1:{proxy.port}", MAILSLICE_S3_TIMEOUT="2s"
    ).settings
    told = []

    def mails() -> Iterator[tuple[Mail, bytes]]:
        for number in range(1000):
            if number == 10:
                proxy.cut()
            yield mail(f"m-{number}"), b"x"

    with open_queue(spool.queue, settings) as queue:
        with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{proxy.port}"):
            told.extend(queue.enqueue_many(mails(), in_flight=4))
        assert len(told) < 30
        done = {each.mail.name for each in told if each.error is None}
        assert {row.item.mail.name for row in queue.view.browse()} == done
        assert {f"m-{number}" for number in range(6)} <= done


def test_consume_ends_after_so_many_and_gives_back_what_it_fetched_beyond(
    spool: Place4Queue,
) -> None:
    names = []
    with open_queue(spool.queue, spool.settings) as queue:
        put(queue, 9)
        done = queue.consume(lambda each, _content: names.append(each.name), most=4, prefetch=64)
        assert (done.completed, done.total, len(set(names))) == (4, 4, 4)
        eventually(lambda: spool.ready(spool.names.work_queue) == 5)
        assert queue.consume(lambda *_: None, idle=IDLE).completed == 5
        assert queue.consume(lambda *_: None, idle=IDLE).total == 0
        with pytest.raises(BadInput, match="most=0"):
            queue.consume(lambda *_: None, most=0)
        with pytest.raises(BadInput, match="cannot be called as"):
            queue.consume(lambda: None)


def test_the_next_mail_has_its_time_after_a_long_handler_where_one_is_fetched_at_once(
    fresh_module: Any, spool: Place4Queue
) -> None:
    """It comes after the acknowledgement; that the queue gave nothing before that says nothing."""
    url = urlsplit(fresh_module.env["MAILSLICE_RABBITMQ_URL"])
    proxy = Proxy((url.hostname, url.port))
    proxy.pause = 0.1
    there = url._replace(netloc=f"{url.username}:{url.password}@127.0.0.1:{proxy.port}").geturl()
    settings = fresh_module.but(MAILSLICE_RABBITMQ_URL=there).settings
    with open_queue(spool.queue, settings) as queue:
        put(queue, 2)
        done = queue.consume(lambda *_: time.sleep(1.5), prefetch=1, concurrency=1, idle=IDLE)
        assert done.completed == 2
        put(queue, 2)
        for delivery in queue.deliveries(prefetch=1, idle=IDLE):
            time.sleep(1.5)
            delivery.complete()
    assert spool.live() == []


def test_stop_lets_running_handlers_end_and_gives_the_rest_back(spool: Place4Queue) -> None:
    begun, leave, results = threading.Event(), threading.Event(), []

    def slow(_mail: Mail, _content: bytes) -> None:
        begun.set()
        leave.wait(60)

    with open_queue(spool.queue, spool.settings) as queue:
        put(queue, 6)
        consuming = threading.Thread(
            target=lambda: results.append(queue.consume(slow, concurrency=1, prefetch=3))
        )
        consuming.start()
        assert begun.wait(30)
        queue.stop()
        eventually(lambda: spool.ready(spool.names.work_queue) == 5)
        assert consuming.is_alive()
        leave.set()
        consuming.join(30)
        assert results[0].completed == 1
        assert list(queue.deliveries()) == []
    assert len(spool.live()) == 5


def test_leaving_the_with_ends_a_consumer_of_another_thread(spool: Place4Queue) -> None:
    begun = threading.Event()
    with open_queue(spool.queue, spool.settings) as queue:
        put(queue, 1)
        consuming = threading.Thread(target=queue.consume, args=(lambda *_: begun.set(),))
        consuming.start()
        assert begun.wait(30)
    consuming.join(30)
    assert not consuming.is_alive()
    assert spool.live() == []


def test_a_handler_that_fails_is_counted_and_its_mail_waits(spool: Place4Queue) -> None:
    def handle(each: Mail, _content: bytes) -> Reject | None:
        if each.name == "m-0":
            raise RuntimeError("no")
        return Reject("test") if each.name == "m-1" else None

    with open_queue(spool.queue, spool.settings) as queue:
        put(queue, 3)
        done = queue.consume(handle, idle=IDLE)
        assert (done.completed, done.retried, done.rejected, done.failures) == (1, 1, 1, 1)
        assert [
            row.item.mail.name for row in queue.view.browse() if row.item.mail.name == "m-0"
        ] == ["m-0"]
    assert spool.wait_for_ready(spool.names.dead_letter_queue, 1) == 1


def test_a_plain_handler_may_enqueue_and_an_async_one_is_told_why_it_cannot(
    spool: Place4Queue,
) -> None:
    said = []
    with open_queue(spool.queue, spool.settings) as queue:

        async def on_the_loop(_mail: Mail, _content: bytes) -> None:
            try:
                queue.enqueue(mail("never"), b"x")
            except BadInput as error:
                said.append(str(error))

        put(queue, 2)
        queue.consume(lambda *_: queue.enqueue(mail("more"), b"y") and None, most=1)
        assert max(row.item.mail.name for row in queue.view.browse()) == "more"
        queue.consume(on_the_loop, most=1)
    assert "its own event loop" in said[0]


def test_an_iterator_that_is_left_gives_back_what_it_fetched_and_the_rest_can_be_settled(
    spool: Place4Queue,
) -> None:
    with open_queue(spool.queue, spool.settings) as queue:
        put(queue, 5)
        delivery = next(queue.deliveries())  # the iterator is let go at once
        eventually(lambda: spool.ready(spool.names.work_queue) == 4)
        delivery.complete()
        again = [each for each in queue.deliveries(idle=IDLE) if each.complete() is None]
        assert len(again) == 4
        assert delivery.item.enqueue_id not in {each.item.enqueue_id for each in again}
    assert spool.live() == []


def test_a_delayed_mail_can_be_flushed(spool: Place4Queue) -> None:
    with open_queue(spool.queue, spool.settings) as queue:
        queue.enqueue(mail(), b"x", delay=timedelta(hours=1))
        assert list(queue.deliveries(idle=IDLE)) == []
        assert queue.flush() == 1
        for delivery in queue.deliveries():
            delivery.reject("test")
            break
    assert spool.wait_for_ready(spool.names.dead_letter_queue, 1) == 1


def test_a_fork_is_told_to_open_its_own(spool: Place4Queue) -> None:
    with open_queue(spool.queue, spool.settings) as queue:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                queue.enqueue(mail(), b"x")
            except BadInput as error:
                os.write(writing, str(error).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert b"open it after the fork" in os.read(reading, 1000)
        os.close(reading)
        os.close(writing)
        queue.enqueue(mail(), b"x")


def test_a_fork_in_the_middle_of_many_mails_can_end(spool: Place4Queue) -> None:
    mails = ((mail(f"m-{number}"), b"A: b\r\n\r\nc") for number in range(20))
    with open_queue(spool.queue, spool.settings) as queue:
        results = queue.enqueue_many(mails)
        next(results)
        child = os.fork()
        if child == 0:
            results.close()
            os._exit(7)
        try:
            eventually(lambda: os.waitpid(child, os.WNOHANG) != (0, 0))
        except AssertionError:
            os.kill(child, signal.SIGKILL)
            raise
        assert len([*results]) == 19


INTERRUPTED = """
from mailslice.worker import open_queue
import time

def handle(mail, content):
    print("begun", flush=True)
    time.sleep(1.5)

with open_queue("{queue}") as queue:
    try:
        queue.consume(handle)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def test_ctrl_c_ends_consume_and_the_mail_goes_back(spool: Place4Queue, fresh_module: Any) -> None:
    with open_queue(spool.queue, spool.settings) as queue:
        put(queue, 1)
    code = INTERRUPTED.format(queue=spool.queue)
    with subprocess.Popen(
        [sys.executable, "-c", code], env=fresh_module.environ, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "interrupted\n"
            assert process.wait(30) == 0
        finally:
            process.kill()
    assert len(spool.live()) == 1
    eventually(lambda: spool.ready(spool.names.work_queue) == 1)


async def test_a_cancelled_consume_gives_back_what_it_held(spool: Place4Queue) -> None:
    begun = asyncio.Event()

    async def for_ever(_mail: Mail, _content: bytes) -> None:
        begun.set()
        await asyncio.sleep(3600)

    async with open_worker(spool.settings, spool.queue) as worker:
        for number in range(3):
            await worker.enqueue(mail(f"m-{number}"), b"x")
        consuming = asyncio.create_task(consume(worker, for_ever))
        async with asyncio.timeout(30):
            await begun.wait()
            consuming.cancel()
            await asyncio.wait({consuming})
        assert consuming.cancelled()
        done = await consume(worker, lambda *_: None, most=3)
        assert done.completed == 3
        assert await asyncio.to_thread(view_of(worker).size) == 0
