"""`worker drain` against a broker double: how many mails are handled, in what order, and when it
ends.
"""

import asyncio
import json
import time
from collections import Counter, deque
from datetime import timedelta
from uuid import UUID

import pytest

from mailslice.cli.drain import Drain, DrainOptions, DrainOutcome
from mailslice.cli.output import Output
from mailslice.model.errors import StoreUnavailable
from mailslice.model.mail import BlobId, EnqueueId, Mail, QueuedMail


class FakeBroker:
    """A queue with prefetch; a retried message goes back to the head, as RabbitMQ requeues it."""

    def __init__(self, mails: int) -> None:
        self.ready = deque(range(mails))
        self.unacked: set[int] = set()
        self.completed: list[int] = []
        self.rejected: list[tuple[int, str]] = []
        self.retried: Counter[int] = Counter()
        self.fails_at: int | None = None
        self.closed = False

    def deliveries(self, prefetch, *, give_up_after):
        return FakeDeliveries(self, prefetch)


class FakeDeliveries:
    def __init__(self, broker, prefetch):
        self.broker, self.prefetch, self.last = broker, prefetch, time.monotonic()

    @property
    def idle_seconds(self):
        return time.monotonic() - self.last

    def __aiter__(self):
        return self

    async def __anext__(self):
        # The double has nobody who could set an event.
        while not self.broker.ready or len(self.broker.unacked) >= self.prefetch:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        self.last = time.monotonic()
        number = self.broker.ready.popleft()
        self.broker.unacked.add(number)
        return FakeDelivery(self.broker, number)

    async def aclose(self):
        self.broker.closed = True
        self.broker.ready.extendleft(sorted(self.broker.unacked, reverse=True))
        self.broker.unacked.clear()


class FakeDelivery:
    redelivered = False

    def __init__(self, broker, number):
        self.broker, self.number = broker, number
        self.content = b"x\r\n\r\n"
        self.item = QueuedMail(
            EnqueueId(UUID(int=number)),
            Mail(f"m{number}", None, ("a@b.example",)),
            BlobId("h"),
            BlobId("b"),
        )

    async def complete(self):
        await asyncio.sleep(0.001)
        if self.broker.fails_at == self.number:
            raise StoreUnavailable("Cassandra at 127.0.0.1:9 does not answer")
        self.broker.unacked.remove(self.number)
        self.broker.completed.append(self.number)

    async def retry(self):
        await asyncio.sleep(0.001)
        self.broker.unacked.remove(self.number)
        self.broker.retried[self.number] += 1
        self.broker.ready.appendleft(self.number)

    async def reject(self, reason):
        self.broker.unacked.remove(self.number)
        self.broker.rejected.append((self.number, reason))


async def drain(broker, limit=None, outcome=DrainOutcome.SUCCESS, idle=0.4, prefetch=8):
    await asyncio.wait_for(
        Drain(
            broker,
            DrainOptions(limit, outcome, timedelta(seconds=idle), prefetch, "why"),
            Output(as_json=True),
        ).run(),
        20,
    )


@pytest.mark.parametrize(
    ("mails", "limit", "handled"), [(10, 3, 3), (10, 10, 10), (3, 10, 3), (0, 5, 0), (30, None, 30)]
)
async def test_at_most_n_are_completed_and_the_rest_stays(mails, limit, handled, capsys):
    broker = FakeBroker(mails)
    await drain(broker, limit)
    assert sorted(broker.completed) == list(range(handled))
    assert sorted(broker.ready) == list(range(handled, mails))
    assert broker.closed
    assert len(capsys.readouterr().out.splitlines()) == handled


async def test_it_ends_without_waiting_for_idle_when_n_are_done():
    broker = FakeBroker(5)
    begun = time.monotonic()
    await drain(broker, limit=5, idle=60)
    assert time.monotonic() - begun < 60


async def test_an_idle_queue_ends_it_after_idle():
    begun = time.monotonic()
    await drain(FakeBroker(0), idle=0.5)
    assert time.monotonic() - begun >= 0.5


async def test_retry_with_a_number_gives_every_mail_its_turn_first():
    broker = FakeBroker(5)
    await drain(broker, limit=5, outcome=DrainOutcome.RETRY, prefetch=5)
    assert broker.retried == Counter(range(5))
    assert sorted(broker.ready) == list(range(5))


async def test_retry_of_one_mail_ends_after_n():
    broker = FakeBroker(1)
    await drain(broker, limit=4, outcome=DrainOutcome.RETRY)
    assert broker.retried == {0: 4}
    assert list(broker.ready) == [0]


async def test_retry_without_a_number_takes_each_mail_once_and_ends():
    broker = FakeBroker(6)
    await drain(broker, outcome=DrainOutcome.RETRY, prefetch=8)
    assert broker.retried == Counter(range(6))
    assert sorted(broker.ready) == list(range(6))


async def test_reject_passes_the_reason():
    broker = FakeBroker(2)
    await drain(broker, limit=2, outcome=DrainOutcome.REJECT)
    assert sorted(broker.rejected) == [(0, "why"), (1, "why")]


async def test_a_store_that_dies_in_the_middle_is_raised_and_only_what_was_completed_has_a_line(
    capsys,
):
    broker = FakeBroker(20)
    broker.fails_at = 7
    with pytest.raises(StoreUnavailable):
        await drain(broker)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted(UUID(line["enqueueId"]).int for line in lines) == sorted(broker.completed)
    assert 7 in broker.ready


async def test_the_line_of_a_mail(capsys):
    await drain(FakeBroker(1), limit=1)
    assert json.loads(capsys.readouterr().out) == {
        "enqueueId": "00000000-0000-0000-0000-000000000000",
        "name": "m0",
        "sender": None,
        "recipients": ["a@b.example"],
        "state": "root",
        "attributes": {},
        "sha256": "5ffb1299c251e89766c7448c6d4609b9be1b5a07143345552c6da2e9d87ff025",
        "bytes": 5,
        "redelivered": False,
        "outcome": "success",
    }
