"""Deleted marks go with a proof only, and never while a row with their id is left (I5)."""

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pika
import pytest

from mailslice.codec import message
from mailslice.duties.queue_cleanup import marks
from mailslice.maintenance.registry import load
from mailslice.model import crash
from mailslice.model.errors import Refused, StoreUnavailable
from mailslice.model.mail import BlobId, Mail, QueuedMail
from mailslice.model.names import RabbitNames
from mailslice.stores.cassandra.own import QueueSample
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.stores.rabbitmq.traffic import traffic
from mailslice.view import sharing


def seen_empty(view, at: datetime) -> None:
    view.stores.own.queue_samples.save(view.queue, QueueSample(at, at + timedelta(seconds=15)))


def soon() -> datetime:
    """Later than the plan of a run that begins now, by the clocks of any two machines."""
    return datetime.now(UTC) + timedelta(minutes=10)


def dead_letter(view, enqueue_id) -> None:
    publish(view, RabbitNames(view.queue).dead_letter_queue, enqueue_id)


def publish(view, name, enqueue_id) -> None:
    body = message.encode(QueuedMail(enqueue_id, Mail("mail", None, ()), BlobId("h"), BlobId("b")))
    connection = pika.BlockingConnection(
        pika.URLParameters(view.settings.rabbitmq.url.get_secret_value())
    )
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("", name, body)
    connection.close()


def test_marks_go_with_their_rows_when_mailslice_alone_works_on_the_queue(view):
    view.start_at(0)
    gone = view.insert(0, dead=True)
    report = view.clean()
    assert not view.is_marked(gone)
    assert report["marks"] == {
        "dropped": 1,
        "waiting": 0,
        "why": [],
        "proof": "cleaned_check",
        "listed": 0,
    }


def test_marks_of_a_shared_queue_stay_without_a_proof_and_the_report_says_how_many_and_why(
    shared_view,
):
    shared_view.start_at(0)
    kept = {shared_view.insert(0, dead=True), shared_view.insert(1, dead=True)}
    report = shared_view.clean()
    assert report["applied"] == 2
    assert all(shared_view.is_marked(each) for each in kept)
    assert (report["marks"]["dropped"], report["marks"]["waiting"]) == (0, 2)
    assert "2: the broker was not seen empty since the marks were read" in report["marks"]["why"][0]


def test_marks_of_a_shared_queue_go_when_it_was_seen_empty_after_they_were_read(shared_view):
    shared_view.start_at(0)
    gone = shared_view.insert(0, dead=True)
    seen_empty(shared_view, soon())
    report = shared_view.clean()
    assert not shared_view.is_marked(gone)
    assert report["marks"]["proof"] == "drained"


def test_emptiness_seen_before_the_marks_were_read_proves_nothing(shared_view):
    """The mark may be younger: an old message comes back, and is deleted then."""
    shared_view.start_at(0)
    kept = shared_view.insert(0, dead=True)
    seen_empty(shared_view, datetime.now(UTC))
    shared_view.clean()
    assert shared_view.is_marked(kept)


def test_the_mark_of_a_dead_letter_stays_until_it_left_the_dead_letter_queue(shared_view):
    shared_view.start_at(0)
    lettered, gone = shared_view.insert(0, dead=True), shared_view.insert(0, dead=True)
    dead_letter(shared_view, lettered)
    seen_empty(shared_view, soon())
    report = shared_view.clean()
    assert (shared_view.is_marked(lettered), shared_view.is_marked(gone)) == (True, False)
    assert report["marks"]["why"] == ["1: the mail is among the dead letters"]
    shared_view.clean(sweep=True)
    again = shared_view.clean()
    assert (again["marks"]["waiting"], shared_view.is_marked(lettered)) == (1, True)
    with blocking_connection(shared_view.settings.rabbitmq) as connection:
        connection.channel().queue_purge(RabbitNames(shared_view.queue).dead_letter_queue)
    shared_view.clean(sweep=True)
    last = shared_view.clean()
    assert (last["marks"]["dropped"], shared_view.is_marked(lettered)) == (1, False)


def test_marks_stay_when_the_dead_letters_cannot_be_counted(shared_view, monkeypatch):
    def unknown(*_):
        raise StoreUnavailable("a consumer is in the way")

    monkeypatch.setattr(marks, "dead_letter_ids", unknown)
    shared_view.start_at(0)
    kept = shared_view.insert(0, dead=True)
    seen_empty(shared_view, soon())
    report = shared_view.clean()
    assert shared_view.is_marked(kept)
    assert report["marks"]["why"] == ["1: the dead letters could not be counted"]


def test_a_mark_stays_while_a_row_of_its_id_is_in_another_slice(view):
    view.start_at(0)
    twice = view.insert(0, dead=True)
    view.insert(3, dead=True, enqueue_id=twice)
    view.insert(3, dead=False)
    report = view.clean()
    assert report["applied"] == 1
    assert view.is_marked(twice)  # without it, the row in slice 3 would be live again
    assert twice in view.rows(3)


def test_a_mark_stays_while_a_row_of_its_id_is_in_an_open_slice(view):
    view.start_at(0)
    twice = view.insert(0, dead=True)
    view.insert(
        int((datetime.now(UTC) - view.base) / timedelta(seconds=10)), dead=True, enqueue_id=twice
    )
    view.clean()
    assert view.is_marked(twice)


def test_a_planned_row_that_is_written_again_after_the_delete_keeps_its_mark(view, monkeypatch):
    from mailslice.duties.queue_cleanup import duty

    view.start_at(0)
    again = view.insert(0, dead=True)
    delete = duty.delete_partitions

    def then_again(*args, **kwargs):
        failures = delete(*args, **kwargs)
        view.insert(0, dead=False, enqueue_id=again)
        return failures

    monkeypatch.setattr(duty, "delete_partitions", then_again)
    report = view.clean()
    assert (report["applied"], report["failed"]) == (0, 1)
    assert view.is_marked(again)


def test_marks_of_skipped_slices_stay(view):
    view.start_at(0)
    skipped, gone = view.insert(0, dead=True), view.insert(1, dead=True)
    request = view.request()
    view.steps(request, "plan", "check")
    view.insert(0, dead=False)
    view.steps(request, "apply")
    assert (view.is_marked(skipped), view.is_marked(gone)) == (True, False)


def rewrite(path) -> None:
    """Another write time in every row: still a plan, but not the one that was made."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    column = pa.array([value + 1 for value in table.column("written_us").to_pylist()], pa.int64())
    pq.write_table(
        table.set_column(
            table.schema.get_field_index("written_us"), table.schema.field("written_us"), column
        ),
        path,
    )


def test_a_mark_of_another_queue_with_the_same_id_is_not_touched(view):
    other = replace(view, queue=view.queue + "-other")
    view.start_at(0)
    shared_id = view.insert(0, dead=True)
    other.mark(shared_id)
    view.clean()
    assert (view.is_marked(shared_id), other.is_marked(shared_id)) == (False, True)


def test_marks_stay_where_james_was_let_in_after_the_plan(own_view):
    sharing.change(own_view.stores, shared=False)
    own_view.start_at(0)
    dead = own_view.insert(0, dead=True)
    request = own_view.request()
    own_view.steps(request, "plan", "check")
    let_james_in(own_view)
    report = own_view.steps(request, "apply", "verify", "report")
    assert (report["applied"], own_view.rows(0)) == (1, set())
    assert report["marks"]["dropped"] == 0
    assert "was changed since this run began" in report["message"]
    assert own_view.stores.tables.deleted.is_marked(own_view.queue, dead)


def test_james_is_not_let_in_while_a_cleanup_drops_marks_with_their_rows(own_view):
    sharing.change(own_view.stores, shared=False)
    own_view.start_at(0)
    own_view.insert(0, dead=True)
    refusals = []

    def try_to_let_james_in(point):
        if point == "apply:after-deletes":
            try:
                let_james_in(own_view)
            except Refused as refused:
                refusals.append(str(refused))

    crash.arm(try_to_let_james_in)
    try:
        report = own_view.clean()
    finally:
        crash.arm(None)
    assert len(refusals) == 1
    assert f"queue_cleanup/{own_view.queue} is locked by run {report['run']}," in refusals[0]
    assert (report["marks"]["dropped"], report["marks"]["proof"]) == (1, "cleaned_check")
    let_james_in(own_view)
    assert sharing.stored(own_view.stores) is True


def test_james_is_not_let_in_while_a_message_waits_whose_mail_was_deleted_and_cleaned(own_view):
    """Its mark went with its row: a worker that looks at marks alone would hand it out."""
    sharing.change(own_view.stores, shared=False)
    own_view.start_at(0)
    deleted = own_view.insert(0, dead=True)
    publish(own_view, RabbitNames(own_view.queue).work_queue, deleted)
    own_view.clean()
    assert (own_view.rows(0), own_view.is_marked(deleted)) == (set(), False)
    until(lambda: own_view.stores.management.messages(work_queue(own_view)) == 1)
    with pytest.raises(Refused, match=rf"{work_queue(own_view)}: 1; 1 in all"):
        sharing.change(own_view.stores, shared=True)
    assert sharing.stored(own_view.stores) is False


def test_a_cleanup_that_began_when_james_was_let_in_waits_for_the_lock_and_keeps_marks(own_view):
    """The locks of all cleanups are held until the answer is stored."""
    sharing.change(own_view.stores, shared=False)
    duty, held = load("queue_cleanup").logic, []
    lock = duty.locks(own_view.request())[0]
    stores, locks = own_view.stores, own_view.stores.own.locks

    class Watched:
        def change(self, *values):
            held.append(locks.holder(lock))
            return locks.change(*values)

        def __getattr__(self, name):
            return getattr(locks, name)

    stores.own.locks = Watched()
    try:
        let_james_in(own_view)
    finally:
        stores.own.locks = locks
    assert held == ["config shared"]
    assert locks.holder(lock) is None


def until(condition, seconds=40) -> None:
    """RabbitMQ's figures are up to 10 s late."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.5)


def work_queue(view) -> str:
    return RabbitNames(view.queue).work_queue


def let_james_in(view) -> None:
    """Once RabbitMQ has figures of the new queues."""
    until(lambda: all(one.depth for one in traffic(view.stores.management).values()))
    assert sharing.change(view.stores, shared=True, sleep=lambda _: None)
