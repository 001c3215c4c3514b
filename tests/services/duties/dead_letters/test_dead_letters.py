"""dead_letters on real stores, through the whole road.

What is listed, dropped, exported, redriven, kept.
"""

import asyncio
import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mailslice.admin import dead_letters as looked_at
from mailslice.admin import queues
from mailslice.bench.clearing import drop_marks
from mailslice.codec import message
from mailslice.duties.dead_letters import actions
from mailslice.duties.dead_letters.duty import DUTY
from mailslice.maintenance.artifacts import Artifacts, artifacts
from mailslice.maintenance.ledger import Ledger
from mailslice.maintenance.lock import LockHeld, locked
from mailslice.model.errors import (
    GateFailed,
    PlanRefused,
    Refused,
    StoreUnavailable,
    TryAgain,
    UnknownQueue,
)
from mailslice.model.mail import QueueName
from mailslice.stores.blobs.async_store import AsyncBlobStore
from mailslice.stores.cassandra.deleted_mails import DeletedMails
from mailslice.stores.rabbitmq.checkout import Checkout, check_out, dead_letter_ids
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.view.live_rows import LiveRows
from tests.services.worker.refusing import refusing_s3

HOUR = timedelta(hours=1)


def planted(letters):
    """One letter of each kind, in this order; the mails by name."""
    mails = {
        "rejected": letters.mail("rejected"),
        "bare": letters.mail("bare", content=False),
        "limit": letters.mail("limit"),
        "late": letters.mail("late", sender=None),
        "gone": letters.mail("gone", marked=True),
        "cleaned": letters.mail("cleaned", row=False),
        "odd": letters.mail("odd"),
    }
    letters.letter(mails["rejected"], age=2 * HOUR)
    letters.letter(mails["bare"])
    letters.letter(b"{no mail", age=HOUR)
    letters.letter(mails["limit"], "delivery_limit")
    letters.letter(mails["late"], "expired")
    letters.letter(mails["gone"])
    letters.letter(mails["cleaned"])
    letters.letter(mails["odd"], "maxlen")
    return mails


def test_a_run_lists_all_drops_what_is_deleted_exports_what_is_no_mail_and_keeps_the_rest(
    letters,
):
    planted(letters)
    before = letters.dead()
    report = letters.run()
    assert report["status"] == "done"
    expected = {
        "rejected by a handler": 3,
        "missing blob": 1,
        "bad JSON": 1,
        "delivery limit": 1,
        "expired": 1,
        "other": 1,
    }
    assert report["causes"] == expected
    assert report["order"] == "as it was"
    assert {cause: each["count"] for cause, each in report["ages"].items()} == expected
    assert (
        2 * 3600 - 5
        <= report["ages"]["rejected by a handler"]["oldestAgeSeconds"]
        <= 2 * 3600 + 120
    )
    assert (report["redriven"], report["dropped"], report["exported"], report["kept"]) == (
        0,
        1,
        1,
        6,
    )
    assert (
        report["planned"],
        report["applied"],
        report["skipped"],
        report["failed"],
        report["left"],
        report["unseen"],
    ) == (2, 2, 0, 0, 0, 0)
    assert letters.dead() == [
        body for body in before if body != b"{no mail" and message.decode(body).mail.name != "gone"
    ]
    assert letters.work() == []
    assert {each["cause"] for each in report["sample"]} == set(expected)
    assert "@" not in json.dumps(report)
    assert (
        Ledger(letters.stores, letters.settings).last("dead_letters", letters.queue)["dropped"] == 1
    )
    exported = sorted(Path(report["exports"]).iterdir())
    assert [file.suffix for file in exported] == [".json", ".body"] or [
        file.suffix for file in exported
    ] == [".body", ".json"]
    assert {file.suffix: file for file in exported}[".body"].read_bytes() == b"{no mail"
    assert (
        json.loads({file.suffix: file for file in exported}[".json"].read_text())["headers"][
            "x-death"
        ][0]["reason"]
        == "rejected"
    )
    again = letters.run()
    assert (
        again["status"],
        again["redriven"],
        again["dropped"],
        again["exported"],
        again["kept"],
    ) == ("nothing to do", 0, 0, 0, 6)


def test_a_dry_run_changes_nothing_and_says_what_would_be(letters):
    planted(letters)
    before = letters.dead()
    report = letters.run(dry_run=True, redrive=True)
    assert (report["status"], report["planned"], report["applied"], report["kept"]) == (
        "dry run",
        6,
        0,
        8,
    )
    assert report["actions"] == {"keep": 2, "drop": 1, "export": 1, "redrive": 4}
    assert report["keptBy"] == {
        "its content is missing": 1,
        "neither row nor deleted mark: it was dealt with": 1,
    }
    assert letters.dead() == before


def test_a_redrive_puts_back_what_is_live_and_whole_with_james_properties_and_counts_its_rounds(
    letters,
):
    mails = planted(letters)
    report = letters.run(redrive=True)
    assert (report["redriven"], report["dropped"], report["exported"], report["kept"]) == (
        4,
        1,
        1,
        2,
    )
    assert letters.dead_names() == ["bare", "cleaned"]
    put_back = letters.taken(letters.names.work_queue)
    assert [body for _, body in put_back] == [
        message.encode(mails[name]) for name in ("rejected", "limit", "late", "odd")
    ]
    for properties, _ in put_back:
        assert (properties.content_type, properties.delivery_mode, properties.priority) == (
            "text/plain",
            2,
            0,
        )
        assert properties.headers == {"x-dead-letter-routing-key": "", "x-redrive-count": 1}


def test_the_age_of_a_mail_that_is_redriven_begins_anew(letters):
    begun = time.time()
    letters.letter(letters.mail(), "too old", timestamp=int(begun) - 6 * 86_400)
    assert letters.run(redrive=True)["redriven"] == 1
    ((properties, _),) = letters.taken(letters.names.work_queue)
    assert properties.timestamp >= int(begun)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"cause": "Delivery-Limit"}, ["limit"]),
        ({"sender": "A@B.example", "limit": 2}, ["rejected", "limit"]),
        ({"older_than": "1h"}, ["rejected"]),
        ({"force_cleaned": True, "name": "cleaned"}, ["cleaned"]),
    ],
)
def test_the_filter_and_the_limit_choose(letters, params, expected):
    planted(letters)
    report = letters.run(redrive=True, **params)
    assert report["redriven"] == len(expected)
    assert letters.work() == expected
    assert report["kept"] == 6 - len(expected)


def test_a_redriven_mail_that_dies_again_is_redriven_so_often_and_no_more(letters):
    letters.letter(letters.mail("again"))
    rounds = []
    for _ in range(3):
        rounds.append(letters.run(redrive=True, most_redrives=2)["redriven"])
        letters.reject_all()
    assert rounds == [1, 1, 0]
    report = letters.run(redrive=True, most_redrives=2)
    assert report["keptBy"] == {"redriven often enough": 1}
    assert report["sample"][0]["redrives"] == 2
    assert letters.run(redrive=True, most_redrives=3)["redriven"] == 1


def test_rounds_are_remembered_when_somebody_publishes_the_mail_without_our_headers(letters):
    """As James' republish does."""
    item = letters.mail("republished")
    letters.letter(item)
    assert letters.run(redrive=True, most_redrives=1)["redriven"] == 1
    letters.taken(letters.names.work_queue)
    letters.letter(item)
    assert letters.run(redrive=True, most_redrives=1)["keptBy"] == {"redriven often enough": 1}


def test_of_two_letters_of_one_mail_one_is_redriven_and_the_other_goes_when_the_mail_is_done(
    letters,
):
    item = letters.mail("twice")
    letters.letter(item)
    letters.letter(item, age=HOUR)
    report = letters.run(redrive=True)
    assert (report["redriven"], report["kept"]) == (1, 1)
    assert report["keptBy"] == {"another letter of this mail is redriven": 1}
    letters.mark(item)
    assert letters.run(redrive=True)["dropped"] == 1
    assert letters.dead() == []


def test_letters_that_are_alike_in_all_are_two_letters(letters):
    item = letters.mail("alike", marked=True)
    for _ in range(2):
        letters.letter(item, **{"x-death": None})
    letters.letter(b"junk", **{"x-death": None})
    letters.letter(b"junk", **{"x-death": None})
    report = letters.run()
    assert (report["dropped"], report["exported"], report["kept"]) == (2, 2, 0)
    assert letters.dead() == []


def test_a_mail_of_which_a_delayed_copy_waits_is_not_redriven(letters):
    from uuid import uuid4

    from mailslice.stores.cassandra.own import DelayedMail

    item = letters.mail("waits")
    letters.letter(item)
    row = DelayedMail(
        item.enqueue_id,
        datetime.now(UTC) + HOUR,
        uuid4(),
        published=False,
        partition=None,
        message=b"",
    )
    letters.stores.own.delayed_mails.write_future(letters.queue, row).result()
    assert letters.run(redrive=True)["keptBy"] == {"it is delayed: a copy waits": 1}


def test_headers_that_no_broker_wrote_break_nothing(letters):
    for headers in (
        {"x-death": "no list"},
        {"x-death": [1, "a"]},
        {"x-death": [{"reason": 7, "time": "now", "queue": None}]},
        {
            "x-death": None,
            "x-redrive-count": "many",
            "x-mailslice-slice": "soon",
            "x-mailslice-bucket": -5,
        },
        {
            "x-death": None,
            "x-mailslice-slice": 2**62,
            "x-mailslice-bucket": 0,
            "x-mailslice-reason": 12,
        },
        {"x-death": None, "x-mailslice-reason": "content missing: header"},
    ):
        letters.letter(letters.mail("odd headers"), **headers)
    report = letters.run(redrive=True)
    assert (report["redriven"], report["kept"]) == (6, 0)
    assert report["causes"] == {"other": 5, "missing blob": 1}


def test_bodies_of_every_kind_that_are_no_mail_are_exported(letters):
    bodies = [b"", b"[]", b'"text"', b"\xff\xfe", b'{"enqueueId":"x"}', b"x" * 300_000]
    for body in bodies:
        letters.letter(body)
    report = letters.run()
    assert (report["exported"], report["kept"], report["causes"]) == (6, 0, {"bad JSON": 6})
    assert sorted(file.read_bytes() for file in Path(report["exports"]).glob("*.body")) == sorted(
        bodies
    )


def test_a_queue_without_a_dead_letter_queue_and_one_without_letters_have_nothing_to_do(letters):
    assert letters.run()["message"] == "nothing to do: there is no dead letter"
    with blocking_connection(letters.settings.rabbitmq) as connection:
        connection.channel().queue_delete(letters.names.dead_letter_queue)
    report = letters.run(redrive=True)
    assert (report["status"], report["causes"], report["kept"]) == ("nothing to do", {}, 0)
    assert "no dead letter queue" in report["message"]
    letters.queue = QueueName("nobody")
    with pytest.raises(UnknownQueue):
        letters.run()


def test_what_lies_behind_the_letters_that_were_looked_at_is_counted_and_stays(letters):
    for number in range(4):
        letters.letter(letters.mail(f"m{number}", marked=True))
    report = letters.run(look_at=3)
    assert (report["letters"], report["unseen"], report["dropped"], report["kept"]) == (3, 1, 3, 0)
    assert letters.dead_names() == ["m3"]


def test_no_step_looks_further_than_the_plan_did_where_letters_keep_their_order(
    letters, monkeypatch
):
    asked = []

    def counted(settings, name, most):
        asked.append(most)
        return check_out(settings, name, most)

    for module in (actions, looked_at):
        monkeypatch.setattr(module, "check_out", counted)
    for number in range(4):
        letters.letter(letters.mail(f"m{number}", marked=True))
    assert letters.run(look_at=3)["dropped"] == 3
    assert asked == [3, 3, 3]


def test_rows_of_letters_that_name_no_slice_are_looked_for_once_and_read_again_one_by_one(
    letters, monkeypatch
):
    items = [letters.mail(f"m{number}") for number in range(3)]
    for item in items:
        letters.letter(item)
    request = letters.request(redrive=True)
    letters.steps(request, "plan", "check")
    looks, partitions = [], LiveRows.partitions

    def counted(*args):
        looks.append(args)
        return partitions(*args)

    def cleaned(point):
        """The third mail's row goes, as a cleanup drops it, after the first is redriven."""
        if point == "apply:after-publish" and items[2:]:
            letters.delete_row(items.pop().enqueue_id)

    monkeypatch.setattr(LiveRows, "partitions", counted)
    monkeypatch.setattr("mailslice.model.crash.point", cleaned)
    applied = letters.steps(request, "apply")
    assert (len(looks), applied["redriven"], applied["skippedBy"]) == (
        1,
        2,
        {"neither row nor deleted mark: it was dealt with": 1},
    )
    assert letters.work() == ["m0", "m1"]


def test_a_letter_that_is_gone_in_a_first_try_costs_no_list_of_all_exports(letters, monkeypatch):
    letters.letter(b"{no mail")
    request = letters.request()
    letters.steps(request, "plan", "check")
    letters.taken(letters.names.dead_letter_queue)
    monkeypatch.setattr(Artifacts, "files", lambda *_: pytest.fail("exports were listed"))
    assert letters.steps(request, "apply")["skippedBy"] == {"gone since the plan": 1}


def test_between_plan_and_apply_a_mail_is_deleted_another_dies_and_one_is_taken_away(letters):
    mails = [letters.mail(f"m{number}") for number in range(3)]
    for each in mails:
        letters.letter(each)
    request = letters.request(redrive=True)
    letters.steps(request, "plan", "check")
    letters.mark(mails[0])
    late = letters.mail("late")
    letters.letter(late)
    letters.taken_first = letters.taken(letters.names.dead_letter_queue)
    time.sleep(1.1)  # RabbitMQ tells deaths by the second
    for each in (mails[0], mails[2], late):  # m1 is gone; the others are there again
        letters.letter(each)
    again = letters.steps(request, "apply")
    assert again["skippedBy"] == {
        "gone since the plan": 3
    }  # their deaths are others now: nothing that the plan does not know is touched
    assert letters.work() == []
    request = letters.request(redrive=True)
    letters.steps(request, "plan", "check")
    letters.mark(mails[2])
    applied = letters.steps(request, "apply", "verify")
    applied = letters.steps(request, "report")
    assert (applied["redriven"], applied["dropped"], applied["skippedBy"]) == (
        1,
        1,
        {"deleted since the plan": 1},
    )
    assert letters.work() == ["late"]
    assert letters.dead_names() == ["m2"]


def test_letters_that_somebody_took_after_a_try_that_did_nothing_are_not_called_done(
    letters, monkeypatch
):
    letters.letter(b"{no mail")
    letters.letter(letters.mail("m"))
    request = letters.request(redrive=True)
    letters.steps(request, "plan", "check")

    def away(*_):
        raise StoreUnavailable("the queue has a consumer")

    with monkeypatch.context() as patched:
        patched.setattr(Checkout, "consume", away)
        with pytest.raises(StoreUnavailable):
            letters.steps(request, "apply")
    letters.taken(letters.names.dead_letter_queue)
    again = letters.steps(request, "apply")
    assert (again["exported"], again["redriven"]) == (0, 0)
    assert again["skippedBy"] == {"gone since the plan": 2}


def test_a_mark_that_is_gone_again_keeps_its_letter(letters):
    item = letters.mail("undeleted", marked=True)
    letters.letter(item)
    request = letters.request()
    letters.steps(request, "plan", "check")
    drop_marks(letters.stores.tables.deleted, letters.queue, [item.enqueue_id])
    assert letters.steps(request, "apply")["skippedBy"] == {"its deleted mark is gone": 1}
    assert letters.dead_names() == ["undeleted"]


def test_a_row_behind_browse_start_proves_nothing_and_is_redriven_by_force_alone(letters):
    item = letters.mail("cleared")
    letters.letter(item)
    later = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) + 2 * HOUR
    letters.stores.tables.browse_starts.write(letters.queue, later, int(later.timestamp() * 1e6))
    assert letters.run(redrive=True)["keptBy"] == {
        "neither row nor deleted mark: it was dealt with": 1
    }
    assert letters.run(redrive=True, force_cleaned=True)["redriven"] == 1


def test_an_edited_plan_is_refused(letters):
    letters.letter(letters.mail("m", marked=True))
    request = letters.request()
    letters.steps(request, "plan", "check")
    (file,) = Path(letters.settings.duty.artifacts).rglob(f"{request.run}/plan/letters.parquet")
    import pyarrow.parquet as pq

    table = pq.read_table(file).to_pandas()
    table["action"] = "redrive"
    table.to_parquet(file)
    with pytest.raises(PlanRefused, match="was changed"):
        letters.steps(request, "apply")
    file.unlink()
    with pytest.raises(PlanRefused, match="cannot be read"):
        letters.steps(request, "apply")
    assert letters.dead_names() == ["m"]


def test_a_run_whose_time_is_over_leaves_the_rest_to_the_next(letters):
    for number in range(3):
        letters.letter(letters.mail(f"m{number}", marked=True))
    report = letters.run(time_limit="0s")
    assert (report["status"], report["dropped"], report["left"], report["kept"]) == (
        "done",
        0,
        3,
        3,
    )
    assert letters.run()["dropped"] == 3


def test_a_slow_run_gives_the_letters_back_before_the_broker_ends_its_channel(letters, monkeypatch):
    """At a letter a second, or at `--intensity`, a hundred of them may take longer than that."""
    looks = []

    def counted(*args):
        looks.append(time.monotonic())
        return check_out(*args)

    monkeypatch.setattr(actions, "check_out", counted)
    monkeypatch.setattr(actions, "MAX_CHECKOUT", timedelta(seconds=1))
    for number in range(4):
        letters.letter(letters.mail(f"m{number}"))
    assert letters.run(redrive=True, rate=1)["redriven"] == 4
    assert len(looks) > 1
    assert sorted(letters.work()) == [f"m{number}" for number in range(4)]


def test_a_store_that_does_not_answer_stops_the_run_before_anything_is_concluded(
    letters, monkeypatch
):
    letters.letter(letters.mail("m"))

    def away(*_):
        raise StoreUnavailable("S3 at nowhere: SlowDown")

    with monkeypatch.context() as patched:
        patched.setattr(AsyncBlobStore, "missing", away)
        with pytest.raises(StoreUnavailable, match="SlowDown"):
            letters.run(redrive=True)
    with monkeypatch.context() as patched:
        patched.setattr(DeletedMails, "marked", away)
        with pytest.raises(StoreUnavailable):
            letters.run()
    assert letters.dead_names() == ["m"]
    assert letters.run(redrive=True)["redriven"] == 1


def test_a_letter_whose_content_gets_no_answer_stays_and_stops_no_other(letters):
    mails = [letters.mail(name) for name in ("silent", "answers", "late")]
    for each in mails:
        letters.letter(each)
    s3 = letters.settings.s3
    bodies = [each.body_blob_id for each in mails]

    def refusing(*unreadable):
        return refusing_s3(s3.endpoint, *unreadable)

    def partly(endpoint):
        settings = {"s3": s3.model_copy(update={"endpoint": endpoint})}
        return replace(letters, settings=letters.settings.model_copy(update=settings))

    request = letters.request(redrive=True)
    with refusing(bodies[0]) as endpoint:
        partly(endpoint).steps(request, "plan", "check")
    with refusing(*bodies[::2]) as endpoint:
        report = partly(endpoint).steps(request, "apply", "verify", "report")
    assert report["keptBy"] == {"content unknown": 1}
    assert report["contentUnknown"] == [str(mails[0].enqueue_id)]
    assert (report["status"], report["redriven"], report["kept"]) == ("done", 1, 2)
    assert report["skippedBy"] == {"content unknown": 1}
    assert letters.dead_names() == ["silent", "late"]
    assert letters.work() == ["answers"]
    assert letters.run(redrive=True)["redriven"] == 2


@pytest.mark.soak
def test_a_look_that_lasts_until_its_time_out_costs_no_connection(letters, monkeypatch):
    """The broker ends a connection that is left unserved for 16 to 24 s."""
    for name in ("silent", "silent, too", "answers"):
        letters.letter(letters.mail(name))
    request, waits = letters.request(redrive=True), [9, 9, 9, 9]
    letters.steps(request, "plan", "check")

    async def slow(_, ids, unanswered):
        if waits:
            await asyncio.sleep(waits.pop())
            unanswered |= ids
        return set()

    monkeypatch.setattr(AsyncBlobStore, "missing", slow)
    applied = letters.steps(request, "apply")
    assert (applied["redriven"], applied["skippedBy"]) == (1, {"content unknown": 2})
    assert letters.work() == ["answers"]


def test_two_runs_at_once_and_a_census_beside_a_look_wait_or_are_refused(letters, monkeypatch):
    letters.letter(letters.mail("gone", marked=True))
    request = letters.request()
    letters.steps(request, "plan", "check")
    monkeypatch.setattr(DUTY, "lock_patience", timedelta(0))
    with (
        locked(letters.stores.own.locks, f"dead_letters/{letters.queue}", "another"),
        pytest.raises(LockHeld, match="another"),
    ):
        letters.steps(request, "apply")
    with (
        check_out(letters.settings.rabbitmq, letters.names.dead_letter_queue),
        pytest.raises(StoreUnavailable, match="has a consumer"),
    ):
        dead_letter_ids(letters.settings, letters.queue)
    assert letters.steps(request, "apply")["dropped"] == 1


@pytest.mark.parametrize(("step", "error"), [("plan", LockHeld), ("verify", TryAgain)])
def test_a_look_waits_for_the_run_that_is_at_work_and_does_not_meet_its_consumer(
    letters, monkeypatch, step, error
):
    """What a verify would tell of is done already: it is tried again, and nothing was refused."""
    letters.letter(letters.mail("gone", marked=True))
    request = letters.request()
    before = ["plan", "check", "apply", "verify"]
    letters.steps(request, *before[: before.index(step)])
    monkeypatch.setattr(DUTY, "lock_patience", timedelta(0))
    at_work = locked(letters.stores.own.locks, f"dead_letters/{letters.queue}", "another")
    with (
        at_work,
        check_out(letters.settings.rabbitmq, letters.names.dead_letter_queue),
        pytest.raises(error, match="another"),
    ):
        letters.steps(request, step)
    letters.steps(request, step)


def test_a_dead_letter_queue_of_another_kind_is_told_or_refused(letters):
    """As a vhost with quorum queues by default has them."""
    quorum = {"x-queue-type": "quorum", "x-quorum-initial-group-size": 1}
    for arguments in (quorum, {**quorum, "x-delivery-limit": 5}):
        with blocking_connection(letters.settings.rabbitmq) as connection:
            channel = connection.channel()
            channel.queue_delete(letters.names.dead_letter_queue)
            channel.queue_declare(
                letters.names.dead_letter_queue, durable=True, arguments=arguments
            )
            channel.queue_bind(
                letters.names.dead_letter_queue, letters.names.dead_letter_exchange, routing_key=""
            )
        letters.letter(letters.mail("back"))
        letters.letter(letters.mail("gone", marked=True))
        if "x-delivery-limit" in arguments:
            with pytest.raises(Refused, match="delivery limit 5"):
                letters.run(redrive=True)
            assert letters.dead_names() == ["back", "gone"]
        else:
            report = letters.run(redrive=True)
            assert (report["order"], report["redriven"], report["dropped"]) == (
                "what was looked at went to the back",
                1,
                1,
            )
            assert letters.work() == ["back"]


def test_names_of_queues_and_mails_may_be_odd(letters):
    letters.queue = queues.create(letters.stores, "wéird: queue.%25 of " + letters.queue)
    item = letters.mail("a\u202eb\x1b[31m@x")
    letters.letter(item)
    letters.letter(b"no mail")
    report = letters.run(redrive=True)
    assert (report["redriven"], report["exported"]) == (1, 1)
    assert report["sample"][0]["name"] == "a\\u202eb\\x1b[31m@x"
    assert [
        file.suffix
        for file in sorted(Path(report["exports"]).iterdir(), key=lambda file: file.suffix)
    ] == [".body", ".json"]


def test_a_letter_that_is_there_although_apply_has_dealt_with_it_fails(letters, monkeypatch):
    letters.letter(letters.mail(marked=True))
    request = letters.request()
    letters.steps(request, "plan", "check")
    with monkeypatch.context() as patch:
        patch.setattr(Checkout, "ack", lambda *_: None)
        assert letters.steps(request, "apply")["applied"] == 1
    with pytest.raises(GateFailed, match="No planned letter is in the queue"):
        letters.steps(request, "verify")


@pytest.mark.parametrize("content", [None, b"{another"])
def test_an_export_that_is_gone_or_holds_something_else_fails(letters, content):
    letters.letter(b"{no mail")
    request = letters.request()
    assert letters.steps(request, "plan", "check", "apply")["applied"] == 1
    world = artifacts(letters.settings)
    (body,) = (
        name for name in world.files(f"dead-letters/{letters.queue}") if name.endswith(".body")
    )
    world.remove(body) if content is None else world.write(body, content)
    with pytest.raises(GateFailed, match="Every exported letter is in its file"):
        letters.steps(request, "verify")
