"""Runs of actions on real stores: what was previewed is acted on, and nothing else."""

import asyncio
import json
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from mailslice.actions.preview import preview
from mailslice.actions.request import ActionRequest
from mailslice.actions.run import ANY, ActionRun
from mailslice.admin.holds import active_holds
from mailslice.admin.mail_queue import MailQueue
from mailslice.admin.quarantine import Decided, Holder, Quarantine
from mailslice.admin.queues import create
from mailslice.model import crash
from mailslice.model.clock import system_clock
from mailslice.model.errors import BadInput, Refused, StoreUnavailable, UnknownQueue
from mailslice.model.mail import Mail
from mailslice.stores import open_stores
from mailslice.worker.enqueue.delayed_mails import Delays
from mailslice.worker.queue_worker import worker_of
from tests.services.hop_queue import consumed

CONTENT = b"Subject: tide\r\n\r\nhigh water"


@pytest.fixture(scope="module")
def stores(fresh_module):
    with open_stores(fresh_module.settings) as opened:
        yield opened


class Queue:
    """A queue of its own, and runs of actions on it."""

    def __init__(self, stores):
        self.stores = stores
        self.name = create(stores, f"spool-{uuid4().hex}")

    def add(self, *names, sender="a@example.org", delay=None):
        async def work():
            async with worker_of(self.stores, self.name) as worker:
                for name in names:
                    mail = Mail(name=name, sender=sender, recipients=("b@example.net",))
                    await worker.enqueue(mail, CONTENT, delay=delay)

        asyncio.run(work())

    @property
    def names(self):
        return [
            row.item.mail.name for row in MailQueue(self.stores, self.name, system_clock).browse()
        ]

    def request(self, action="delete", **fields):
        return ActionRequest.of({"queue": self.name, "action": action, **fields})

    def run(self, request, digest="", dag_run="manual__1", **context):
        context = {"who": "ada", "reason": "flood", **context}
        return ActionRun.of_dag(request, dag_run, digest, **context)

    def previewed(self, request):
        return self.run(request, dag_run=f"p-{uuid4()}").select(self.stores.settings)

    def act(self, request, digest, **more):
        run = self.run(request, digest, **more)
        assert run.select(self.stores.settings)["act"]
        return run.act(self.stores.settings)


@pytest.fixture
def queue(stores):
    return Queue(stores)


def decisions(fresh_module, queue):
    files = Path(fresh_module.env["MAILSLICE_ARTIFACTS"], "decisions").rglob("*.json")
    found = [json.loads(file.read_text()) for file in files]
    return [one for one in found if one["queue"] == queue]


def test_a_delete_is_about_the_previewed_mails_and_not_about_those_that_came_since(
    queue, fresh_module
):
    queue.add("spam-1", "spam-2", "good")
    request = queue.request(name="spam-*")
    seen = queue.previewed(request)
    assert (seen["count"], seen["bytes"], seen["cut"], seen["act"]) == (2, 54, None, False)
    assert queue.names == ["spam-1", "spam-2", "good"]
    queue.add("spam-3")
    result = queue.act(request, seen["digest"])
    assert (result["selected"], result["deleted"], result["gone"]) == (2, 2, 0)
    assert queue.names == ["good", "spam-3"]
    (decision,) = decisions(fresh_module, queue.name)
    assert (decision["who"], decision["action"], decision["reason"]) == (
        "ada",
        "queue delete",
        "flood",
    )
    assert (decision["filter"], decision["deleted"]) == ({"name": "spam-*"}, 2)
    assert (decision["digest"], len(decision["ids"])) == (seen["digest"], 2)


def test_what_was_deleted_comes_back_by_the_run_that_the_result_names(queue, fresh_module):
    queue.add("spam-1", "good")
    result = queue.act(queue.request(name="spam-*"), ANY)
    assert result["restorableUntil"] > "2026"
    request = queue.request("undelete", run=result["undo"])
    back = queue.act(request, "", dag_run="manual__2")
    assert (back["undeleted"], back["already"], back["failed"]) == (1, 0, None)
    assert sorted(queue.names) == ["good", "spam-1"]
    again = queue.act(request, "", dag_run="manual__3")
    assert (again["undeleted"], again["already"]) == (0, 1)
    first, *others = sorted(decisions(fresh_module, queue.name), key=lambda one: one["time"])
    assert first["undo"] == result["undo"]
    assert {one["run"] for one in others} == {result["undo"]}
    with pytest.raises(BadInput, match="is not kept"):
        queue.act(queue.request("undelete", run="none"), "", dag_run="manual__4")


def test_a_run_that_is_tried_again_ends_the_same_and_takes_no_new_mail(queue):
    queue.add("spam-1", "good")
    request = queue.request(name="spam-*")
    digest = queue.previewed(request)["digest"]
    queue.act(request, digest)
    queue.add("spam-2")
    again = queue.act(request, digest)
    assert (again["deleted"], again["gone"]) == (0, 1)
    assert queue.names == ["good", "spam-2"]


@pytest.mark.parametrize("step", ["select", "act"])
def test_a_run_id_of_an_earlier_request_does_nothing(queue, step):
    """As of a run that was deleted, and started again with another conf."""
    queue.add("spam-1", "good")
    queue.run(queue.request(name="spam-*"), ANY).select(queue.stores.settings)
    other = queue.run(queue.request(name="good"), ANY)
    with pytest.raises(Refused, match=r"manual__1.* start a new run"):
        getattr(other, step)(queue.stores.settings)
    assert queue.names == ["spam-1", "good"]


def test_without_a_preview_mails_that_come_after_the_begin_of_the_run_stay(queue):
    queue.add("one", "two")
    request = queue.request("clear")
    run = queue.run(request, ANY)
    run.select(queue.stores.settings)
    queue.add("three")
    assert run.act(queue.stores.settings)["deleted"] == 2
    assert run.act(queue.stores.settings)["deleted"] == 0
    assert queue.names == ["three"]


def test_a_preview_of_another_filter_queue_or_action_changes_nothing(queue):
    queue.add("spam-1", "good")
    digest = queue.previewed(queue.request(name="spam-*"))["digest"]
    for other in (queue.request(name="*"), queue.request("clear"), queue.request(sender="a@*")):
        with pytest.raises(Refused, match="is of another request"):
            queue.act(other, digest)
    with pytest.raises(BadInput, match=r"has no selection\.json: begin with the task select"):
        queue.run(queue.request(name="spam-*"), digest).act(queue.stores.settings)
    assert queue.names == ["spam-1", "good"]


def test_a_preview_has_a_sample_the_share_and_says_where_it_is_cut(queue):
    queue.add(*(f"m-{number:02}" for number in range(13)))
    request = queue.request("clear")
    seen = preview(queue.stores, request, system_clock)
    assert [row.item.mail.name for row in seen.sample] == [f"m-{number:02}" for number in range(10)]
    assert (seen.count, seen.share, seen.cut, seen.measured) == (13, 1.0, None, True)
    assert seen.oldest == seen.sample[0].enqueued_time
    few = preview(queue.stores, request, system_clock, limit=5)
    assert (few.count, few.cut, few.size, few.share) == (5, "these are the oldest 5", 5 * 27, None)
    ids = [str(one.enqueue_id) for one in seen.sample[:3]]
    chosen = preview(queue.stores, queue.request(ids=[*ids, str(uuid4())]), system_clock)
    assert (chosen.count, round(chosen.share * 13)) == (3, 3)
    assert preview(queue.stores, queue.request(name="none"), system_clock).count == 0
    late = preview(queue.stores, request, system_clock, seconds=-1)
    assert late.cut.startswith("looked for -1 s, up to mails of 20")


def test_delayed_mails_alone_are_retried(queue):
    queue.add("now")
    queue.add("later", "other", delay=timedelta(hours=1))
    request = queue.request("retry", name="later")
    seen = queue.previewed(request)
    assert seen["count"] == 1
    result = queue.act(request, seen["digest"])
    assert (result["retried"], result["pending"], result["gone"]) == (1, 0, 0)
    assert queue.previewed(queue.request("flush"))["count"] == 1
    result = queue.act(queue.request("flush"), ANY, dag_run="manual__2")
    assert (result["flushed"], result["retried"], result["selected"]) == (1, 1, None)
    assert queue.previewed(queue.request("flush"))["count"] == 0


def test_a_retry_fails_for_mails_that_are_overdue(queue, fresh_module, stores):
    queue.add("m", delay=timedelta(hours=1))
    table = stores.own.delayed_mails
    (row,) = table.rows(queue.name)
    past = system_clock() - timedelta(minutes=2)
    table.save(queue.name, replace(row, due=past))
    request = queue.request("flush")
    result = queue.act(request, queue.previewed(request)["digest"])
    assert result["overdue"] == 1
    assert f"`mailslice queue flush {queue.name}` delivers them" in result["failed"]
    (decision,) = decisions(fresh_module, queue.name)
    assert (decision["overdue"], decision["soon"], decision["retried"]) == (1, 0, 0)
    result = queue.act(request, ANY, dag_run="manual__2")
    assert (result["flushed"], result["failed"]) == (1, None)
    assert not list(table.waiting(queue.name, [row.enqueue_id]))
    newest = max(decisions(fresh_module, queue.name), key=lambda one: one["time"])
    assert (newest["action"], newest["flushed"]) == ("queue flush", 1)


def test_a_retry_that_fails_half_way_leaves_a_decision_that_says_how_far_it_came(
    queue, fresh_module, monkeypatch
):
    queue.add(*(f"m-{number}" for number in range(201)), delay=timedelta(hours=1))
    done = []

    async def brought_forward(_, row, _right):
        if len(done) == 200:
            raise StoreUnavailable("away")
        done.append(str(row.enqueue_id))
        return True

    monkeypatch.setattr(Delays, "bring_forward", brought_forward)
    request = queue.request("retry")
    digest = queue.previewed(request)["digest"]
    with pytest.raises(StoreUnavailable, match="away"):
        queue.act(request, digest)
    (decision,) = decisions(fresh_module, queue.name)
    assert "gone" not in decision, "nobody has looked for the mail that is left"
    assert (decision["retried"], decision["soon"], len(decision["ids"])) == (200, 0, 100)
    assert set(decision["ids"]) <= set(done)


def test_a_delete_that_fails_half_way_calls_no_mail_gone(queue, fresh_module, monkeypatch):
    queue.add("one", "two")
    request = queue.request("delete", name="*")
    digest = queue.previewed(request)["digest"]

    def away(*_, **__):
        raise StoreUnavailable("away")

    monkeypatch.setattr(MailQueue, "delete", away)
    with pytest.raises(StoreUnavailable, match="away"):
        queue.act(request, digest)
    (decision,) = decisions(fresh_module, queue.name)
    assert (decision["deleted"], "gone" in decision) == (0, False)


def test_a_move_brings_the_previewed_mails_to_the_other_queue(queue, stores, fresh_module):
    other = Queue(stores)
    queue.add("spam-1", "good")
    request = queue.request("move", name="spam-*", to=other.name)
    digest = queue.previewed(request)["digest"]
    queue.add("spam-2")
    result = queue.act(request, digest)
    assert (result["moved"], result["gone"], result["failed"]) == (1, 0, None)
    assert (queue.names, other.names) == (["good", "spam-2"], ["spam-1"])
    (decision,) = decisions(fresh_module, queue.name)
    assert (decision["to"], len(decision["ids"])) == (other.name, 1)
    with pytest.raises(UnknownQueue):
        queue.previewed(ActionRequest.of({"queue": "none", "action": "clear"}))


def test_a_move_counts_previewed_mails_that_are_done_as_gone(queue, stores):
    other = Queue(stores)
    queue.add("spam-1", "spam-2")
    request = queue.request("move", to=other.name)
    digest = queue.previewed(request)["digest"]
    (done, _) = MailQueue(stores, queue.name, system_clock).browse()
    stores.tables.deleted.mark_many(queue.name, [done.enqueue_id])
    result = queue.act(request, digest)
    assert (result["selected"], result["moved"], result["gone"]) == (2, 1, 1)
    again = queue.act(request, digest)
    assert (again["selected"], again["moved"], again["gone"]) == (2, 0, 2)


def test_of_a_move_that_was_cut_off_each_previewed_mail_is_counted_once(queue, stores):
    other = Queue(stores)
    queue.add("spam-1", "spam-2")
    request = queue.request("move", to=other.name)
    digest = queue.previewed(request)["digest"]

    def cut_off(point):
        if point == "move:taken":
            crash.arm(None)
            raise StoreUnavailable("no answer")

    crash.arm(cut_off)
    with pytest.raises(StoreUnavailable, match="no answer"):
        queue.act(request, digest)
    again = queue.act(request, digest)
    assert again["moved"] in {1, 2}
    assert again["moved"] + again["gone"] == 2
    assert sorted(other.names) == ["spam-1", "spam-2"]


def test_a_delay_is_about_the_previewed_mails_and_ends_when_it_was_to_end(queue, stores):
    queue.add("one", "two")
    request = queue.request("delay", name="one", lasts="1h")
    with pytest.raises(Refused, match="no worker of mailslice consumes"):
        queue.previewed(request)
    with consumed(stores, queue.name):
        digest = queue.previewed(request)["digest"]
        result = queue.act(request, digest)
        assert (result["delayed"], result["gone"], result["failed"]) == (1, 0, None)
        due = datetime.fromisoformat(result["information"]["due"])
        assert timedelta(minutes=59) < due - system_clock() <= timedelta(hours=1)
        again = queue.act(request, digest)
    assert (again["delayed"], again["information"]) == (0, result["information"])
    assert sorted(queue.names) == ["one", "two"]
    assert queue.previewed(queue.request("retry"))["count"] == 1


def test_mails_that_are_set_aside_are_released_or_discarded_by_their_ids(
    queue, stores, fresh_module
):
    queue.add("one", "two", "three")
    quarantine = Quarantine(stores, queue.name, system_clock)
    holder = Holder("w", "DATA", system_clock(), timedelta(hours=1))
    for row in list(MailQueue(stores, queue.name, system_clock).browse()):
        quarantine.settle(quarantine.keep(row.item, holder, Decided("closed", "hung", "duty")))
        stores.tables.deleted.mark_many(queue.name, [row.enqueue_id])
    ids = {mail.name: str(mail.enqueue_id) for mail in quarantine.waiting()}
    request = queue.request("release_stuck", ids=[f"{ids['one']}/1", str(uuid4())])
    result = queue.act(request, "")
    assert (result["released"], result["gone"], result["failed"]) == (1, 1, None)
    assert queue.names == ["one"]
    again = queue.act(request, "")
    assert (again["released"], again["gone"]) == (0, 2)
    result = queue.act(queue.request("discard_stuck", ids=[ids["two"]]), "", dag_run="manual__2")
    assert (result["discarded"], result["gone"]) == (1, 0)
    assert [mail.name for mail in quarantine.waiting()] == ["three"]
    assert queue.names == ["one"]
    now, hour = system_clock(), timedelta(hours=1)
    rows = list(stores.own.decisions.list(queue.name, now - hour, now + hour))
    assert sorted((row.name, row.action, row.who, row.why[:5]) for row in rows) == [
        ("one", "released", "ada", "flood"),
        ("two", "discarded", "ada", "flood"),
    ]
    first = min(decisions(fresh_module, queue.name), key=lambda one: one["time"])
    assert (first["action"], list(first["ids"])) == ("queue release_stuck", [f"{ids['one']}/1"])


def test_a_hold_ends_when_it_was_to_end_however_often_its_run_is_tried(queue, stores):
    request = queue.request("hold", domain="Example.net", lasts="1h")
    for _ in range(2):
        assert queue.act(request, "")["held"] == 1
        (hold,) = active_holds(stores, system_clock, queue.name)[queue.name].all
        assert (hold.domain, hold.who, hold.reason) == ("example.net", "ada", "flood")
        assert timedelta(minutes=59) < hold.until - system_clock() <= timedelta(hours=1)
    assert queue.act(queue.request("hold"), "", dag_run="manual__2")["held"] == 1
    release = queue.request("release", domain="example.net")
    assert queue.act(release, "", dag_run="manual__3")["released"] == 1
    assert queue.act(release, "", dag_run="manual__4")["released"] == 0
    (hold,) = active_holds(stores, system_clock, queue.name)[queue.name].all
    assert (hold.domain, hold.until) == ("", None)


def test_a_reason_is_asked_for_where_the_settings_say_so(queue, fresh_module):
    settings = fresh_module.settings.model_copy(
        update={"admin": fresh_module.settings.admin.model_copy(update={"reason_required": True})}
    )
    with pytest.raises(BadInput, match="reason is missing"):
        queue.run(queue.request("clear"), ANY, reason=" ").select(settings)
