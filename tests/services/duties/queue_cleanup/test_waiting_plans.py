"""Files of waiting plans that broke or were changed: their marks stay, and nothing else does."""

import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pika
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mailslice.duties.queue_cleanup import sweep
from mailslice.model.names import RabbitNames
from tests.services.duties.queue_cleanup.test_marks import dead_letter, rewrite, seen_empty, soon


def cut(path):
    """As a power loss does."""
    path.write_bytes(path.read_bytes()[:100])


def no_ids(path):
    table = pq.read_table(path)
    column = pa.array(["x"] * len(table), pa.string())
    pq.write_table(
        table.set_column(
            table.schema.get_field_index("enqueue_id"), table.schema.field("enqueue_id"), column
        ),
        path,
    )


def no_times(path):
    table = pq.read_table(path)
    pq.write_table(
        table.set_column(
            table.schema.get_field_index("written_us"),
            "written_us",
            pa.array(["soon"] * len(table)),
        ),
        path,
    )


def purge(view):
    """Nothing is among the dead letters any more."""
    connection = pika.BlockingConnection(
        pika.URLParameters(view.settings.rabbitmq.url.get_secret_value())
    )
    connection.channel().queue_purge(RabbitNames(view.queue).dead_letter_queue)
    connection.close()


@pytest.fixture
def waiting(shared_view):
    """(view with a live row in slice 5, that row, an id whose mark waits in a plan whose rows are gone, the plan's files)."""
    shared_view.start_at(0)
    waits, live = shared_view.insert(0, dead=True), shared_view.insert(5, dead=False)
    report = shared_view.clean()
    assert (report["marks"]["waiting"], shared_view.rows(0), shared_view.content_start) == (
        1,
        set(),
        shared_view.at(5),
    )
    files = list(Path(report["artifacts"], "plan").glob("*.parquet"))
    assert files
    return shared_view, live, waits, files


@pytest.mark.parametrize(
    "harm", [cut, Path.unlink, no_ids, pytest.param(no_times, marks=pytest.mark.soak)]
)
def test_a_plan_whose_files_cannot_be_read_waits_and_holds_up_nothing_else(waiting, harm):
    view, gone, waits, files = waiting
    for path in files:
        harm(path)
    view.mark(gone)
    live = view.insert(8, dead=False)
    seen_empty(view, soon())
    report = view.clean()
    assert (
        report["status"],
        report["applied"],
        report["marks"]["dropped"],
        report["marks"]["waiting"],
    ) == ("done", 1, 1, 1)
    assert "cannot be used: " in report["marks"]["why"][0]
    assert (view.is_marked(waits), view.is_marked(gone), view.rows(8)) == (True, False, {live})
    assert (view.browse_start, view.content_start) == (view.at(8), view.at(8))


@pytest.mark.soak
def test_a_plan_whose_files_cannot_be_read_waits_with_spark_too(waiting, with_spark):
    view, _, waits, files = waiting
    for path in files:
        cut(path)
    seen_empty(view, soon())
    report = view.clean()
    assert (report["marks"]["dropped"], view.is_marked(waits)) == (0, True)
    assert "were changed or removed (ArrowInvalid: " in report["marks"]["why"][0]


def remembered(view):
    """How many plans are."""
    return len(view.stores.own.pending_marks.list(view.queue))


@pytest.mark.parametrize("harm", [cut, pytest.param(rewrite, marks=pytest.mark.soak)])
def test_a_sweep_takes_the_marks_of_a_plan_that_cannot_be_used_and_forgets_it(waiting, harm):
    view, _, waits, files = waiting
    for path in files:
        harm(path)
    assert view.clean(sweep=True)["marks"]["waiting"] == 1
    assert (remembered(view), view.is_marked(waits)) == (1, True)
    seen_empty(view, datetime.now(UTC) + timedelta(minutes=1))
    report = view.clean()
    assert (
        report["marks"]["dropped"],
        report["marks"]["waiting"],
        view.is_marked(waits),
        remembered(view),
    ) == (1, 0, False, 0)


def test_a_plan_whose_marks_are_gone_is_forgotten_by_a_sweep_that_finds_none(waiting):
    view, _, waits, files = waiting
    for path in files:
        cut(path)
    view.unmark(waits)
    assert view.clean()["marks"]["waiting"] == 1
    assert view.clean(sweep=True)["marks"]["waiting"] == 0
    assert remembered(view) == 0


def test_a_sweep_that_leaves_marks_for_the_next_forgets_no_plan(waiting, monkeypatch):
    view, _, waits, files = waiting
    for path in files:
        cut(path)
    view.mark(uuid.uuid4())
    with monkeypatch.context() as patch:
        patch.setattr(sweep, "MOST", 1)
        view.clean(sweep=True)
    assert remembered(view) == 2
    view.clean(sweep=True)
    assert remembered(view) == 2  # this sweep's and the one before
    seen_empty(view, datetime.now(UTC) + timedelta(minutes=1))
    assert (view.clean()["marks"]["dropped"], view.is_marked(waits), remembered(view)) == (
        2,
        False,
        0,
    )


def test_a_plan_that_can_be_read_again_when_the_sweep_is_applied_is_not_forgotten(waiting):
    view, _, waits, files = waiting
    kept = [path.read_bytes() for path in files]
    for path in files:
        cut(path)
    request = view.request(sweep=True)
    view.steps(request, "plan", "check")
    for path, content in zip(files, kept, strict=True):
        path.write_bytes(content)
    view.steps(request, "apply")
    assert (remembered(view), view.is_marked(waits)) == (2, True)


def test_a_sweep_that_ends_before_it_forgets_a_plan_loses_no_mark_and_the_next_one_does(
    waiting, monkeypatch
):
    view, _, waits, files = waiting
    for path in files:
        cut(path)

    class Died(Exception):
        pass

    def die(*_):
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(type(view.stores.own.pending_marks), "delete", die)
        with pytest.raises(Died):
            view.clean(sweep=True)
    assert remembered(view) == 2  # its own was written before
    assert view.clean(sweep=True)["marks"]["waiting"] == 1
    assert (remembered(view), view.is_marked(waits)) == (1, True)


@pytest.fixture
def left(shared_view):
    """(view, an id whose mark stays for its dead letter, the file of the marks that are left)."""
    shared_view.start_at(0)
    lettered = shared_view.insert(0, dead=True)
    shared_view.insert(0, dead=True)
    dead_letter(shared_view, lettered)
    seen_empty(shared_view, soon())
    report = shared_view.clean()
    assert (report["marks"]["dropped"], report["marks"]["waiting"]) == (1, 1)
    (file,) = Path(report["artifacts"]).glob("*marks-left.json")
    return shared_view, lettered, file


def test_an_id_that_was_added_to_the_marks_that_are_left_keeps_its_mark(left):
    view, lettered, file = left
    added = uuid.uuid4()
    view.mark(added)
    file.write_text(file.read_text().replace('"left": [', f'"left": [["{added}", 0, 0], '))
    assert str(added) in file.read_text()
    report = view.clean()
    assert (report["marks"]["dropped"], view.is_marked(added), view.is_marked(lettered)) == (
        0,
        True,
        True,
    )
    assert "cannot be used: its digest is another" in report["marks"]["why"][0]


@pytest.mark.soak
def test_marks_that_are_left_are_written_again_when_they_are_others_and_the_old_list_goes(
    shared_view,
):
    view = shared_view
    view.start_at(0)
    lettered = [view.insert(0, dead=True) for _ in range(2)]
    for each in lettered:
        dead_letter(view, each)
    seen_empty(view, soon())
    folder = Path(view.clean()["artifacts"])
    (both,) = folder.glob("*marks-left.json")
    written = both.stat().st_mtime_ns
    assert view.clean()["marks"]["waiting"] == 2
    assert [path.stat().st_mtime_ns for path in folder.glob("*marks-left.json")] == [written]
    purge(view)
    dead_letter(view, lettered[0])
    report = view.clean()
    assert (report["marks"]["dropped"], report["marks"]["waiting"], both.exists()) == (1, 1, False)
    assert [view.is_marked(each) for each in lettered] == [True, False]
    purge(view)
    assert view.clean()["marks"]["dropped"] == 1
    assert list(folder.glob("*marks-left.json")) == []


def test_a_run_that_ends_before_its_new_list_is_named_leaves_the_old_one(shared_view, monkeypatch):
    view = shared_view
    view.start_at(0)
    lettered = [view.insert(0, dead=True) for _ in range(3)]
    for each in lettered:
        dead_letter(view, each)
    seen_empty(view, soon())
    assert view.clean()["marks"]["waiting"] == 3
    purge(view)
    dead_letter(view, lettered[0])

    class Died(Exception):
        pass

    def die(*_):
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(type(view.stores.own.pending_marks), "save", die)
        with pytest.raises(Died):
            view.clean()
    report = view.clean()
    assert (report["marks"]["dropped"], report["marks"]["waiting"]) == (2, 1)
    assert [view.is_marked(each) for each in lettered] == [True, False, False]
