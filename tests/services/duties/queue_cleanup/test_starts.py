"""browseStart and contentStart.

Where a cleanup moves them, and James writing them meanwhile (I3, I4).
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from mailslice.admin.enqueue import add_rows
from mailslice.duties.queue_cleanup import view as views
from mailslice.model.slices import slice_start
from mailslice.stores.cassandra.starts import StartTable
from mailslice.view.configuration import view_shape
from tests.services.duties.queue_cleanup.conftest import WINDOW, micros
from tests.services.duties.world import queued_mail


def test_browse_start_moves_to_the_oldest_live_row_and_content_start_follows(view):
    view.start_at(0)
    view.insert(0, dead=True)
    view.insert(1, dead=True)
    live = view.insert(3, dead=False)
    report = view.clean()
    assert (view.browse_start, view.content_start) == (view.at(3), view.at(3))
    assert (report["status"], report["planned"], report["applied"]) == ("done", 2, 2)
    assert report["before"] == {
        "browseStart": iso(view.at(0)),
        "contentStart": iso(view.at(0)),
        "live": 1,
        "dead": 2,
    }
    assert report["after"] == {
        "browseStart": iso(view.at(3)),
        "contentStart": iso(view.at(3)),
        "live": 1,
        "dead": 0,
    }
    assert view.rows(3) == {live}


def test_an_idle_queue_is_cleaned_up_to_now_less_the_grace(view):
    view.start_at(0)
    view.insert(0, dead=True)
    before = datetime.now(UTC) - timedelta(seconds=2)
    view.clean()
    after = datetime.now(UTC) - timedelta(seconds=2)
    assert slice_start(before, WINDOW) <= view.browse_start <= slice_start(after, WINDOW)
    assert view.content_start == view.browse_start


def test_an_idle_queue_without_any_row_moves_its_starts_too(view):
    view.start_at(0)
    report = view.clean()
    assert view.browse_start > view.at(20)
    assert (report["status"], report["planned"]) == ("done", 0)


def test_an_unaligned_browse_start_is_moved_up_to_a_multiple_that_passes_no_live_row(view):
    view.start_at(view.at(0) + timedelta(seconds=3), content=0)
    view.insert(1, dead=True)
    view.insert(2, dead=False)
    view.clean()
    assert view.browse_start == view.at(2)


def test_an_unaligned_browse_start_stays_while_a_row_of_its_slice_is_live(view):
    unaligned = view.at(2) + timedelta(seconds=3)
    view.start_at(unaligned, content=0)
    kept = view.insert(2, dead=False)
    view.insert(3, dead=False)
    report = view.clean()
    # Size and browse show the row in slice 2. No multiple after 2 + 3 s leaves it in view, and a
    # start never moves back.
    assert (view.browse_start, view.content_start) == (unaligned, view.at(2))
    assert (report["after"]["live"], report["unproven"], view.rows(2)) == (2, 0, {kept})
    view.mark(kept)
    report = view.clean()
    assert (view.browse_start, report["after"]["live"]) == (view.at(3), 1)


def test_a_missing_browse_start_means_that_there_is_nothing_to_do(view):
    view.insert(0, dead=True)
    report = view.clean()
    assert report["status"] == "nothing to do"
    assert "no browseStart" in report["message"]
    assert len(view.rows(0)) == 1


def test_a_missing_content_start_is_taken_from_the_oldest_row(view):
    view.start_at(2, content=None)
    view.insert(0, dead=True)
    view.insert(3, dead=False)
    report = view.clean()
    assert (report["applied"], view.rows(0)) == (1, set())
    assert (view.browse_start, view.content_start) == (view.at(3), view.at(3))


def test_rows_before_the_browse_start_of_an_older_james_go_after_an_enqueue_too(view):
    """James 3.5 and 3.6 have no contentStart: an enqueue of ours leaves it to the cleanup."""
    view.start_at(2, content=None)
    view.insert(0, dead=True)
    live = queued_mail()
    add_rows(view.stores, view.queue, [live], view_shape(view.stores), datetime.now(UTC))
    report = view.clean()
    assert (report["status"], report["applied"], view.rows(0)) == ("done", 1, set())
    assert view.at(2) < view.content_start <= view.browse_start


def test_content_start_stays_before_a_slice_that_keeps_a_row(view):
    view.start_at(4, content=0)
    view.insert(0, dead=True)
    behind = view.insert(2, dead=False)
    view.insert(3, dead=True)
    view.insert(6, dead=False)
    view.clean()
    assert (view.content_start, view.browse_start) == (view.at(2), view.at(6))
    assert view.rows(2) == {behind}
    assert view.rows(3) == set()


def test_a_browse_start_that_james_raised_after_the_plan_is_not_lowered(view):
    view.start_at(0)
    view.insert(0, dead=True)
    view.insert(5, dead=False)
    request = view.request()
    view.steps(request, "plan", "check")
    view.james_writes_browse_start(view.at(7))
    view.steps(request, "apply", "verify", "report")
    assert view.browse_start == view.at(7)
    assert view.rows(0) == set()


def test_a_browse_start_that_james_raises_between_our_read_and_our_write_wins(view, monkeypatch):
    view.start_at(0)
    view.insert(0, dead=True)
    view.insert(5, dead=False)
    written = StartTable.write

    def james_first(self, queue, value, timestamp_us):
        if self._name.lower().endswith("browsestart"):
            written(self, queue, view.at(8), micros(datetime.now(UTC)))
        written(self, queue, value, timestamp_us)

    monkeypatch.setattr(StartTable, "write", james_first)
    report = view.clean()
    assert view.browse_start == view.at(8)
    assert report["after"]["browseStart"] == iso(view.at(8))
    assert view.content_start == view.at(
        5
    )  # the live row of slice 5 is left, whatever James thinks of it


def test_a_browse_start_that_james_lowers_after_our_write_keeps_content_start_behind_it(
    view, monkeypatch
):
    view.start_at(2, content=0)
    view.insert(0, dead=True)
    view.insert(2, dead=True)
    moved = views.move_browse_start

    def then_james(stores, queue, *wanted):
        found = moved(stores, queue, *wanted)
        view.james_writes_browse_start(view.at(1))
        return replace(found, after=stores.tables.browse_starts.get(queue).value)

    monkeypatch.setattr(views, "move_browse_start", then_james)
    view.clean()
    assert view.browse_start == view.at(1)
    assert view.content_start == view.at(1)
    assert view.rows(0) | view.rows(2) == set()


def test_a_browse_start_that_james_lowers_between_plan_and_apply_makes_its_rows_live_again(view):
    view.start_at(4, content=0)
    live = view.insert(2, dead=False)
    request = view.request()
    view.steps(request, "plan", "check")
    view.james_writes_browse_start(view.at(1))
    view.steps(request, "apply", "verify")
    assert view.browse_start == view.at(2)  # up to the row that is live again, not past it
    assert view.rows(2) == {live}


def test_a_row_without_a_mark_that_comes_after_the_plan_holds_browse_start(view):
    view.start_at(0)
    view.insert(0, dead=True)
    view.insert(9, dead=False)
    request = view.request()
    view.steps(request, "plan", "check")
    late = view.insert(4, dead=False)
    view.steps(request, "apply", "verify", "report")
    assert view.browse_start == view.at(4)
    assert view.rows(4) == {late}


def test_starts_are_written_after_what_james_wrote_with_a_clock_that_is_ahead(view):
    view.start_at(0)
    ahead = micros(datetime.now(UTC)) + 400_000
    view.stores.tables.browse_starts.write(view.queue, view.at(0), ahead)
    view.insert(0, dead=True)
    view.insert(5, dead=False)
    view.clean()
    assert view.browse_start == view.at(5)


def iso(when: datetime) -> str:
    return when.isoformat().replace("+00:00", "Z")
