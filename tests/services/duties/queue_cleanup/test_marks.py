"""Deleted marks go with a proof only, and never while a row with their id is left (I5)."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pika

from mailslice.codec import message
from mailslice.duties.queue_cleanup import marks
from mailslice.model import crash
from mailslice.model.errors import StoreUnavailable
from mailslice.model.mail import BlobId, Mail, QueuedMail
from mailslice.model.names import RabbitNames
from mailslice.stores.cassandra.own import QueueSample
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.view import sharing


def seen_empty(view, at: datetime) -> None:
    view.stores.own.queue_samples.save(view.queue, QueueSample(at, at + timedelta(seconds=15)))


def soon() -> datetime:
    """Later than the plan of a run that begins now, by the clocks of any two machines."""
    return datetime.now(UTC) + timedelta(minutes=10)


def dead_letter(view, enqueue_id) -> None:
    body = message.encode(QueuedMail(enqueue_id, Mail("mail", None, ()), BlobId("h"), BlobId("b")))
    connection = pika.BlockingConnection(
        pika.URLParameters(view.settings.rabbitmq.url.get_secret_value())
    )
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("", RabbitNames(view.queue).dead_letter_queue, body)
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


def test_marks_stay_where_james_was_let_in_while_the_run_was_at_work(own_view):
    sharing.change(own_view.stores, shared=False)
    own_view.start_at(0)
    dead = own_view.insert(0, dead=True)

    def let_james_in(point):
        if point == "apply:after-deletes":
            sharing.change(own_view.stores, shared=True)

    crash.arm(let_james_in)
    try:
        report = own_view.clean()
    finally:
        crash.arm(None)
    assert (report["applied"], own_view.rows(0)) == (1, set())
    assert report["marks"]["dropped"] == 0
    assert "was changed since this run began" in report["message"]
    assert own_view.stores.tables.deleted.is_marked(own_view.queue, dead)
