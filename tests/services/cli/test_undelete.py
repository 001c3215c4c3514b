"""Deleted mails come back: once, whole, whatever was killed, and as long as they are kept."""

from __future__ import annotations

import asyncio
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import chain
from typing import Any
from uuid import uuid4

import pytest

from mailslice.admin.deletions import (
    DeletedMail,
    Deletion,
    Undeleted,
    deleted_mails,
    deleted_runs,
    undelete,
)
from mailslice.admin.deletions.deletion import delete_and_keep
from mailslice.admin.deletions.packs import DELETED_PREFIX, expire
from mailslice.admin.mail_queue import MailQueue
from mailslice.admin.queues import create
from mailslice.duties.blob_gc.sources import OwnBucket
from mailslice.model import crash
from mailslice.model.clock import system_clock
from mailslice.model.errors import BadSetting, MailsliceError, Refused, StoreUnavailable
from mailslice.model.mail import BlobId, EnqueueId, Mail, QueuedMail, QueueName
from mailslice.model.names import file_name
from mailslice.model.stages import MailStage, Stage
from mailslice.stores import Stores, open_stores
from mailslice.stores.cassandra.own import InFlightMail, WorkerRecord
from mailslice.worker.queue_worker import worker_of
from tests.acceptance.command import Cli, Inside
from tests.killed import Killed

CONTENT = b"Subject: tide\r\n\r\nhigh water \xff"
LARGE = b"Subject: flood\r\n\r\n" + b"\xffwater\r\n" * 20_000
BEFORE_MARK = ("undo:kept", "undo:noted")
AFTER_MARK = ("delete:marked", "undo:marked")
UNDELETE_POINTS = (
    *("undelete:claimed", "undelete:blobs", "undelete:rows", "undelete:entered"),
    *("undelete:published", "undelete:recorded"),
)
CLAIMED_ANEW, VOIDED = "undelete:claimed-anew", "undelete:voided"
"""Of a mail whose undelete was killed before."""
DAY = timedelta(days=1)


def kill_at(point: str) -> None:
    def reached(name: str) -> None:
        if name == point:
            crash.arm(None)
            raise Killed

    crash.arm(reached)


@pytest.fixture(scope="module")
def stores(fresh_module: Any) -> Any:
    with open_stores(fresh_module.settings) as opened:
        yield opened


@dataclass(frozen=True)
class Spool:
    """A queue of its own, and the command line on it."""

    stores: Stores
    queue: QueueName
    cli: Inside

    @property
    def view(self) -> MailQueue:
        return MailQueue(self.stores, self.queue, system_clock)

    def names(self) -> list[str]:
        return sorted(row.item.mail.name for row in self.view.browse())

    def enqueue(self, *mails: Mail, content: bytes = CONTENT) -> list[QueuedMail]:
        async def work() -> list[QueuedMail]:
            async with worker_of(self.stores, self.queue) as worker:
                return list(
                    await asyncio.gather(*(worker.enqueue(mail, content) for mail in mails))
                )

        return asyncio.run(work())

    def clear(self) -> Deletion:
        deletion = Deletion("tester", "test")
        self.view.clear(deletion)
        return deletion

    def deleted(self, **more: Any) -> list[DeletedMail]:
        lists = deleted_mails(self.stores, self.queue, system_clock(), **more)
        return list(chain.from_iterable(lists))

    def undelete(self, run: str | None = None, *, accept_duplicates: bool = True) -> Undeleted:
        outcome = Undeleted()
        mails = deleted_mails(self.stores, self.queue, system_clock(), run=run)
        undelete(
            *(self.stores, self.queue, system_clock, mails, outcome),
            accept_duplicates=accept_duplicates,
            sleep=lambda _: None,
        )
        return outcome

    def delivered(self, expected: int) -> list[tuple[QueuedMail, bytes]]:
        """What a worker hands out and completes, until nothing follows what is expected."""

        async def work() -> list[tuple[QueuedMail, bytes]]:
            found = []
            async with (
                worker_of(self.stores, self.queue) as worker,
                aclosing(worker.deliveries(16)) as deliveries,
            ):
                with suppress(TimeoutError):
                    while True:
                        patience = 20.0 if len(found) < expected else 0.5
                        delivery = await asyncio.wait_for(anext(deliveries), patience)
                        found.append((delivery.item, delivery.content))
                        await delivery.complete()
                await worker.settle()
            return found

        return asyncio.run(work())


@pytest.fixture
def spool(stores: Stores, fresh_module: Any) -> Any:
    queue = create(stores, f"spool-{uuid4().hex}")
    yield Spool(stores, queue, Inside(fresh_module.env, spool=queue))
    crash.arm(None)


def mail(name: str = "m-1", **changes: Any) -> Mail:
    values = {"sender": "a@example.org", "recipients": ("b@example.net", "c@example.org")}
    return Mail(**{"name": name, **values, **changes})


def drop_blobs(spool: Spool, *items: QueuedMail) -> None:
    """As James does when it drops the message of a deleted mail."""
    spool.stores.blobs.delete_many(
        blob for item in items for blob in (item.header_blob_id, item.body_blob_id)
    )


def test_by_command_a_deleted_mail_comes_back_whole_once_and_the_decisions_say_so(
    spool: Spool,
) -> None:
    attributes = {"colour": b'{"serializer":"StringSerializer","value":"red"}'}
    wanted, other = spool.enqueue(
        mail("one", attributes=attributes, error_message="later"), mail("two")
    )
    cli = spool.cli
    words = ("queue", "delete", "spool", "--name", "one", "--yes", "--reason", "spring")
    answer = cli(*words, "--json")
    run = answer.one["run"]
    assert answer.one["deleted"] == 1
    assert answer.one["restorableUntil"] > system_clock().isoformat()
    assert f"undo: mailslice queue undelete spool --run {run}" in answer.err
    drop_blobs(spool, wanted)
    (line,) = cli.json("queue", "deleted", "spool")
    assert (line["enqueueId"], line["name"], line["sender"], line["recipients"]) == (
        *(str(wanted.enqueue_id), "one", "a@example.org", 2),
    )
    assert (line["run"], line["bytes"], line["reason"]) == (run, len(CONTENT), "spring")
    assert line["until"] == answer.one["restorableUntil"]
    assert cli.json("queue", "deleted", "spool", "--name", "two") == []
    (summary,) = cli.json("queue", "deleted", "spool", "--runs")
    assert (summary["run"], summary["mails"], summary["cutOff"]) == (run, 1, False)
    undo = ("queue", "undelete", "spool", "--run", run, "--reason", "wrong ones")
    no = replace(cli, terminal=True)(*undo, stdin=b"no\n", code=3).err
    assert "Bring 1 mails back into" in no
    (back,) = cli.json(*undo)
    assert (back["undeleted"], back["already"]) == (1, 0)
    (again,) = cli.json(*undo)
    assert (again["undeleted"], again["already"]) == (0, 1)
    (line,) = cli.json("queue", "deleted", "spool")
    assert back["ids"] == {str(wanted.enqueue_id): line["undeletedAs"]}
    delivered = {item.mail.name: (item, content) for item, content in spool.delivered(2)}
    item, content = delivered["one"]
    assert sorted(delivered) == ["one", "two"]
    assert content == CONTENT
    assert item.mail == replace(wanted.mail, last_updated_ns=item.mail.last_updated_ns)
    assert str(item.enqueue_id) == line["undeletedAs"] != str(wanted.enqueue_id)
    assert delivered["two"][0].enqueue_id == other.enqueue_id
    decisions = cli.json("decisions", "list", "--queue", "spool")
    told = [(one["action"], one["mails"], one["reason"], one["run"]) for one in decisions]
    assert told[:3] == [
        ("queue undelete", 0, "wrong ones", run),
        ("queue undelete", 1, "wrong ones", run),
        ("queue delete", 1, "spring", run),
    ]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("undelete", "spool", "--yes"), "give at least one of --run"),
        (("undelete", "spool", "--older-than", "1d", "--yes"), "--older-than only narrows"),
        (("undelete", "spool", "--run", "tuesday", "--yes"), "'tuesday' of spool is not kept"),
        (("deleted", "spool", "--run", "tuesday"), "allowed is a run that `mailslice queue"),
        (("deleted", "spool", "--runs", "--name", "one"), "give no filter"),
        (("undelete", "spool", "--id", "tide", "--yes"), "not an enqueue id"),
    ],
)
def test_what_cannot_be_brought_back_is_refused(spool: Spool, words: Any, why: str) -> None:
    assert why in spool.cli("queue", *words, code=2).err


def test_a_store_that_is_away_keeps_every_mail_in_its_queue_unless_none_is_to_be_kept(
    spool: Spool,
) -> None:
    spool.enqueue(mail())
    away = spool.cli.but(MAILSLICE_S3_ENDPOINT="http://127.0.0.1:9", MAILSLICE_S3_TIMEOUT="300ms")
    away("queue", "clear", "spool", "--yes", code=4)
    assert spool.names() == ["m-1"]
    answer = away("queue", "clear", "spool", "--yes", "--no-undo", "--json")
    assert answer.one == {
        "queue": "spool",
        "deleted": 1,
        "run": None,
        "restorableUntil": None,
        "contentLost": 0,
    }
    assert (spool.names(), spool.deleted()) == ([], [])


def test_switched_off_nothing_is_kept(spool: Spool) -> None:
    spool.enqueue(mail())
    off = spool.cli.but(MAILSLICE_ADMIN_UNDO_FOR="0")
    answer = off("queue", "delete", "spool", "--name", "m-1", "--yes", "--json")
    assert (answer.one["deleted"], answer.one["run"]) == (1, None)
    assert "undo:" not in answer.err
    assert (spool.names(), spool.deleted()) == ([], [])


def test_a_mail_without_content_is_deleted_and_kept_and_cannot_come_back(spool: Spool) -> None:
    lost, _ = spool.enqueue(mail("one"), mail("two"))
    drop_blobs(spool, lost)
    run = spool.clear().run
    lines = {line["name"]: line["content"] for line in spool.cli.json("queue", "deleted", "spool")}
    assert lines == {"one": "content lost", "two": "kept"}
    (seen,) = spool.cli.json("queue", "undelete", "spool", "--run", run, "--dry-run")
    assert (seen["undeleted"], seen["contentLost"], seen["dryRun"]) == (1, 1, True)
    assert (seen["already"], seen["mayBeDelivered"], seen["ids"]) == (0, 0, {})
    answer = spool.cli("queue", "undelete", "spool", "--run", run, "--yes", "--json", code=1)
    assert (answer.one["undeleted"], answer.one["contentLost"]) == (1, 1)
    assert spool.names() == ["two"]


def test_large_contents_and_attributes_come_back_whole_in_several_batches(spool: Spool) -> None:
    long = {"long": b'"' + b"x" * 3 * 1024**2 + b'"'}
    spool.enqueue(*(mail(f"m-{number}", attributes=long) for number in range(3)))
    (large,) = spool.enqueue(mail("large"), content=LARGE)
    deletion = spool.clear()
    assert (deletion.mails, spool.names()) == (4, [])
    batches = list(deleted_mails(spool.stores, spool.queue, system_clock()))
    assert sorted(map(len, batches)) == [1, 1, 2]
    drop_blobs(spool, large)
    outcome = spool.undelete(deletion.run)
    assert (outcome.undeleted, outcome.already, len(outcome.ids)) == (4, 0, 4)
    rows = {row.item.mail.name: row for row in spool.view.browse()}
    assert spool.view.content(rows["large"]) == LARGE
    assert spool.view.content(rows["m-2"]) == CONTENT
    assert rows["m-2"].item.mail.attributes == long
    assert spool.undelete(deletion.run).already == 4


@pytest.mark.parametrize("point", BEFORE_MARK)
def test_killed_before_the_mark_a_mail_is_in_its_queue_alone(spool: Spool, point: str) -> None:
    spool.enqueue(mail())
    kill_at(point)
    with pytest.raises(Killed):
        spool.clear()
    assert (spool.names(), spool.deleted()) == (["m-1"], [])
    assert spool.undelete().undeleted == 0
    deletion = spool.clear()
    assert spool.undelete().undeleted == 1
    assert spool.undelete(deletion.run).already == 1
    assert spool.names() == ["m-1"]


@pytest.mark.parametrize("point", AFTER_MARK)
def test_killed_after_the_mark_a_mail_can_come_back(spool: Spool, point: str) -> None:
    spool.enqueue(mail())
    kill_at(point)
    with pytest.raises(Killed):
        spool.clear()
    (kept,) = spool.deleted()
    assert kept.in_doubt == (point != "undo:marked")
    outcome = spool.undelete(accept_duplicates=False)
    assert (outcome.undeleted, outcome.doubtful) == ((0, 1) if kept.in_doubt else (1, 0))
    spool.undelete()
    assert spool.names() == ["m-1"]
    assert [content for _, content in spool.delivered(1)] == [CONTENT]


@pytest.mark.parametrize("point", UNDELETE_POINTS)
def test_an_undelete_that_was_killed_and_is_asked_again_brings_each_mail_back_once(
    spool: Spool, point: str
) -> None:
    items = spool.enqueue(mail("one"), mail("two"))
    spool.clear()
    drop_blobs(spool, *items)
    kill_at(point)
    with pytest.raises(Killed):
        spool.undelete()
    spool.undelete()
    assert spool.names() == ["one", "two"]
    assert spool.undelete().already == 2
    delivered = spool.delivered(2)
    assert sorted(item.mail.name for item, _ in delivered) == ["one", "two"]
    assert {content for _, content in delivered} == {CONTENT}


@pytest.mark.parametrize("point", UNDELETE_POINTS)
def test_mails_on_their_way_beside_a_kill_come_back_once_too(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    names = [f"m-{number}" for number in range(9)]
    spool.enqueue(*map(mail, names))
    spool.clear()
    monkeypatch.setattr(sys.modules[undelete.__module__], "CHUNK_MAILS", 2)
    kill_at(point)
    with pytest.raises(Killed):
        spool.undelete()
    outcome = spool.undelete()
    assert outcome.undeleted + outcome.already == 9
    assert outcome.already > 0, "nothing was on its way beside the chunk that was killed"
    assert spool.names() == names
    assert sorted(item.mail.name for item, _ in spool.delivered(9)) == names


def test_delivered_after_a_kill_it_is_not_brought_back_again(spool: Spool) -> None:
    spool.enqueue(mail())
    spool.clear()
    kill_at("undelete:published")
    with pytest.raises(Killed):
        spool.undelete()
    assert len(spool.delivered(1)) == 1
    assert spool.undelete().undeleted == 1, "by the one that was killed"
    assert (spool.names(), spool.delivered(0)) == ([], [])


def test_served_in_part_after_a_kill_it_is_not_brought_back_again(spool: Spool) -> None:
    both = ("a@example.org", "b@example.org")

    async def serve_one() -> None:
        async with (
            worker_of(spool.stores, spool.queue) as worker,
            aclosing(worker.deliveries(1)) as deliveries,
        ):
            delivery = await anext(deliveries)
            await delivery.retry([both[1]], after=timedelta(hours=1))

    spool.enqueue(replace(mail(), recipients=both))
    spool.clear()
    kill_at("undelete:published")
    with pytest.raises(Killed):
        spool.undelete()
    asyncio.run(serve_one())
    assert spool.undelete().undeleted == 1, "by the one that was killed"
    assert [row.item.mail.recipients for row in spool.view.browse()] == [both[1:]]
    assert spool.delivered(0) == []


@pytest.mark.parametrize("point", ["undelete:entered", "undelete:published"])
def test_killed_as_it_is_claimed_anew_it_comes_back_once(spool: Spool, point: str) -> None:
    spool.enqueue(mail())
    spool.clear()
    for each in (point, CLAIMED_ANEW):
        kill_at(each)
        with pytest.raises(Killed):
            spool.undelete()
    assert spool.undelete().undeleted == 1
    assert len(spool.delivered(1)) == 1


def test_killed_after_its_entry_was_voided_it_is_not_in_doubt(spool: Spool) -> None:
    spool.enqueue(mail())
    spool.clear()
    for each in ("undelete:published", VOIDED):
        kill_at(each)
        with pytest.raises(Killed):
            spool.undelete()
    outcome = spool.undelete(accept_duplicates=False)
    assert (outcome.undeleted, outcome.doubtful) == (1, 0)
    assert len(spool.delivered(1)) == 1


@pytest.mark.parametrize("killed_again", [True, False])
def test_delivered_before_its_entry_is_voided_it_is_not_brought_back_again(
    spool: Spool, killed_again: bool
) -> None:
    spool.enqueue(mail())
    spool.clear()
    kill_at("undelete:published")
    with pytest.raises(Killed):
        spool.undelete()

    def deliver(name: str) -> None:
        if name == CLAIMED_ANEW:
            crash.arm(None)
            with ThreadPoolExecutor(1) as thread:
                assert len(thread.submit(spool.delivered, 1).result()) == 1
            if killed_again:
                raise Killed

    crash.arm(deliver)
    with suppress(Killed):
        assert spool.undelete().undeleted == 1
    outcome = spool.undelete()
    assert outcome.undeleted + outcome.already == 1
    assert (spool.names(), spool.delivered(0)) == ([], [])


def test_what_no_record_names_any_more_as_completed_before_its_void_is_in_doubt(
    spool: Spool,
) -> None:
    """Its worker settled 500 other mails since."""
    spool.enqueue(mail("one"), mail("two"))
    spool.clear()
    kill_at("undelete:published")
    with pytest.raises(Killed):
        spool.undelete()
    kill_at(CLAIMED_ANEW)
    with pytest.raises(Killed):
        spool.undelete()
    assert len(spool.delivered(2)) == 2
    records = spool.stores.own.worker_records
    for record in list(records.list(spool.queue)):
        records.save_future(spool.queue, replace(record, done=())).result()
    outcome = spool.undelete(accept_duplicates=False)
    assert (outcome.undeleted, outcome.already, outcome.doubtful) == (0, 0, 2)
    assert (spool.names(), spool.delivered(0)) == ([], [])
    assert spool.undelete().undeleted == 2
    assert len(spool.delivered(2)) == 2


def test_mails_of_a_delete_whose_list_is_gone_are_lost(spool: Spool, fresh_module: Any) -> None:
    spool.enqueue(mail("one"), mail("two"))
    run = spool.clear().run
    spool.enqueue(mail("three"))
    spool.clear()
    (batch,) = spool.stores.own.deletions.list(spool.queue, run)
    spool.stores.own_blobs.delete_many([BlobId(f"{batch.place}.mails")])
    assert [row["name"] for row in spool.cli.json("queue", "deleted", "spool")] == ["three"]
    answer = spool.cli("queue", "undelete", "spool", "--run", run, "--yes", "--json", code=1)
    assert (answer.one["undeleted"], answer.one["contentLost"]) == (0, 2)
    answer = spool.cli("queue", "undelete", "spool", "--name", "three", "--yes", "--json")
    assert (answer.one["undeleted"], answer.one["contentLost"]) == (1, 0)
    listed = Cli(fresh_module.env)("queue", "deleted", spool.queue)
    assert f"which 2 mails run {run} deleted is lost" in listed.err


@pytest.mark.soak
@pytest.mark.parametrize("point", UNDELETE_POINTS)
def test_a_process_that_is_killed_leaves_the_same(
    spool: Spool, fresh_module: Any, point: str
) -> None:
    spool.enqueue(mail("one"), mail("two"))
    run = spool.clear().run
    cli = Cli(fresh_module.env)
    words = ("queue", "undelete", spool.queue, "--run", run, "--yes")
    cli.but(MAILSLICE_TEST_CRASH_AT=point)(*words, code=-9)
    cli(*words)
    assert spool.names() == ["one", "two"]


def test_a_mail_that_a_worker_has_is_told_and_comes_back_on_demand_alone(spool: Spool) -> None:
    def clear_when_recorded() -> None:
        while not any(record.in_flight for record in spool.stores.worker_records(spool.queue)):
            time.sleep(0.1)
        spool.clear()

    async def work() -> None:
        async with (
            worker_of(spool.stores, spool.queue) as worker,
            aclosing(worker.deliveries(1)) as deliveries,
        ):
            delivery = await anext(deliveries)
            await asyncio.to_thread(clear_when_recorded)
            await delivery.complete()

    spool.enqueue(mail())
    asyncio.run(work())
    (kept,) = spool.deleted()
    assert kept.as_json()["mayBeDelivered"] is True
    assert spool.undelete(accept_duplicates=False).doubtful == 1
    assert spool.names() == []
    assert spool.undelete().undeleted == 1
    assert spool.names() == ["m-1"]


def test_a_mail_whose_worker_lost_its_connection_may_be_delivered(spool: Spool) -> None:
    """The broker has given it back, and the handler may still send it."""
    (item,) = spool.enqueue(mail())
    about = ("m-1", timedelta(0), "handler", 1)
    returned = InFlightMail(item.enqueue_id, *about, begun=True, returned=True)
    record = WorkerRecord("w", "h", 1, system_clock(), timedelta(minutes=1), 1, (returned,))
    spool.stores.own.worker_records.save_future(spool.queue, record).result()
    spool.clear()
    (kept,) = spool.deleted()
    assert kept.as_json()["mayBeDelivered"] is True
    assert spool.undelete(accept_duplicates=False).doubtful == 1
    assert spool.names() == []


def test_a_mail_that_is_delivered_while_its_content_is_copied_was_not_deleted(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large contents take long: it would come back by an undelete, and be delivered again."""
    spool.enqueue(mail(), content=LARGE)
    own = spool.stores.own_blobs
    copies = own.copies

    def delivered_meanwhile(*asked: Any) -> Any:
        failed = copies(*asked)
        assert len(spool.delivered(1)) == 1
        return failed

    monkeypatch.setattr(own, "copies", delivered_meanwhile)
    assert (spool.clear().mails, spool.deleted()) == (0, [])


def test_a_mail_of_which_a_recipient_was_begun_may_be_delivered(spool: Spool) -> None:
    (item,) = spool.enqueue(mail())
    begun = MailStage(item.enqueue_id, "w", 1, 1, (), {item.mail.recipients[0]: Stage.SENT})
    assert spool.stores.own.mail_stages.advance(spool.queue, None, begun)
    spool.clear()
    (kept,) = spool.deleted()
    assert kept.as_json()["mayBeDelivered"] is True
    assert spool.undelete(accept_duplicates=False).doubtful == 1


def test_a_row_that_names_no_content_keeps_no_other_mail_from_coming_back(spool: Spool) -> None:
    """No message can hold such a mail: without its content it does not come back anyway."""
    spool.enqueue(mail())
    (row,) = spool.view.browse()
    item = replace(row.item, enqueue_id=EnqueueId(uuid4()), header_blob_id=BlobId(""))
    spool.stores.tables.written.insert_many([replace(row, item=item)])
    deletion = spool.clear()
    assert (deletion.mails, deletion.lost) == (2, 1)
    assert [one.enqueue_id for one in spool.deleted()] == [row.enqueue_id]
    assert spool.undelete().undeleted == 1


def test_a_mail_that_cannot_be_kept_is_a_refusal_only_while_nothing_is_deleted(
    spool: Spool,
) -> None:
    long = {"long": b'"' + b"x" * 3 * 1024**2 + b'"'}
    spool.enqueue(*(mail(f"m-{number}", attributes=long) for number in range(2)))
    *_, row = spool.view.browse()
    odd = replace(row.item.mail, name="odd", attributes={"odd": b"\xff" * 2 * 1024**2})
    item = replace(row.item, enqueue_id=EnqueueId(uuid4()), mail=odd)
    later = row.enqueued_time + timedelta(seconds=1)
    spool.stores.tables.written.insert_many([replace(row, item=item, enqueued_time=later)])
    errors = []
    for _ in range(2):
        with pytest.raises(MailsliceError, match="cannot be kept") as raised:
            spool.clear()
        errors.append(type(raised.value))
        assert spool.names() == ["odd"]
    assert errors == [MailsliceError, Refused]


def test_by_a_clock_that_is_off_no_kept_mail_expires(spool: Spool) -> None:
    spool.enqueue(mail("one"), mail("two"))
    spool.clear()

    def ahead() -> datetime:
        return system_clock() + timedelta(days=400)

    spool.enqueue(mail("three"))
    delete_and_keep(spool.stores, spool.queue, ahead, list(spool.view.browse()), Deletion())
    assert spool.undelete().undeleted == 3


def test_of_two_deletions_of_one_mail_it_comes_back_once(spool: Spool) -> None:
    """As when a kill, or two people at once, leave it in two runs."""
    spool.enqueue(mail())
    rows = list(spool.view.browse())

    def marked_late(name: str) -> None:
        if name == "undo:noted":
            crash.arm(None)
            delete_and_keep(spool.stores, spool.queue, system_clock, rows, Deletion())

    crash.arm(marked_late)
    spool.clear()
    assert len(spool.deleted()) == 2
    outcome = spool.undelete()
    assert (outcome.undeleted, outcome.already) == (1, 1)
    assert spool.names() == ["m-1"]


def test_an_undelete_whose_lock_another_took_half_way_is_to_be_asked_again(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It changed something: this is no refusal, and a DAG tries it again."""
    spool.enqueue(mail("one"), mail("two"))
    spool.clear()
    one, two = spool.deleted()
    locks, lock, now = spool.stores.own.locks, f"undelete/{spool.queue}", [time.monotonic()]
    monkeypatch.setattr("mailslice.admin.leased_lock.elapsed_seconds", lambda: now[0])

    def sleep(seconds: float) -> None:
        now[0] += 10 * seconds

    def stolen(point: str) -> None:
        if point == "undelete:recorded":
            crash.arm(None)
            locks.change(lock, str(locks.holder(lock)), "another")

    crash.arm(stolen)
    outcome = Undeleted()
    about = spool.stores, spool.queue, system_clock
    with pytest.raises(StoreUnavailable, match="somebody else undeletes"):
        # What comes back in the first list is in the second, too, which waits for it.
        undelete(*about, [[one], [one, two]], outcome, accept_duplicates=True, sleep=sleep)
    assert outcome.undeleted == 1
    locks.release(lock, "another")
    assert spool.undelete().undeleted == 1
    assert spool.names() == ["one", "two"]


def test_a_row_of_an_undelete_outlives_every_run_that_has_the_mail(spool: Spool) -> None:
    """The older of two runs is brought back shortly before it ends."""
    spool.enqueue(mail())
    rows = list(spool.view.browse())
    first = Deletion()
    delete_and_keep(spool.stores, spool.queue, system_clock, rows, first)
    delete_and_keep(spool.stores, spool.queue, system_clock, rows, Deletion())
    deletions, soon = spool.stores.own.deletions, system_clock() + timedelta(minutes=5)
    (batch,) = deletions.list(spool.queue, first.run)
    deletions.save(spool.queue, replace(batch, until=soon), timedelta(minutes=5))
    assert spool.undelete(first.run).undeleted == 1
    ttl = "SELECT TTL(step) FROM {}.undeleted_mails WHERE queuename = %s ALLOW FILTERING"
    keyspace = spool.stores.settings.own.keyspace
    ((left,),) = spool.stores.cassandra.execute(ttl.format(keyspace), [spool.queue])
    assert timedelta(seconds=left) > timedelta(days=365)


@pytest.mark.parametrize("back", ["undelete", "move"])
def test_beside_a_james_without_content_start_commands_make_the_table_before_they_act(
    fresh: Any, back: str
) -> None:
    """James 3.5 and 3.6 have no such table; no worker of ours and no cleanup ran yet."""
    with open_stores(fresh.settings) as opened:
        spool = Spool(opened, create(opened, "spool"), Inside(fresh.env))
        target = create(opened, "aside")
        spool.enqueue(mail("one"))
        opened.cassandra.execute(f"DROP TABLE {fresh.settings.cassandra.keyspace}.contentstart")
    if back == "undelete":
        spool.cli("queue", "clear", "spool", "--yes")
        (line,) = spool.cli.json("queue", "undelete", "spool", "--name", "one", "--yes")
        assert line["undeleted"] == 1
    else:
        (line,) = spool.cli.json("queue", "move", "spool", target, "--name", "one", "--yes")
        assert line["moved"] == 1


def test_mails_are_deleted_where_those_that_are_over_may_not_be(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The account may write to the own bucket, and delete nothing there."""
    own, over = spool.stores.own_blobs, BlobId(f"{DELETED_PREFIX}20200101T000000Z/q/r-000001.mails")
    spool.enqueue(mail("one"))
    own.ensure_bucket()
    own.put(over, b"")

    def refuse(**given: Any) -> object:
        keys = [each["Key"] for each in given["Delete"]["Objects"]]
        return {"Errors": [{"Key": key, "Code": "AccessDenied"} for key in keys]}

    with monkeypatch.context() as patch:
        patch.setattr(own.client, "delete_objects", refuse)
        assert spool.clear().mails == 1
        with pytest.raises(BadSetting, match="AccessDenied"):
            expire(own, system_clock())
    assert spool.names() == []
    expire(own, system_clock())
    assert not own.exists(over)


def test_expiry_deletes_what_is_kept_at_its_time_and_not_before(spool: Spool) -> None:
    spool.enqueue(mail("one"))
    spool.enqueue(mail("large"), content=LARGE)
    deletion = spool.clear()
    assert deletion.until is not None
    own, folder = spool.stores.own_blobs, f"/{file_name(spool.queue)}/"

    def kept() -> list[str]:
        return [blob.key for blob in own.list(DELETED_PREFIX) if folder in blob.key]

    assert len(kept()) == 4
    expire(own, deletion.until - timedelta(seconds=2))
    assert len(kept()) == 4
    scan = OwnBucket().scan(spool.stores.settings, [0])
    assert sum(rows for _, rows, _ in scan) == sum(
        not blob.key.startswith(DELETED_PREFIX) for blob in own.list("")
    ), "blob_gc lists none of them"
    late = deletion.until + timedelta(seconds=2)
    assert list(deleted_mails(spool.stores, spool.queue, late)) == []
    assert list(deleted_runs(spool.stores, spool.queue, late)) == []
    expire(own, late)
    assert kept() == []
    assert spool.deleted() == [], "rows of a run whose objects are gone"
    ttl = spool.stores.cassandra.execute(
        f"SELECT TTL(who) FROM {spool.stores.settings.own.keyspace}.deletions WHERE queuename = %s",
        [spool.queue],
    )
    assert 6 * DAY < timedelta(seconds=ttl[0][0]) <= 7 * DAY
