"""Quarantine on real stores: content first, one row a mail and attempt, one release.

A release happens once wherever it is cut off.
"""

import time
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest

from mailslice.admin.enqueue import publish
from mailslice.admin.mail_queue import MailQueue
from mailslice.admin.quarantine import OVER, Decided, Holder, Quarantine
from mailslice.admin.queues import create
from mailslice.bench.clearing import drop_marks
from mailslice.codec import message
from mailslice.model import crash
from mailslice.model.clock import system_clock
from mailslice.model.errors import ContentMissing, Refused, StoreUnavailable
from mailslice.model.mail import BlobId, EnqueueId
from mailslice.model.names import RabbitNames
from mailslice.model.stages import MailStage, Stage
from mailslice.stores import open_stores
from mailslice.stores.cassandra.own.quarantine import Content, State
from mailslice.stores.cassandra.own.worker_records import InFlightMail, WorkerRecord
from mailslice.stores.rabbitmq.connection import blocking_connection
from tests.contracts.making import NOW, row
from tests.contracts.tables import some_queue
from tests.killed import Killed

pytestmark = pytest.mark.new_keyspaces

HEADER, BODY = b"Subject: x\r\n\r\n", b"body \xff"
HOLDER = Holder("host:1:abc", "loaded", NOW, timedelta(minutes=11))
CLOSED = Decided("closed", "held for 11m, allowed are 10m", "tester", "run-1")
MINUTE = timedelta(minutes=1)


@pytest.fixture(scope="module")
def stores(fresh_module):
    with open_stores(fresh_module.settings) as stores:
        yield stores


class World:
    """A queue with one mail, and its quarantine."""

    def __init__(self, stores):
        self.stores = stores
        self.queue = create(stores, some_queue())
        self.item = row(self.queue, system_clock()).item
        self.item = replace(
            self.item,
            header_blob_id=BlobId(f"h-{self.item.enqueue_id}"),
            body_blob_id=BlobId(f"b-{self.item.enqueue_id}"),
        )
        stores.blobs.put(self.item.header_blob_id, HEADER)
        stores.blobs.put(self.item.body_blob_id, BODY)

    def quarantine(self, kill_at=None, clock=system_clock):
        def reached(point):
            if point == kill_at:
                raise Killed(point)

        crash.arm(reached)
        return Quarantine(self.stores, self.queue, clock, sleep=lambda _: None)

    def kept(self):
        quarantine = self.quarantine()
        return quarantine.settle(quarantine.keep(self.item, HOLDER, CLOSED))

    def own_keys(self):
        return {blob.key for blob in self.stores.own_blobs.list(f"quarantine/{self.queue}/")}

    def live(self):
        return list(MailQueue(self.stores, self.queue, system_clock).browse())

    def messages(self):
        """Those that a worker would hand out: what is marked is dropped."""
        found = []
        with blocking_connection(self.stores.settings.rabbitmq) as connection:
            channel = connection.channel()
            while (
                body := channel.basic_get(RabbitNames(self.queue).work_queue, auto_ack=True)[2]
            ) is not None:
                found.append(message.decode(body))
        return [
            item
            for item in found
            if not self.stores.tables.deleted.is_marked(self.queue, item.enqueue_id)
        ]

    def delivered_once(self):
        """The new entry, which is the only live one and the only one that comes."""
        (live,) = self.live()
        (came,) = self.messages()
        assert came.enqueue_id == live.enqueue_id != self.item.enqueue_id
        assert came.mail == replace(self.item.mail, last_updated_ns=came.mail.last_updated_ns)
        assert {came.header_blob_id, came.body_blob_id}.isdisjoint(
            {self.item.header_blob_id, self.item.body_blob_id}
        )
        assert MailQueue(self.stores, self.queue, system_clock).content(live) == HEADER + BODY
        assert self.own_keys() == set()
        assert list(self.quarantine().mails()) == []
        return live.enqueue_id


@pytest.fixture
def world(stores):
    yield World(stores)
    crash.arm(None)


def test_a_kept_mail_has_its_content_and_all_that_is_known(world):
    kept = world.kept()
    (found,) = world.quarantine().waiting()
    assert found == kept
    assert (found.state, found.action, found.content, found.size) == (
        State.KEPT,
        "closed",
        Content.KEPT,
        len(HEADER + BODY),
    )
    assert (found.worker, found.stage, found.since, found.age, found.run) == (
        "host:1:abc",
        "loaded",
        NOW,
        11 * MINUTE,
        "run-1",
    )
    assert message.decode(found.message) == world.item
    world.stores.blobs.delete_many([world.item.header_blob_id, world.item.body_blob_id])
    assert world.quarantine().content(found) == HEADER + BODY


def test_setting_aside_twice_is_one_row_and_another_attempt_another(world):
    first = world.kept()
    again = world.quarantine().keep(
        world.item, replace(HOLDER, age=20 * MINUTE), Decided("failed", "other", "x")
    )
    assert again == first
    world.quarantine().keep(
        world.item, replace(HOLDER, attempt=2), Decided("failed", "second attempt", "x"), State.KEPT
    )
    assert [(mail.attempt, mail.action) for mail in world.quarantine().mails()] == [
        (1, "closed"),
        (2, "failed"),
    ]


IN_DOUBT = Decided("failed", "nobody knows", "host:1:abc")


def to(world, *recipients):
    return replace(world.item, mail=replace(world.item.mail, recipients=recipients))


def recipients(mail):
    return message.decode(mail.message).mail.recipients


def test_a_row_that_waits_for_a_person_names_those_of_every_decision_about_the_mail(world):
    quarantine = world.quarantine()
    kept = quarantine.keep_failed(to(world, "a@x.example"), HOLDER, IN_DOUBT)
    assert quarantine.keep(world.item, HOLDER, CLOSED) == kept  # may come to nothing
    again = quarantine.extend(kept, to(world, "a@x.example", "b@x.example"), CLOSED)
    (now,) = quarantine.mails()
    assert again.message == now.message
    assert (now.state, now.action, now.why, recipients(now)) == (
        State.KEPT,
        "failed",
        f"nobody knows; {CLOSED.why}",
        ("a@x.example", "b@x.example"),
    )
    assert quarantine.settle(kept) == now  # who knows the row of before changes nothing
    assert recipients(next(quarantine.mails())) == ("a@x.example", "b@x.example")
    assert quarantine.keep(to(world, "c@x.example"), HOLDER, CLOSED, State.RECOVERING) == now
    quarantine.release(now)
    assert [row.item.mail.recipients for row in world.live()] == [("a@x.example", "b@x.example")]


@pytest.mark.parametrize("action", ["failed", "released"])
def test_what_a_run_was_recovering_is_not_withdrawn_from_under_a_worker_that_keeps_those_in_doubt(
    world, action
):
    quarantine = world.quarantine()
    of_run = quarantine.keep(
        to(world, "b@x.example"),
        HOLDER,
        Decided(action, "held", "tester", "run-1"),
        State.RECOVERING,
    )
    kept = quarantine.keep_failed(to(world, "a@x.example"), HOLDER, IN_DOUBT)
    assert not quarantine.withdraw(of_run)
    (now,) = quarantine.mails()
    assert (kept.message, now.state, now.action) == (now.message, State.KEPT, "failed")
    assert set(recipients(now)) == (
        {"a@x.example", "b@x.example"} if action == "failed" else {"a@x.example"}
    )
    assert quarantine.content(now) == HEADER + BODY


def test_those_in_doubt_wait_while_their_mail_is_being_closed(world):
    quarantine = world.quarantine()
    closing = quarantine.keep(world.item, HOLDER, CLOSED)
    with pytest.raises(StoreUnavailable, match="is closing in quarantine"):
        quarantine.keep_failed(to(world, "a@x.example"), HOLDER, IN_DOUBT)
    assert list(quarantine.mails()) == [closing]
    quarantine.withdraw(closing)
    assert quarantine.keep_failed(to(world, "a@x.example"), HOLDER, IN_DOUBT).state is State.KEPT


def assert_kept_alone(world, kept):
    """The one row, whole, and nothing beside its copy."""
    (now,) = world.quarantine().mails()
    assert (now, now.state, world.quarantine().content(now)) == (kept, State.KEPT, HEADER + BODY)
    assert len(world.own_keys()) == 2


def test_a_row_that_goes_holds_no_worker_up_and_who_still_forgets_it_takes_nothing_of_the_next(
    world,
):
    """A run that has read it before, or one that was killed as it forgot it."""
    quarantine = world.quarantine()
    going = world.stores.own.quarantine.move(
        world.queue, quarantine.keep(world.item, HOLDER, CLOSED), state=State.DISCARDING
    )
    kept = quarantine.keep_failed(to(world, "a@x.example"), HOLDER, IN_DOUBT)
    assert world.quarantine().tidy(going)
    assert_kept_alone(world, kept)
    again = world.stores.own.quarantine.move(world.queue, kept, state=State.DISCARDING)
    assert world.quarantine().tidy(going)
    assert list(quarantine.mails()) == [again]  # nor the row of one that goes, too, before its copy


def test_a_worker_that_was_killed_as_it_withdrew_the_row_of_a_run_goes_on(world):
    quarantine = world.quarantine()
    quarantine.keep(
        world.item, HOLDER, Decided("released", "held", "tester", "run-1"), State.RECOVERING
    )
    with pytest.raises(Killed):
        world.quarantine(kill_at="quarantine:emptied").keep_failed(
            to(world, "a@x.example"), HOLDER, IN_DOUBT
        )
    assert [mail.state for mail in quarantine.mails()] == [State.DISCARDING]
    assert_kept_alone(
        world, world.quarantine().keep_failed(to(world, "a@x.example"), HOLDER, IN_DOUBT)
    )


@pytest.mark.parametrize("stays", [True, False])
def test_of_two_that_keep_a_mail_at_once_each_has_a_copy_of_its_own(world, stays):
    """A run adds its row while a worker copies: withdrawn with its copy; another worker's stays."""

    def meanwhile(point):
        if point == "quarantine:copied":
            other = world.quarantine()  # nothing more is armed
            if stays:
                other.keep_failed(to(world, "a@x.example"), HOLDER, IN_DOUBT)
            else:
                other.withdraw(other.keep(world.item, HOLDER, CLOSED))

    quarantine = world.quarantine()
    crash.arm(meanwhile)
    assert_kept_alone(world, quarantine.keep_failed(to(world, "a@x.example"), HOLDER, IN_DOUBT))


def test_a_row_that_goes_as_another_is_refused_for_it_gives_way(world, monkeypatch):
    table = world.stores.own.quarantine
    there = world.kept()

    def gone(*_):
        monkeypatch.undo()
        assert table.remove(world.queue, there)

    monkeypatch.setattr(type(table), "get", gone)
    added = table.add(world.queue, replace(there, worker="another"))
    assert (added.worker, list(table.list(world.queue))) == ("another", [added])


def test_a_copy_that_cannot_be_finished_is_gone_on_with(world, monkeypatch):
    """A worker asks again every few seconds: what it leaves does not add up."""

    def away(*_):
        raise StoreUnavailable("S3 answers 503")

    put = type(world.stores.own_blobs).put
    quarantine = world.quarantine()
    with monkeypatch.context() as patched:
        patched.setattr(
            type(world.stores.own_blobs),
            "put",
            lambda self, key, content: away() if key.endswith("body") else put(self, key, content),
        )
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                quarantine.keep(world.item, HOLDER, CLOSED)
    assert len(world.own_keys()) == 1
    assert list(quarantine.waiting()) == []
    assert_kept_alone(world, quarantine.settle(quarantine.keep(world.item, HOLDER, CLOSED)))


def test_of_two_who_copy_a_mail_beside_each_other_there_is_one_row_and_one_copy(world):
    """The second goes on with the note of the first, which then finds the mail set aside."""
    others = []

    def meanwhile(point):
        if point == "quarantine:copied":
            others.append(world.quarantine().keep(world.item, HOLDER, IN_DOUBT, State.KEPT))

    quarantine = world.quarantine()
    crash.arm(meanwhile)
    kept = quarantine.keep(world.item, replace(HOLDER, worker="w2"), CLOSED)
    assert (kept, kept.action, kept.worker) == (others[0], "failed", HOLDER.worker)
    assert_kept_alone(world, kept)


@pytest.mark.parametrize("marked", [True, False])
def test_a_closing_that_was_cut_off_long_ago_does_not_hold_up_those_in_doubt(world, marked):
    world.quarantine().keep(to(world, "b@x.example"), HOLDER, CLOSED)
    if marked:
        world.stores.tables.deleted.mark_many(world.queue, [world.item.enqueue_id])
    else:
        world.stores.tables.written.insert_many(
            [replace(row(world.queue, system_clock()), item=world.item)]
        )
    later = world.quarantine(clock=lambda: system_clock() + 2 * OVER)
    kept = later.keep_failed(to(world, "a@x.example"), HOLDER, IN_DOUBT)
    assert (kept.state, later.content(kept)) == (State.KEPT, HEADER + BODY)
    assert set(recipients(kept)) == ({"a@x.example", "b@x.example"} if marked else {"a@x.example"})


def test_the_row_of_another_decision_is_not_the_one_that_was_closing(world):
    quarantine = world.quarantine()
    closing = quarantine.keep(world.item, HOLDER, CLOSED)
    renewed = quarantine.renew(closing)
    assert (renewed.state, renewed.decided > closing.decided) == (State.CLOSING, True)
    assert quarantine.renew(closing) is None
    quarantine.withdraw(renewed)
    quarantine.keep_failed(to(world, "a@x.example"), HOLDER, IN_DOUBT)
    assert quarantine.renew(renewed) is None


def test_a_mail_without_content_is_kept_as_lost_and_not_released(world):
    world.stores.blobs.delete_many([world.item.body_blob_id])
    kept = world.kept()
    assert (kept.content, kept.name) == (Content.LOST, world.item.mail.name)
    with pytest.raises(ContentMissing, match="lost"):
        world.quarantine().release(kept)
    assert world.live() == []
    assert world.quarantine().discard(kept)
    assert list(world.quarantine().mails()) == []


def test_a_release_is_a_new_entry(world):
    new_id = world.quarantine().release(world.kept())
    assert world.delivered_once() == new_id


POINTS = [
    "release:claimed",
    "release:row",
    "release:published",
    "release:recorded",
    "quarantine:emptied",
]


@pytest.mark.parametrize("point", POINTS)
def test_a_release_that_was_cut_off_and_asked_again_is_one_new_entry(world, point):
    kept = world.kept()
    with pytest.raises(Killed):
        world.quarantine(kill_at=point).release(kept)
    (again,) = world.quarantine().mails()
    world.quarantine().release(again)
    world.delivered_once()


def test_a_release_that_was_cut_off_again_and_again_is_one_new_entry(world):
    world.kept()
    for point in (
        "release:published",
        "release:claimed",
        "release:row",
        "release:published",
        "release:voided",
        "release:published",
    ):
        (mail,) = world.quarantine().mails()
        with pytest.raises(Killed):
            world.quarantine(kill_at=point).release(mail)
    (mail,) = world.quarantine().mails()
    world.quarantine().release(mail)
    world.delivered_once()


def test_a_release_whose_mail_was_handled_meanwhile_is_not_repeated(world):
    kept = world.kept()
    with pytest.raises(Killed):
        world.quarantine(kill_at="release:published").release(kept)
    (handled,) = world.messages()
    world.stores.tables.deleted.mark_many(world.queue, [handled.enqueue_id])
    (again,) = world.quarantine().mails()
    assert world.quarantine().release(again) == handled.enqueue_id
    assert (world.messages(), world.live(), list(world.quarantine().mails())) == ([], [], [])


def test_a_release_whose_mail_is_in_a_workers_hands_is_not_repeated(world):
    kept = world.kept()
    with pytest.raises(Killed):
        world.quarantine(kill_at="release:published").release(kept)
    (held,) = world.messages()
    record = WorkerRecord(
        "w",
        "h",
        1,
        NOW,
        timedelta(seconds=3),
        1,
        (InFlightMail(held.enqueue_id, "m", MINUTE, "loaded", 1, begun=True),),
    )
    world.stores.own.worker_records.save_future(world.queue, record).result()
    (again,) = world.quarantine().mails()
    assert world.quarantine().release(again) == held.enqueue_id
    assert world.messages() == []
    assert [row.enqueue_id for row in world.live()] == [held.enqueue_id]


def record_of(done=(), in_flight=(), every=timedelta(seconds=3), **more):
    mails = [InFlightMail(one, "m", MINUTE, "loaded", 1, begun=True) for one in in_flight]
    record = WorkerRecord("w", "h", 1, NOW, every, 1, tuple(mails), done=tuple(done))
    return replace(record, **more)


def test_a_release_whose_mail_was_served_in_part_meanwhile_is_not_repeated(world):
    """A retry writes the row for those who are left, then its delayed copy."""
    mail = replace(world.item.mail, recipients=("a@x.org", "b@x.org"))
    world.item = replace(world.item, mail=mail)
    kept = world.kept()
    with pytest.raises(Killed):
        world.quarantine(kill_at="release:published").release(kept)
    (came,) = world.messages()
    (live,) = world.live()
    left = replace(live.item, mail=replace(live.item.mail, recipients=("b@x.org",)))
    world.stores.tables.written.insert_many([replace(live, item=left)])
    (again,) = world.quarantine().mails()
    assert world.quarantine().release(again) == came.enqueue_id
    assert [row.item.mail.recipients for row in world.live()] == [("b@x.org",)]
    assert world.messages() == []


@pytest.mark.parametrize("killed_at", ["release:claimed", "release:voided", None])
def test_a_release_whose_mail_is_completed_before_its_void_is_not_repeated(world, killed_at):
    """Between the look and the deleted mark, or between the next id and that mark."""
    kept = world.kept()
    with pytest.raises(Killed):
        world.quarantine(kill_at="release:published").release(kept)
    (came,) = world.messages()

    def completed(point):
        if point == "release:claimed":
            world.stores.tables.deleted.mark_many(world.queue, [came.enqueue_id])
            record = record_of(done=[came.enqueue_id])
            world.stores.own.worker_records.save_future(world.queue, record).result()
        if point == killed_at:
            raise Killed(point)

    quarantine = world.quarantine()
    crash.arm(completed)
    (again,) = quarantine.mails()
    with suppress(Killed):
        assert quarantine.release(again) == came.enqueue_id
    for left in world.quarantine().mails():
        assert world.quarantine().release(left) == came.enqueue_id
    assert (world.messages(), world.live(), list(world.quarantine().mails())) == ([], [], [])


@pytest.mark.parametrize(
    ("killed_again", "staged"), [(True, False), (False, False), (True, True), (False, True)]
)
def test_a_release_whose_mail_may_be_completed_before_its_void_waits_for_a_person(
    world, killed_again, staged
):
    """The worker settled 500 other mails since: no record of it names this one."""
    kept = world.kept()
    with pytest.raises(Killed):
        world.quarantine(kill_at="release:published").release(kept)
    (came,) = world.messages()

    def completed(point):
        if point == "release:claimed":
            crash.arm(None)
            world.stores.tables.deleted.mark_many(world.queue, [came.enqueue_id])
            record = record_of(beat=9, settled=900)
            world.stores.own.worker_records.save_future(world.queue, record).result()
            if staged:
                sent = dict.fromkeys(came.mail.recipients, Stage.SENT)
                stage = MailStage(came.enqueue_id, "w", 1, 1, (), sent)
                assert world.stores.own.mail_stages.advance(world.queue, None, stage)
            if killed_again:
                raise Killed(point)

    quarantine = world.quarantine()
    crash.arm(completed)
    (again,) = quarantine.mails()
    with pytest.raises(Killed if killed_again else StoreUnavailable):
        quarantine.release(again)
    (again,) = quarantine.mails()
    if staged:
        assert world.quarantine().release(again) == came.enqueue_id
        assert (world.messages(), world.live()) == ([], [])
        return
    with pytest.raises(Refused, match=f"may have been delivered as {came.enqueue_id}"):
        world.quarantine().release(again)
    (in_doubt,) = world.quarantine().mails()
    assert (in_doubt.state, world.messages(), world.live()) == (State.KEPT, [], [])
    assert f"may have been delivered as {came.enqueue_id}" in in_doubt.why
    world.quarantine().release(in_doubt)
    world.delivered_once()


def test_a_broker_that_is_away_while_an_entry_is_voided_leaves_no_doubt(world, monkeypatch):
    def away(*_):
        raise StoreUnavailable("RabbitMQ at r:5672 does not answer")

    kept = world.kept()
    with pytest.raises(Killed):
        world.quarantine(kill_at="release:published").release(kept)
    (again,) = world.quarantine().mails()
    monkeypatch.setattr("mailslice.admin.worker_history.has_consumers", away)
    world.quarantine().release(again)
    world.delivered_once()


def test_a_release_that_stored_no_content_twice_leaves_no_doubt(world, monkeypatch):
    def full(*_):
        raise StoreUnavailable("S3 at s3:9000: 507")

    world.kept()
    with monkeypatch.context() as patch:
        patch.setattr(world.stores.blobs, "put", full)
        for _ in range(2):
            (again,) = world.quarantine().mails()
            with pytest.raises(StoreUnavailable, match="507"):
                world.quarantine().release(again)
    (again,) = world.quarantine().mails()
    world.quarantine().release(again)
    world.delivered_once()


@pytest.mark.parametrize("how", ["killed", "no room in S3"])
def test_a_release_that_ends_after_its_void_leaves_no_doubt(world, monkeypatch, how):
    def full(*_):
        raise StoreUnavailable("S3 at s3:9000: 507")

    kept = world.kept()
    with pytest.raises(Killed):
        world.quarantine(kill_at="release:published").release(kept)
    (again,) = world.quarantine().mails()
    with monkeypatch.context() as patch:
        if how != "killed":
            patch.setattr(world.stores.blobs, "put", full)
        quarantine = world.quarantine(kill_at="release:voided" if how == "killed" else None)
        with pytest.raises((Killed, StoreUnavailable)):
            quarantine.release(again)
    (again,) = world.quarantine().mails()
    world.quarantine().release(again)
    world.delivered_once()


def test_a_release_waits_for_a_handler_that_has_its_voided_entry(world, monkeypatch):
    monkeypatch.setattr("mailslice.admin.cut_off.PATIENCE", timedelta(0))
    kept = world.kept()
    with pytest.raises(Killed):
        world.quarantine(kill_at="release:published").release(kept)
    (came,) = world.messages()
    records = world.stores.own.worker_records

    def handed_out(point):
        if point == "release:claimed":
            records.save_future(world.queue, record_of(in_flight=[came.enqueue_id])).result()

    quarantine = world.quarantine()
    crash.arm(handed_out)
    (again,) = quarantine.mails()
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"a handler of .* still has 1 mails"):
            quarantine.release(again)
        (again,) = quarantine.mails()
    records.save_future(world.queue, replace(record_of(done=[came.enqueue_id]), beat=9)).result()
    assert world.quarantine().release(again) == came.enqueue_id
    assert (world.messages(), world.live()) == ([], [])


def test_a_release_that_was_cut_off_ends_beside_workers_that_seldom_write_records(
    world, monkeypatch
):
    kept = world.kept()
    with pytest.raises(Killed):
        world.quarantine(kill_at="release:published").release(kept)
    (again,) = world.quarantine().mails()
    minute = timedelta(minutes=1)
    world.stores.own.worker_records.save_future(world.queue, record_of(every=minute)).result()
    now = [time.monotonic()]
    monkeypatch.setattr("mailslice.admin.leased_lock.elapsed_seconds", lambda: now[0])

    def sleep(seconds):
        now[0] += seconds

    Quarantine(world.stores, world.queue, system_clock, sleep=sleep).release(again)
    world.delivered_once()


def test_a_mail_whose_copy_takes_longer_to_read_than_the_lock_is_released(world, monkeypatch):
    kept, now = world.kept(), [time.monotonic()]
    monkeypatch.setattr("mailslice.admin.leased_lock.elapsed_seconds", lambda: now[0])
    own = type(world.stores.own_blobs)
    get = own.get

    def slow(self, key):
        now[0] += 12.5
        return get(self, key)

    monkeypatch.setattr(own, "get", slow)
    world.quarantine().release(kept)
    world.delivered_once()


def test_two_releases_at_once_are_one(world):
    kept = world.kept()
    inner = []

    def reached(point):
        if point == "release:published":
            monkey = Quarantine(world.stores, world.queue, system_clock, sleep=lambda _: None)
            with pytest.raises(Refused):
                monkey.discard(replace(kept, state=State.RELEASING))
            inner.append(point)

    quarantine = world.quarantine()
    crash.arm(reached)
    quarantine.release(kept)
    with pytest.raises(Refused, match="gone"):
        world.quarantine().release(kept)
    assert inner
    world.delivered_once()


def test_a_discarded_mail_is_gone_and_a_discard_that_was_cut_off_is_finished(world):
    kept = world.kept()
    with pytest.raises(Killed):
        world.quarantine(kill_at="quarantine:emptied").discard(kept)
    (half,) = world.quarantine().mails()
    assert half.state is State.DISCARDING
    with pytest.raises(Refused):
        world.quarantine().release(half)
    assert world.quarantine().discard(half)
    assert (world.own_keys(), list(world.quarantine().mails()), world.live()) == (set(), [], [])


def cleaned(world, enqueue_id):
    """James, or a nightly cleanup, takes the row and the mark of a mail that is done."""
    written = world.stores.tables.written
    (at,) = {
        found
        for found in written.partitions(world.queue)
        if any(row.enqueue_id == enqueue_id for row in written.ids(world.queue, found))
    }
    written.delete_partition_future(world.queue, at, time.time_ns() // 1000).result()
    drop_marks(world.stores.tables.deleted, world.queue, [enqueue_id])


@pytest.mark.parametrize(
    ("standing", "kept"),
    [
        ("live", False),
        ("before browseStart", False),
        ("marked", True),
        ("marked and cleaned", True),
    ],
)
def test_a_closing_that_was_cut_off_is_finished_by_what_the_view_says(world, standing, kept):
    """A mark that was cleaned away counts: the mail's blobs are gone, only the copy is left."""
    quarantine = world.quarantine()
    world.stores.tables.written.insert_many(
        [replace(row(world.queue, system_clock()), item=world.item)]
    )
    closing = quarantine.keep(world.item, HOLDER, CLOSED)
    assert not quarantine.tidy(closing)
    if "marked" in standing:
        world.stores.tables.deleted.mark_many(world.queue, [world.item.enqueue_id])
    if standing == "marked and cleaned":
        cleaned(world, world.item.enqueue_id)
    if standing == "before browseStart":
        world.stores.tables.browse_starts.insert_first(world.queue, system_clock() + 600 * MINUTE)
    later = world.quarantine(clock=lambda: system_clock() + OVER + MINUTE)
    assert later.tidy(closing)
    assert [mail.state for mail in quarantine.mails()] == ([State.KEPT] if kept else [])
    assert len(world.own_keys()) == (2 if kept else 0)


def test_a_release_whose_mail_was_handled_and_cleaned_meanwhile_is_not_repeated(world):
    kept = world.kept()
    with pytest.raises(Killed):
        world.quarantine(kill_at="release:published").release(kept)
    (handled,) = world.messages()
    world.stores.tables.deleted.mark_many(world.queue, [handled.enqueue_id])
    cleaned(world, handled.enqueue_id)
    (again,) = world.quarantine().mails()
    assert world.quarantine().release(again) == handled.enqueue_id
    assert (world.messages(), world.live(), list(world.quarantine().mails()), world.own_keys()) == (
        [],
        [],
        [],
        set(),
    )


@pytest.mark.parametrize(
    "standing", ["live", "marked", "cleaned", "marked, but its release goes on"]
)
def test_a_release_that_was_cut_off_is_finished_when_its_mail_was_handled(world, standing):
    kept = world.kept()
    with pytest.raises(Killed):
        world.quarantine(kill_at="release:published").release(kept)
    (handled,) = world.messages()
    if standing != "live":
        world.stores.tables.deleted.mark_many(world.queue, [handled.enqueue_id])
    if standing == "cleaned":
        cleaned(world, handled.enqueue_id)
    (half,) = world.quarantine().mails()
    lock = f"quarantine/{world.queue}/{half.enqueue_id}/1"
    if "goes on" in standing:
        world.stores.own.locks.acquire(lock, "another", MINUTE)
    through = standing in {"marked", "cleaned"}
    assert world.quarantine().tidy(half) == through
    assert [mail.state for mail in world.quarantine().mails()] == (
        [] if through else [State.RELEASING]
    )
    assert len(world.own_keys()) == (0 if through else 2)


def test_of_who_withdraws_a_mail_and_who_sets_it_aside_anew_one_does(world):
    """A killed sweep is repeated while stuck_mails withdraws what the first one left.

    A mark after that would be of a mail without a copy.
    """
    quarantine = world.quarantine()
    listed = quarantine.keep(world.item, HOLDER, CLOSED)
    renewed = quarantine.renew(quarantine.keep(world.item, HOLDER, CLOSED))
    assert not world.quarantine().withdraw(listed)
    assert len(world.own_keys()) == 2
    with pytest.raises(Killed):
        world.quarantine(kill_at="quarantine:emptied").withdraw(renewed)
    assert world.quarantine().renew(world.quarantine().keep(world.item, HOLDER, CLOSED)) is None
    (half,) = world.quarantine().mails()
    assert world.quarantine().tidy(half)
    assert (world.own_keys(), list(world.quarantine().mails())) == (set(), [])


def later(world):
    return world.quarantine(clock=lambda: system_clock() + OVER + MINUTE)


def test_a_copy_without_a_row_is_swept_at_once(world):
    """Its row was written before it, and went before it."""
    kept = world.kept()
    table = world.stores.own.quarantine
    other = World(world.stores)
    other.queue = world.queue
    gone = other.kept()
    assert world.quarantine().sweep() == 0
    table.remove(world.queue, gone)
    assert world.quarantine().sweep() == 2
    assert_kept_alone(world, kept)


def test_a_kill_between_note_and_row_leaves_a_note_and_no_orphan(world):
    with pytest.raises(Killed):
        world.quarantine(kill_at="quarantine:copied").keep(world.item, HOLDER, CLOSED)
    assert later(world).sweep() == 0
    assert list(world.quarantine().waiting()) == []
    (noted,) = world.quarantine().mails()
    assert world.quarantine().tidy(noted)
    assert (world.own_keys(), list(world.quarantine().mails())) == (set(), [])


@pytest.mark.parametrize("point", ["quarantine:noted", "quarantine:copied"])
def test_a_keeping_that_stood_still_while_all_was_swept_keeps_the_mail_anew(world, point):
    """Paused for longer than a sweep could wait: no row points to a copy that is gone."""
    swept = []

    def paused(at):
        if at == point and not swept:
            other = later(world)  # nothing more is armed
            swept.append(other.sweep())
            assert [other.tidy(mail) for mail in other.mails()] == [True]
            assert other.sweep() == 0

    quarantine = world.quarantine()
    crash.arm(paused)
    kept = quarantine.keep_failed(to(world, "a@x.example"), HOLDER, IN_DOUBT)
    assert swept == [0]
    if point == "quarantine:noted":  # it has copied after its note went
        assert world.quarantine().sweep() == 2
    assert_kept_alone(world, kept)


def test_copies_of_another_deployment_are_not_swept(world, fresh_module):
    """Another own keyspace, our bucket and queue name: it has rows for what has none here."""
    world.kept()
    keyspace = f"{fresh_module.settings.own.keyspace}_other"
    with open_stores(fresh_module.but(MAILSLICE_OWN_KEYSPACE=keyspace).settings) as stores:
        other = World(stores)
        other.queue = world.queue
        try:
            kept = other.kept()
            for sweeping in (world, other):
                assert later(sweeping).sweep() == 0
            assert len(world.own_keys()) == 4
            stores.own.quarantine.remove(other.queue, kept)
            assert later(world).sweep() == 0
            assert later(other).sweep() == 2
        finally:
            stores.cassandra.execute(f"DROP KEYSPACE IF EXISTS {keyspace}")


def test_a_queue_name_of_odd_characters_is_no_path(stores):
    queue = create(stores, "a b%2F..\\é?")
    item = replace(row(queue).item, enqueue_id=EnqueueId(row(queue).enqueue_id))
    stores.blobs.put(item.header_blob_id, HEADER)
    stores.blobs.put(item.body_blob_id, BODY)
    quarantine = Quarantine(stores, queue, system_clock)
    kept = quarantine.settle(quarantine.keep(item, HOLDER, CLOSED))
    assert quarantine.content(kept) == HEADER + BODY
    quarantine.release(kept)
    assert [each.item.mail.name for each in MailQueue(stores, queue, system_clock).browse()] == [
        item.mail.name
    ]


def test_a_message_is_published_with_where_its_row_is(world):
    at = row(world.queue, system_clock())
    publish(world.stores, world.queue, at.item, at.partition, at.enqueued_time)
    assert [item.enqueue_id for item in world.messages()] == [at.enqueue_id]
