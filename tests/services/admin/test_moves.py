"""Mails that move to another queue: once, whole, at any kill and beside workers."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

import mailslice
from mailslice.admin import moves
from mailslice.admin.filters import MailFilter
from mailslice.admin.mail_queue import MailQueue
from mailslice.admin.moves import FOLDER_OF_MOVES, MoveOutcome, Moves
from mailslice.admin.quarantine import Quarantine
from mailslice.admin.queues import create
from mailslice.admin.worker_history import WorkerHistory
from mailslice.bench.clearing import drop_marks
from mailslice.model import crash
from mailslice.model.clock import system_clock
from mailslice.model.errors import Refused, StoreUnavailable, UnknownQueue
from mailslice.model.mail import BlobId, EnqueueId, Mail, QueuedMail, QueueName
from mailslice.model.names import RabbitNames
from mailslice.model.stages import MailStage, Stage
from mailslice.stores import Stores, open_stores
from mailslice.stores.cassandra.deleted_mails import DeletedMails
from mailslice.stores.cassandra.own import InFlightMail, QuarantinedMail, WorkerRecord
from mailslice.stores.cassandra.own.quarantine import Content, State
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.worker import open_queue
from mailslice.worker.queue_worker import worker_of
from tests.acceptance.command import Cli
from tests.services.hop_queue import consumed

CONTENT = b"Subject: tide\r\n\r\nhigh water \xff"
EVERY = MailFilter()
BEFORE_MARK = ("quarantine:noted", "quarantine:copied", "quarantine:kept", "move:decided")
IN_DOUBT = ("move:marked", "move:kept")
AFTER_MARK = (
    *("move:taken", "release:claimed", "release:row", "release:published", "release:recorded"),
    "quarantine:emptied",
)


OFTEN = ("move:decided", "move:taken")
"""A kill takes ten seconds: at the others `make soak` kills."""
DELAYING = ("release:row", "move:copied", "release:published")
"""Where the new entry of a delay differs from that of a move."""
MOVE_POINTS = {
    point
    for point in (*BEFORE_MARK, *IN_DOUBT, *AFTER_MARK, *DELAYING)
    if point.startswith("move:")
}


@pytest.fixture(scope="module")
def stores(fresh_module: Any) -> Any:
    """Workers record what they hold every second: a move waits for two records of each."""
    of_worker = fresh_module.settings.worker
    often = of_worker.model_copy(update={"record_every": timedelta(seconds=1)})
    with open_stores(fresh_module.settings.model_copy(update={"worker": often})) as opened:
        yield opened


@dataclass(frozen=True)
class Two:
    """Two queues, of which the first has mails."""

    stores: Stores
    source: QueueName
    target: QueueName

    def enqueue(self, *mails: Mail, delay: timedelta | None = None) -> list[QueuedMail]:
        async def work() -> list[QueuedMail]:
            async with worker_of(self.stores, self.source) as worker:
                return [await worker.enqueue(mail, CONTENT, delay=delay) for mail in mails]

        return asyncio.run(work())

    def view(self, queue: QueueName) -> MailQueue:
        return MailQueue(self.stores, queue, system_clock)

    def moves(self, **changes: Any) -> Moves:
        return Moves(self.stores, self.source, system_clock, **changes)

    def move(
        self, mails: MailFilter = EVERY, moves: Moves | None = None, **more: Any
    ) -> MoveOutcome:
        rows = self.view(self.source).matching(mails)
        moving = moves or self.moves(sleep=lambda _: None)
        return moving.move(rows, self.target, why="test", who="tester", **more)

    def delay(self, mails: MailFilter, lasts: timedelta) -> MoveOutcome:
        rows = self.view(self.source).matching(mails)
        due = system_clock() + lasts
        with consumed(self.stores, self.source):
            moving = self.moves(sleep=lambda _: None)
            return moving.move(rows, self.source, why="test", who="tester", due=due)

    def delivered(self, queue: QueueName) -> list[tuple[QueuedMail, bytes]]:
        """What a worker hands out and completes, until there is nothing."""

        async def work() -> list[tuple[QueuedMail, bytes]]:
            found = []
            async with (
                worker_of(self.stores, queue) as worker,
                aclosing(worker.deliveries(16)) as deliveries,
            ):
                while True:
                    try:
                        delivery = await asyncio.wait_for(anext(deliveries), 1.5)
                    except TimeoutError:
                        break
                    found.append((delivery.item, delivery.content))
                    await delivery.complete()
                await worker.settle()
            return found

        return asyncio.run(work())

    def left(self) -> int:
        """Rows and contents on their way."""
        folder = f"{FOLDER_OF_MOVES}/{self.source}/"
        rows = list(self.stores.own.moving_mails.list(self.source))
        return len(rows) + sum(1 for _ in self.stores.own_blobs.list(folder))


@pytest.fixture
def two(stores: Stores) -> Any:
    source, target = (create(stores, f"{name}-{uuid4().hex}") for name in ("from", "to"))
    yield Two(stores, source, target)
    crash.arm(None)


def mail(name: str = "m-1", **changes: Any) -> Mail:
    values = {"sender": "a@example.org", "recipients": ("b@example.net", "c@example.org")}
    return Mail(**{"name": name, **values, **changes})


def test_a_mail_is_there_whole_and_here_no_more(two: Two) -> None:
    attributes = {"colour": b'{"serializer":"StringSerializer","value":"red"}'}
    wanted, other = two.enqueue(
        mail("one", attributes=attributes, error_message="later"), mail("two")
    )
    outcome = two.move(MailFilter(name="one"))
    assert list(outcome.moved) == [wanted.enqueue_id]
    (row,) = two.view(two.target).browse()
    assert row.enqueue_id == outcome.moved[wanted.enqueue_id] != wanted.enqueue_id
    assert [one.enqueue_id for one in two.view(two.source).browse()] == [other.enqueue_id]
    # Its message in the old queue is dropped with the old blobs, which nobody refers to.
    assert [item.enqueue_id for item, _ in two.delivered(two.source)] == [other.enqueue_id]
    assert not two.stores.blobs.exists(wanted.header_blob_id)
    ((item, content),) = two.delivered(two.target)
    assert content == CONTENT
    assert item.mail == replace(wanted.mail, last_updated_ns=item.mail.last_updated_ns)
    assert {item.header_blob_id, item.body_blob_id}.isdisjoint(
        {wanted.header_blob_id, wanted.body_blob_id}
    )
    assert two.left() == 0


def test_many_mails_move_and_a_delayed_one_is_delivered_there_at_once(two: Two) -> None:
    two.enqueue(*(mail(f"m-{number}") for number in range(25)))
    two.enqueue(mail("late"), delay=timedelta(hours=1))
    assert len(two.move().moved) == 26
    assert two.view(two.source).size() == 0
    names = sorted(item.mail.name for item, _ in two.delivered(two.target))
    assert names == sorted([*(f"m-{number}" for number in range(25)), "late"])
    assert two.delivered(two.source) == []
    assert two.left() == 0


def test_a_mail_without_content_stays(two: Two) -> None:
    (item,) = two.enqueue(mail())
    two.stores.blobs.delete_many([item.body_blob_id])
    outcome = two.move()
    assert (outcome.lost, outcome.moved, outcome.gone) == (1, {}, 0)
    assert two.view(two.source).size() == 1
    assert two.left() == 0


def test_a_delayed_mail_is_delivered_whole_and_once_when_it_is_due(two: Two) -> None:
    wanted, _ = two.enqueue(mail("one"), mail("two"))
    due = system_clock() + timedelta(seconds=30)
    outcome = two.delay(MailFilter(name="one"), timedelta(seconds=30))
    assert outcome.counts == {
        **dict.fromkeys(
            ("gone", "inHandler", "contentLost", "pending", "doubtful", "finished", "later"), 0
        ),
        "delayed": 1,
    }
    assert [item.mail.name for item, _ in two.delivered(two.source)] == ["two"]
    (row,) = two.view(two.source).browse()
    assert row.enqueue_id == outcome.moved[wanted.enqueue_id]
    while not (delivered := two.delivered(two.source)):
        assert system_clock() < due + timedelta(seconds=120)
    assert system_clock() >= due - timedelta(milliseconds=500)
    ((item, content),) = delivered
    assert (item.enqueue_id, item.mail.name, content) == (row.enqueue_id, "one", CONTENT)
    assert two.delivered(two.source) == []
    assert two.left() == 0


def test_a_delay_makes_no_mail_earlier_and_takes_none_of_its_own_entries(two: Two) -> None:
    two.enqueue(*(mail(f"m-{number}") for number in range(5)))
    two.enqueue(mail("late"), delay=timedelta(hours=2))
    first = two.delay(EVERY, timedelta(hours=1))
    assert (len(first.moved), first.later) == (5, 1)
    again = two.delay(EVERY, timedelta(minutes=30))
    assert (len(again.moved), again.later) == (0, 6)
    assert len(two.delay(EVERY, timedelta(hours=3)).moved) == 6
    assert two.view(two.source).size() == 6
    assert two.delivered(two.source) == []


def test_a_delay_that_nobody_would_end_is_refused(two: Two) -> None:
    two.enqueue(mail())
    rows, due = two.view(two.source).matching(EVERY), system_clock() + timedelta(hours=1)
    with pytest.raises(Refused, match="no worker of mailslice consumes"):
        two.moves().move(rows, two.source, why="test", who="tester", due=due)
    assert len(two.delivered(two.source)) == 1


@pytest.mark.parametrize(
    "point",
    [
        "move:copied",
        *(pytest.param(point, marks=pytest.mark.soak) for point in DELAYING[::2]),
    ],
)
def test_a_delay_that_is_killed_and_asked_again_delivers_each_mail_once(
    two: Two, fresh_module: Any, point: str
) -> None:
    two.enqueue(mail())
    delay = ("queue", "delay", two.source, "--for", "1h", "--yes")
    with consumed(two.stores, two.source):
        cli_of(fresh_module, MAILSLICE_TEST_CRASH_AT=point)(*delay, code=-9)
        two.stores.own.locks.release(f"move/{two.source}", _holder(two))
        again = cli_of(fresh_module)(*delay, "--json").one
    assert (again["delayed"], again["doubtful"], again["pending"]) == (1, 0, 0)
    assert two.delivered(two.source) == []
    assert cli_of(fresh_module)("queue", "retry", two.source, "--json").one["retried"] == 1
    [(item, content)] = two.delivered(two.source)
    assert (item.mail.name, content) == (mail().name, CONTENT)
    assert two.delivered(two.source) == []
    assert two.left() == 0


def test_delaying_asks_names_the_time_and_is_recorded(two: Two, fresh_module: Any) -> None:
    two.enqueue(mail("one"), mail("two"))
    cli = Cli(fresh_module.env).inside()
    delay = ("queue", "delay", two.source)
    assert "--for" in cli(*delay, "--yes", code=2).err
    assert "at least 1m" in cli(*delay, "--for", "59s", "--yes", code=2).err
    assert "--yes" in cli(*delay, "--for", "1h", code=2).err
    assert "no worker of mailslice" in cli(*delay, "--for", "1h", "--dry-run", code=3).err
    with consumed(two.stores, two.source):
        assert cli.json(*delay, "--for", "1h", "--dry-run", "--name", "o*")[0]["delayed"] == 1
        (line,) = cli.json(*delay, "--for", "1h", "--name", "o*", "--yes", "--reason", "spam?")
        seen = cli.json(*delay, "--for", "30m", "--dry-run")[0]
    assert (line["delayed"], line["later"]) == (1, 0)
    assert (seen["delayed"], seen["later"], seen["inHandler"]) == (1, 1, 0)
    for until in ("30d", "0001-01-02T00:00:00Z"):
        assert cli.json("decisions", "list", "--queue", two.source, "--until", until) == []
    (decision, *_) = cli.json("decisions", "list", "--queue", two.source)
    assert (decision["action"], decision["mails"], decision["reason"]) == (
        "queue delay",
        1,
        "spam?",
    )
    assert decision["facts"]["due"] == line["due"]


def cli_of(fresh: Any, **more: str) -> Cli:
    """The command of this tree, whichever the environment's is."""
    return Cli(fresh.env).but(PYTHONPATH=str(Path(mailslice.__file__).parents[1]), **more)


def killed(two: Two, fresh: Any, point: str) -> None:
    cli = cli_of(fresh, MAILSLICE_TEST_CRASH_AT=point)
    cli("queue", "move", two.source, two.target, "--yes", code=-9)


def moved_again(two: Two, fresh: Any, *words: str, code: int = 0) -> dict[str, Any]:
    """The same command once more; it waits until the lock of the killed one is over."""
    answer = cli_of(fresh)(
        *("queue", "move", two.source, two.target, "--yes", "--json", *words), code=code
    )
    return answer.one


@pytest.mark.parametrize(
    "point",
    [
        point if point in OFTEN else pytest.param(point, marks=pytest.mark.soak)
        for point in (*BEFORE_MARK, *AFTER_MARK)
    ],
)
def test_killed_anywhere_and_asked_again_each_mail_is_delivered_once(
    two: Two, fresh_module: Any, point: str
) -> None:
    two.enqueue(mail())  # a second one, moved beside it, may be just at its mark: in doubt
    killed(two, fresh_module, point)
    two.stores.own.locks.release(f"move/{two.source}", _holder(two))
    again = moved_again(two, fresh_module)
    assert (again["doubtful"], again["pending"]) == (0, 0)
    assert two.delivered(two.source) == []
    [(item, content)] = two.delivered(two.target)
    assert (item.mail.name, content) == (mail().name, CONTENT)
    assert two.left() == 0


def _holder(two: Two) -> str:
    """Who died: nobody waits for its lock in a test."""
    return str(two.stores.own.locks.holder(f"move/{two.source}"))


@pytest.mark.parametrize(
    "point", [IN_DOUBT[0], *(pytest.param(point, marks=pytest.mark.soak) for point in IN_DOUBT[1:])]
)
def test_killed_right_at_its_mark_a_mail_is_in_doubt_and_moves_on_demand_alone(
    two: Two, fresh_module: Any, point: str
) -> None:
    (item,) = two.enqueue(mail())
    killed(two, fresh_module, point)
    two.stores.own.locks.release(f"move/{two.source}", _holder(two))
    again = moved_again(two, fresh_module, code=1)
    assert (again["moved"], again["doubtful"]) == (0, 1)
    assert two.delivered(two.target) == []
    traced = cli_of(fresh_module)("mail", "trace", mail().name, "--queue", two.source, "--json")
    (moving_,) = (one for one in traced.lines if one["source"] == "moving")
    assert (moving_["answer"], moving_["enqueueId"]) == ("yes", str(item.enqueue_id))
    assert moving_["says"].startswith(f"a move to {two.target}, doubtful: ")
    assert moved_again(two, fresh_module, "--accept-duplicates")["moved"] == 1
    assert len(two.delivered(two.target)) == 1
    assert two.left() == 0


def test_in_doubt_it_is_kept_also_when_a_cleanup_has_dropped_its_row_and_mark(
    two: Two, fresh_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (item,) = two.enqueue(mail())
    killed(two, fresh_module, "move:marked")
    two.stores.own.locks.release(f"move/{two.source}", _holder(two))
    assert two.delivered(two.source) == []
    rows, marks = two.stores.tables.v4, two.stores.tables.deleted
    for partition in list(rows.partitions(two.source)):
        rows.delete_partition_future(two.source, partition, time.time_ns() // 1000).result()
    drop_marks(marks, two.source, [item.enqueue_id])
    (left,) = two.stores.own.moving_mails.list(two.source)
    other = two.stores.own.moving_mails.add(
        two.source, replace(left, enqueue_id=EnqueueId(uuid4()))
    )
    scans, partitions = [], type(rows).partitions

    def scanned(table: Any, queue: QueueName) -> Any:
        scans.append(table)
        return partitions(table, queue)

    with monkeypatch.context() as patch:
        patch.setattr(type(rows), "partitions", scanned)
        assert two.move().counts["doubtful"] == 2
    assert len(scans) == len(two.stores.tables.existing), "all keys are read once for all mails"
    assert two.stores.own.moving_mails.remove(two.source, other)
    assert len(two.move(accept_duplicates=True).moved) == 1
    [(_, content)] = two.delivered(two.target)
    assert content == CONTENT
    assert two.left() == 0


def test_while_a_replica_is_away_a_mail_without_a_mark_is_in_doubt_too(
    two: Two, fresh_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That replica may have the mark alone: what is thrown away now is nowhere then."""

    def away(*_: object, **__: object) -> bool:
        raise StoreUnavailable("a replica is away")

    two.enqueue(mail())
    killed(two, fresh_module, "move:decided")
    two.stores.own.locks.release(f"move/{two.source}", _holder(two))
    with monkeypatch.context() as patch:
        patch.setattr(moves, "is_finished", away)
        outcome = two.move()
        assert (outcome.doubtful, outcome.moved, outcome.gone) == (1, {}, 0)
        assert two.left() == 3
        assert len(two.move(accept_duplicates=True).moved) == 1
    assert two.delivered(two.source) == []
    assert len(two.delivered(two.target)) == 1
    assert two.left() == 0


def test_delivered_after_a_kill_before_the_mark_it_is_not_delivered_again(
    two: Two, fresh_module: Any
) -> None:
    two.enqueue(mail())
    killed(two, fresh_module, "move:decided")
    two.stores.own.locks.release(f"move/{two.source}", _holder(two))
    assert len(two.delivered(two.source)) == 1
    again = two.move()
    assert again.moved == {}
    assert two.delivered(two.target) == []


def test_a_mail_that_a_worker_has_is_left(two: Two) -> None:
    two.enqueue(mail())
    with _sync(two) as queue, closing(queue.deliveries()) as deliveries:
        delivery = next(deliveries)
        _until_recorded(two, delivery.item.enqueue_id)
        outcome = two.move(moves=two.moves())
        assert (outcome.in_handler, outcome.moved) == (1, {})
        delivery.complete()
    assert two.delivered(two.target) == []


@pytest.mark.parametrize("completes", [True, False])
def test_a_mail_that_a_worker_gets_at_the_last_moment_is_delivered_once(
    two: Two, completes: bool
) -> None:
    """Its deleted check was before the mark: the worker's record says later what became of it."""
    two.enqueue(mail())
    with _sync(two) as queue, closing(queue.deliveries()) as deliveries:
        in_hand: list[Any] = []

        def reached(point: str) -> None:
            if point == "move:decided":
                in_hand.append(next(deliveries))

        def settle_then_sleep(seconds: float) -> None:
            while in_hand:
                delivery = in_hand.pop()
                delivery.complete() if completes else delivery.retry(after=timedelta(hours=1))
            time.sleep(seconds)

        crash.arm(reached)
        outcome = two.move(moves=two.moves(sleep=settle_then_sleep))
    assert (len(outcome.moved), outcome.gone) == ((0, 1) if completes else (1, 0))
    assert len(two.delivered(two.target)) == (0 if completes else 1)
    assert two.delivered(two.source) == []
    assert two.left() == 0


def test_what_a_fast_worker_completes_at_the_last_moment_is_not_delivered_again(
    two: Two,
) -> None:
    """It completes hundreds of others before the move looks at its records again."""
    two.enqueue(mail(), *(mail(f"other-{number}") for number in range(700)))
    with _sync(two) as queue, closing(queue.deliveries()) as deliveries:
        in_hand: list[Any] = []

        def work() -> None:
            in_hand.pop().complete()
            for _ in range(700):
                next(deliveries).complete()

        worker = threading.Thread(target=work)

        def reached(point: str) -> None:
            if point == "move:decided":
                in_hand.append(next(deliveries))
            elif point == "move:marked":
                worker.start()

        crash.arm(reached)
        outcome = two.move(MailFilter(name="m-1"), two.moves())
        worker.join(60)
    assert (outcome.moved, outcome.gone) == ({}, 1)
    assert two.delivered(two.target) == []


def test_records_of_a_worker_that_nobody_read_leave_its_mails_in_doubt(two: Two) -> None:
    """The move stood still. A worker may have completed the mail, and said so in one of them."""
    two.enqueue(mail())
    records = two.stores.own.worker_records
    records.save_future(two.source, _record(5)).result()

    def standing_still(_: float) -> None:
        records.save_future(two.source, _record(8, settled=501)).result()

    outcome = two.move(moves=two.moves(sleep=standing_still))
    assert (outcome.moved, outcome.doubtful, outcome.doubtful_names) == ({}, 1, ["m-1"])
    assert two.move().counts["doubtful"] == 1
    assert len(two.move(accept_duplicates=True).moved) == 1
    assert two.left() == 0


def test_what_a_busy_worker_completes_while_contents_are_copied_is_read(two: Two) -> None:
    """Of the second hundred, after the first hundred was marked."""
    two.enqueue(*(mail(f"m-{number}") for number in range(101)))
    records, noted = two.stores.own.worker_records, count(1)
    records.save_future(two.source, _record(5)).result()

    def busy(point: str) -> None:
        if point == "quarantine:noted" and next(noted) == 101:
            for more in range(1, 5):
                time.sleep(1.5)
                record = _record(5 + more, settled=400 * more)
                records.save_future(two.source, record).result()

    crash.arm(busy)
    outcome = two.move()
    assert (len(outcome.moved), outcome.doubtful) == (101, 0)


def test_records_that_nobody_read_between_two_thousands_say_nothing_of_the_second(
    two: Two,
) -> None:
    two.enqueue(mail(), mail("m-2"))
    records = two.stores.own.worker_records
    records.save_future(two.source, _record(5)).result()

    def busy(point: str) -> None:
        if point == "release:published":
            records.save_future(two.source, _record(50, settled=5000)).result()

    crash.arm(busy)
    outcome = two.move(moves=two.moves(sleep=lambda _: None, at_once=1))
    assert (len(outcome.moved), outcome.doubtful) == (2, 0)


def test_a_worker_that_had_mails_and_writes_no_record_may_have_completed_any(two: Two) -> None:
    two.enqueue(mail())
    another = EnqueueId(uuid4())
    two.stores.own.worker_records.save_future(two.source, _record(5, [another])).result()
    outcome = two.move()
    assert (outcome.moved, outcome.doubtful) == ({}, 1)


def test_a_mail_that_was_given_back_under_its_handler_is_left(two: Two) -> None:
    (item,) = two.enqueue(mail())
    one = _record(5, [item.enqueue_id])
    lost = replace(one, in_flight=(replace(one.in_flight[0], returned=True),))
    two.stores.own.worker_records.save_future(two.source, lost).result()
    outcome = two.move()
    assert (outcome.moved, outcome.in_handler) == ({}, 1)


def test_a_worker_that_may_have_more_mails_than_its_record_lists_may_have_any(two: Two) -> None:
    """A prefetch above a thousand: the mail may wait in the window, and be handed out later."""
    (item,) = two.enqueue(mail())
    others = [EnqueueId(uuid4()) for _ in range(1000)]
    record = replace(_record(5, others), every=timedelta(seconds=10))
    two.stores.own.worker_records.save_future(two.source, record).result()
    outcome = two.move()
    assert (outcome.moved, outcome.in_handler, outcome.doubtful) == ({}, 1, 0)
    assert not two.stores.tables.deleted.is_marked(two.source, item.enqueue_id)
    ended = replace(_record(6), ended=True)
    two.stores.own.worker_records.save_future(two.source, ended).result()
    assert list(two.move().moved) == [item.enqueue_id]


def test_what_workers_that_are_gone_completed_is_known_by_their_records(two: Two) -> None:
    (item,) = two.enqueue(mail())

    def killed_there(point: str) -> None:
        if point == "move:marked":
            raise KeyboardInterrupt

    crash.arm(killed_there)
    with pytest.raises(KeyboardInterrupt):
        two.move()
    crash.arm(None)
    soon_dead = replace(_record(5, done=(item.enqueue_id,)), every=timedelta(0))
    two.stores.own.worker_records.save_future(two.source, soon_dead).result()
    time.sleep(2.1)
    outcome = two.move(accept_duplicates=True)
    assert (outcome.moved, outcome.doubtful, two.left()) == ({}, 0, 0)


def test_a_recipient_in_doubt_waits_for_a_person_and_is_among_those_who_get_the_mail(
    two: Two,
) -> None:
    three = ("sent@x.example", "sending@x.example", "left@x.example")
    (item,) = two.enqueue(replace(mail(), recipients=three))
    stages = {three[0]: Stage.SENT, three[1]: Stage.SENDING}
    record = MailStage(item.enqueue_id, "w", 2, 1, three[2:], stages, system_clock())

    def reached(point: str) -> None:
        if point == "move:marked":
            assert two.stores.own.mail_stages.advance(two.source, None, record)

    crash.arm(reached)
    outcome = two.move()
    assert (outcome.moved, outcome.doubtful) == ({}, 1)
    crash.arm(None)
    assert len(two.move(accept_duplicates=True).moved) == 1
    ((moved, _),) = two.delivered(two.target)
    assert set(moved.mail.recipients) == {*three[1:]}


def test_of_a_mail_that_a_handler_had_for_long_nothing_is_known_afterwards(two: Two) -> None:
    (item,) = two.enqueue(mail())
    records = two.stores.own.worker_records
    records.save_future(two.source, _record(1)).result()

    def handed(point: str) -> None:
        if point == "move:marked":
            records.save_future(two.source, _record(2, [item.enqueue_id])).result()

    crash.arm(handed)
    moves = two.moves(sleep=lambda _: None, patience=timedelta(0))
    assert two.move(moves=moves).pending == 1
    records.save_future(two.source, _record(3)).result()
    outcome = two.move()
    assert (outcome.moved, outcome.pending, outcome.doubtful) == ({}, 0, 1)
    records.save_future(two.source, _record(4, done=(item.enqueue_id,))).result()
    assert two.move().counts["doubtful"] == 0
    assert two.left() == 0
    assert two.delivered(two.target) == []


def test_a_recipient_served_at_the_last_moment_is_not_served_again(two: Two) -> None:
    """A worker with stage marks had the mail, served one, and tries the other later."""
    (item,) = two.enqueue(mail())
    served, left = item.mail.recipients
    record = MailStage(item.enqueue_id, "w", 2, 1, (left,), {served: Stage.SENT}, system_clock())

    def reached(point: str) -> None:
        if point == "move:marked":
            assert two.stores.own.mail_stages.advance(two.source, None, record)

    crash.arm(reached)
    assert len(two.move().moved) == 1
    ((moved, content),) = two.delivered(two.target)
    assert (moved.mail.recipients, content) == ((left,), CONTENT)


def test_a_move_that_stood_still_marks_nothing_that_another_gave_back(two: Two) -> None:
    two.enqueue(mail())

    def reached(point: str) -> None:
        if point == "move:decided":
            crash.arm(None)
            time.sleep(1.2)
            assert two.move(MailFilter(name="another")).moved == {}

    crash.arm(reached)
    with pytest.raises(StoreUnavailable, match="took too long"):
        two.move(moves=two.moves(sleep=lambda _: None, lease=timedelta(seconds=1)))
    assert len(two.delivered(two.source)) == 1
    assert two.left() == 0


def test_a_mark_that_comes_after_another_move_gave_the_mail_back_leaves_it_in_doubt(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine stood still between the last look at the lock and the write of the mark."""
    two.enqueue(mail())
    mark_many = DeletedMails.mark_many

    def late(self: DeletedMails, *asked: Any) -> None:
        monkeypatch.setattr(DeletedMails, "mark_many", mark_many)
        time.sleep(1.2)
        assert two.move(MailFilter(name="another")).moved == {}
        assert two.left() == 0
        mark_many(self, *asked)

    monkeypatch.setattr(DeletedMails, "mark_many", late)
    outcome = two.move(moves=two.moves(sleep=lambda _: None, lease=timedelta(seconds=1)))
    assert (outcome.moved, outcome.doubtful, outcome.doubtful_names) == ({}, 1, ["m-1"])
    assert (two.delivered(two.source), two.left()) == ([], 3)
    assert two.move().doubtful == 1
    assert len(two.move(accept_duplicates=True).moved) == 1
    [(_, content)] = two.delivered(two.target)
    assert content == CONTENT
    assert two.left() == 0


def test_a_mark_that_comes_while_another_move_has_the_mail_loses_nothing(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other kept the mail anew, and sees a mark now that is not its own."""
    two.enqueue(mail())
    mark_many, number = DeletedMails.mark_many, count(1)
    decided, marked = threading.Event(), threading.Event()
    outcomes: list[MoveOutcome] = []
    other = threading.Thread(target=lambda: outcomes.append(two.move()))

    def late(self: DeletedMails, *asked: Any) -> None:
        monkeypatch.setattr(DeletedMails, "mark_many", mark_many)
        time.sleep(2.2)
        other.start()
        assert decided.wait(30)
        mark_many(self, *asked)

    def reached(point: str) -> None:
        if point == "move:decided" and next(number) == 2:
            decided.set()
            assert marked.wait(30)
        elif point == "move:marked":
            marked.set()
            time.sleep(1)

    crash.arm(reached)
    monkeypatch.setattr(DeletedMails, "mark_many", late)
    outcomes.append(two.move(moves=two.moves(sleep=lambda _: None, lease=timedelta(seconds=2))))
    other.join(60)
    crash.arm(None)
    assert len(outcomes) == 2
    assert two.delivered(two.source) == []
    assert two.move().doubtful == 1
    assert len(two.move(accept_duplicates=True).moved) == 1
    assert len(two.delivered(two.target)) == 1
    assert two.left() == 0


def test_an_error_at_one_mail_leaves_no_other_in_doubt(two: Two) -> None:
    """What is marked by then comes to its end: later nobody knows whether a worker completed it."""
    two.enqueue(mail("m-1"), mail("m-2"))
    number = count(1)

    def reached(point: str) -> None:
        if point == "move:decided" and next(number) == 2:
            raise StoreUnavailable("no answer")

    crash.arm(reached)
    outcome = MoveOutcome()
    with pytest.raises(StoreUnavailable, match="no answer"):
        two.move(outcome=outcome)
    crash.arm(None)
    assert len(outcome.moved) == 1
    again = two.move()
    assert (len(again.moved), again.doubtful) == (1, 0)
    assert len(two.delivered(two.target)) == 2
    assert two.delivered(two.source) == []
    assert two.left() == 0


def test_an_error_at_one_proof_leaves_no_other_mail_in_doubt(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That no worker completed them is known of all, and later of none."""
    monkeypatch.setattr(WorkerHistory, "has_workers", lambda _: True)  # all are proved at once
    two.enqueue(*(mail(f"m-{number}") for number in range(150)))

    def reached(point: str) -> None:
        if point == "move:taken":
            crash.arm(None)
            raise StoreUnavailable("no answer")

    crash.arm(reached)
    with pytest.raises(StoreUnavailable, match="no answer"):
        two.move()
    again = two.move()
    assert (len(again.moved), again.doubtful) == (150, 0)
    assert two.left() == 0


def cut_off(two: Two) -> None:
    """One mail is taken, and not in its new queue yet."""

    def reached(point: str) -> None:
        if point == "move:taken":
            raise StoreUnavailable("no answer")

    two.enqueue(mail("first"))
    crash.arm(reached)
    with pytest.raises(StoreUnavailable, match="no answer"):
        two.move()
    crash.arm(None)
    two.enqueue(mail("second"))


def test_a_mail_whose_new_entry_may_have_been_delivered_stays_and_stops_no_other(two: Two) -> None:
    """A move was cut off. The next one voids its entry, which a worker completes at that moment;
    the worker settled 900 mails, and its record does not name this one.
    """

    def stop(point: str) -> None:
        if point == "release:published":
            raise StoreUnavailable("no answer")

    two.enqueue(mail("first"))
    crash.arm(stop)
    with pytest.raises(StoreUnavailable, match="no answer"):
        two.move()
    (came,) = two.view(two.target).browse()

    def complete(point: str) -> None:
        if point == "release:claimed":
            crash.arm(None)
            two.stores.tables.deleted.mark_many(two.target, [came.enqueue_id])
            record = _record(9, settled=900)
            two.stores.own.worker_records.save_future(two.target, record).result()

    crash.arm(complete)
    with pytest.raises(StoreUnavailable, match="may have completed them"):
        two.move()
    two.enqueue(mail("second"))
    outcome = two.move()
    assert (len(outcome.moved), outcome.finished) == (1, {})
    assert (outcome.doubtful, outcome.doubtful_names) == (1, ["first"])
    (in_doubt,) = two.stores.own.moving_mails.list(two.source)
    assert f"may have been delivered as {came.enqueue_id}" in in_doubt.why
    assert [item.mail.name for item, _ in two.delivered(two.target)] == ["second"]
    assert two.move().doubtful == 1
    assert len(two.move(accept_duplicates=True).moved) == 1
    assert [item.mail.name for item, _ in two.delivered(two.target)] == ["first"]
    assert two.left() == 0


def without_copy(two: Two) -> None:
    folder = f"{FOLDER_OF_MOVES}/{two.source}/"
    two.stores.own_blobs.delete_many([blob.key for blob in two.stores.own_blobs.list(folder)])


def quarantined(two: Two) -> list[QuarantinedMail]:
    return list(two.stores.own.quarantine.list(two.source))


@pytest.mark.parametrize("blobs", [True, False])
def test_a_mail_whose_copy_is_gone_stops_no_other_and_goes_into_quarantine_on_demand_alone(
    two: Two, blobs: bool
) -> None:
    """Its blobs are there until a consumer of its queue drops its message. Then nothing is left."""
    cut_off(two)
    without_copy(two)
    for others in (1, 0):
        outcome = two.move()
        assert (len(outcome.moved), outcome.doubtful_names) == (others, ["first"])
        assert "quarantined" not in outcome.counts
    (row,) = two.stores.own.moving_mails.list(two.source)
    assert row.state is State.TAKEN
    if not blobs:
        two.stores.blobs.delete_many([BlobId(row.header_blob_id), BlobId(row.body_blob_id)])
    outcome = two.move(accept_duplicates=True)
    assert (outcome.counts["doubtful"], outcome.counts["quarantined"]) == (0, 1)
    assert "1 without a copy are in quarantine" in str(outcome.problem("--accept"))
    (aside,) = quarantined(two)
    assert (aside.state, aside.name, aside.moved_to) == (State.KEPT, "first", two.target)
    assert aside.content is (Content.KEPT if blobs else Content.LOST)
    assert (aside.who, "it may have been delivered" in aside.why) == ("tester", True)
    assert two.left() == 0
    assert two.move().problem("--accept") is None
    quarantine = Quarantine(two.stores, two.source, system_clock)
    if blobs:
        quarantine.release(aside)
    else:
        assert quarantine.discard(aside)
    assert quarantined(two) == []
    names = [item.mail.name for item, _ in two.delivered(two.target)]
    assert sorted(names) == (["first", "second"] if blobs else ["second"])


@pytest.mark.parametrize("point", ["quarantine:noted", "quarantine:kept", "discard:claimed"])
def test_a_mail_without_copy_is_in_quarantine_once_after_a_kill_anywhere(
    two: Two, point: str
) -> None:
    cut_off(two)
    without_copy(two)
    assert two.move().doubtful_names == ["first"]

    def stop(reached: str) -> None:
        if reached == point:
            raise StoreUnavailable("no answer")

    crash.arm(stop)
    with pytest.raises(StoreUnavailable, match="no answer"):
        two.move(accept_duplicates=True)
    crash.arm(None)
    two.move(accept_duplicates=True)
    assert [row.state for row in quarantined(two)] == [State.KEPT]
    assert two.left() == 0


def test_a_mail_that_was_kept_anew_without_content_ends_in_quarantine(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mark came after another move gave it back, and after its blobs were gone."""
    (item,) = two.enqueue(mail())
    mark_many = DeletedMails.mark_many

    def late(self: DeletedMails, *asked: Any) -> None:
        monkeypatch.setattr(DeletedMails, "mark_many", mark_many)
        time.sleep(2.4)
        assert two.move(MailFilter(name="another")).moved == {}
        two.stores.blobs.delete_many([item.header_blob_id, item.body_blob_id])
        mark_many(self, *asked)

    monkeypatch.setattr(DeletedMails, "mark_many", late)
    moving = two.moves(sleep=lambda _: None, lease=timedelta(seconds=2))
    assert two.move(moves=moving).doubtful == 1
    assert two.move().doubtful == 1
    assert two.move(accept_duplicates=True).counts["quarantined"] == 1
    assert [row.content for row in quarantined(two)] == [Content.LOST]
    assert (two.move().doubtful, two.left()) == (0, 0)


def test_what_an_earlier_move_left_is_not_counted_as_moved_to_another_queue(two: Two) -> None:
    cut_off(two)
    elsewhere = replace(two, target=create(two.stores, f"other-{uuid4().hex}"))
    outcome = elsewhere.move()
    assert [item.mail.name for item, _ in two.delivered(elsewhere.target)] == ["second"]
    assert [item.mail.name for item, _ in two.delivered(two.target)] == ["first"]
    assert (outcome.counts["moved"], outcome.counts["finished"]) == (1, 1)


def test_a_mail_for_a_queue_that_was_removed_is_named_and_nothing_is_written_for_it(
    two: Two,
) -> None:
    cut_off(two)
    elsewhere = replace(two, target=create(two.stores, f"other-{uuid4().hex}"))
    names = RabbitNames(two.target)
    with blocking_connection(two.stores.settings.rabbitmq) as connection:
        channel = connection.channel()
        channel.exchange_delete(names.exchange)
        channel.queue_delete(names.work_queue)
    with pytest.raises(UnknownQueue, match=f"`mailslice queue create {two.target}`"):
        elsewhere.move()
    assert list(two.view(two.target).browse()) == []
    assert [row.item.mail.name for row in two.view(two.source).browse()] == ["second"]
    create(two.stores, two.target)
    assert len(elsewhere.move().moved) == 1
    assert [item.mail.name for item, _ in two.delivered(two.target)] == ["first"]
    assert [item.mail.name for item, _ in two.delivered(elsewhere.target)] == ["second"]
    assert two.left() == 0


def test_a_signal_while_mails_are_marked_leaves_none_in_doubt(two: Two) -> None:
    two.enqueue(*(mail(f"m-{number}") for number in range(30)))
    number = count(1)

    def reached(point: str) -> None:
        if point == "move:decided":
            if next(number) == 10:
                os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)

    crash.arm(reached)
    outcome = MoveOutcome()
    with pytest.raises(KeyboardInterrupt):
        two.move(outcome=outcome)
    crash.arm(None)
    assert (len(outcome.moved), outcome.doubtful) == (30, 0)
    assert (len(two.move().moved), two.left()) == (0, 0)


def test_a_mail_that_was_delivered_before_its_content_is_copied_is_gone_and_not_lost(
    two: Two,
) -> None:
    two.enqueue(mail())

    def reached(point: str) -> None:
        if point == "quarantine:noted":
            crash.arm(None)
            assert len(two.delivered(two.source)) == 1

    crash.arm(reached)
    outcome = two.move()
    assert (outcome.gone, outcome.lost, outcome.moved) == (1, 0, {})


def test_contents_that_take_longer_than_the_lock_are_moved(two: Two) -> None:
    two.enqueue(mail())

    def reached(point: str) -> None:
        if point in {"quarantine:noted", "release:claimed"}:
            time.sleep(5)

    crash.arm(reached)
    moves = two.moves(sleep=lambda _: None, lease=timedelta(seconds=5))
    assert len(two.move(moves=moves).moved) == 1
    assert len(two.delivered(two.target)) == 1
    assert two.left() == 0


def test_a_mark_that_one_replica_alone_has_is_not_overlooked(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its write was not answered; a quorum of others knows nothing of it yet."""
    two.enqueue(mail())

    def reached(point: str) -> None:
        if point == "move:marked":
            raise StoreUnavailable("no answer")

    crash.arm(reached)
    with pytest.raises(StoreUnavailable):
        two.move()
    crash.arm(None)
    monkeypatch.setattr(DeletedMails, "marked", lambda *_: set())
    assert two.move(MailFilter(name="another")).doubtful == 1
    assert two.left() == 3


@pytest.mark.soak
def test_a_handler_that_does_not_end_keeps_its_mail_pending(two: Two) -> None:
    two.enqueue(mail())
    with _sync(two) as queue, closing(queue.deliveries()) as deliveries:
        in_hand: list[Any] = []

        def reached(point: str) -> None:
            if point == "move:decided":
                in_hand.append(next(deliveries))

        crash.arm(reached)
        outcome = two.move(moves=two.moves(patience=timedelta(seconds=1)))
        crash.arm(None)
        assert (outcome.pending, outcome.moved) == (1, {})
        in_hand.pop().complete()
        assert two.move(moves=two.moves()).moved == {}
    assert two.delivered(two.target) == []
    assert two.left() == 0


def test_two_do_not_move_mails_of_a_queue_at_once(two: Two) -> None:
    two.enqueue(mail())
    locks, lock = two.stores.own.locks, f"move/{two.source}"
    locks.acquire(lock, "somebody", timedelta(minutes=1))
    with pytest.raises(Refused, match="somebody else moves"):
        two.move(moves=two.moves(lease=timedelta(seconds=1)))
    locks.release(lock, "somebody")
    assert len(two.move().moved) == 1


def test_moving_asks_names_both_queues_and_is_recorded(two: Two, fresh_module: Any) -> None:
    two.enqueue(mail("one"), mail("two"))
    cli = Cli(fresh_module.env).inside()
    move = ("queue", "move", two.source, two.target)
    assert "--yes" in cli(*move, code=2).err
    assert "one queue" in cli("queue", "move", two.source, two.source, "--yes", code=2).err
    assert (
        "no mail queue 'nowhere'"
        in cli("queue", "move", two.source, "nowhere", "--yes", code=2).err
    )
    assert cli.json(*move, "--dry-run", "--name", "o*")[0]["moved"] == 1
    refused = replace(cli, terminal=True)(*move, stdin=b"n\n", code=3).err
    assert f"Move all 2 mails of {two.source} to {two.target}? [y/N]" in refused
    words = ("--name", "o*", "--yes", "--reason", "wrong route")
    assert cli.json(*move, *words)[0]["moved"] == 1
    (decision, *_) = cli.json("decisions", "list", "--queue", two.source)
    assert (decision["action"], decision["mails"]) == ("queue move", 1)
    assert decision["facts"]["to"] == two.target
    (new_id,) = decision["facts"]["ids"].values()
    assert [row.enqueue_id for row in two.view(two.target).browse()] == [EnqueueId(UUID(new_id))]


def _sync(two: Two) -> Any:
    """The queue as a program has it."""
    return open_queue(two.source, settings=two.stores.settings)


def _record(beat: int, in_flight: Sequence[EnqueueId] = (), **more: Any) -> WorkerRecord:
    """A worker's, of which the tests say when it writes."""
    mails = [InFlightMail(one, "m-1", timedelta(0), "handler", 1, begun=True) for one in in_flight]
    every = timedelta(seconds=1)
    return WorkerRecord("w", "h", 1, system_clock(), every, beat, tuple(mails), **more)


def _until_recorded(two: Two, enqueue_id: EnqueueId) -> None:
    for _ in range(100):
        records = two.stores.own.worker_records.list(two.source)
        if any(one.enqueue_id == enqueue_id for record in records for one in record.in_flight):
            return
        time.sleep(0.1)
    raise TimeoutError("the worker recorded nothing")
