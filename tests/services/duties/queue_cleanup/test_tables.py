"""V3 and V4 share starts and marks: where both exist every start and proof considers both."""

from datetime import UTC, datetime

from tests.services.duties.queue_cleanup.test_kill import later


def test_dead_rows_of_both_tables_go(view_of_two):
    view = view_of_two
    view.start_at(0)
    view.insert(0, dead=True, table=view.stores.tables.v3)
    view.insert(0, dead=True, table=view.stores.tables.v4)
    report = view.clean()
    assert (report["applied"], view.rows(0)) == (2, set())


def test_a_live_row_in_v3_keeps_the_slice_and_browse_start_for_v4_too(view_of_two):
    view = view_of_two
    view.start_at(0)
    old = view.insert(1, dead=False, table=view.stores.tables.v3)
    dead = view.insert(1, dead=True, table=view.stores.tables.v4)
    view.insert(0, dead=True, table=view.stores.tables.v4)
    view.clean()
    assert view.rows(1) == {old, dead}
    assert (view.browse_start, view.content_start) == (view.at(1), view.at(1))


def test_marks_stay_while_v3_holds_rows_of_the_queue_and_go_afterwards(view_of_two, monkeypatch):
    view = view_of_two
    view.start_at(0)
    stuck = view.insert(5, dead=False, table=view.stores.tables.v3)
    gone = view.insert(0, dead=True, table=view.stores.tables.v4)
    report = view.clean()
    assert (view.rows(0), view.is_marked(gone)) == (set(), True)
    assert report["marks"]["why"] == ["1: enqueuedMailsV3 still holds rows of the queue"]
    view.mark(stuck)
    view.clean(sweep=True)
    assert view.rows(5) == set()
    later(view, monkeypatch)  # drops the mark that the sweep listed
    assert (view.is_marked(gone), view.is_marked(stuck)) == (False, False)


def test_a_row_that_was_migrated_is_dead_in_both_tables_or_in_none(view_of_two):
    view = view_of_two
    view.start_at(0)
    both = view.insert(0, dead=True, table=view.stores.tables.v3)
    view.insert(0, dead=True, table=view.stores.tables.v4, enqueue_id=both)
    report = view.clean()
    assert (report["applied"], view.rows(0), view.is_marked(both)) == (2, set(), False)


def test_a_late_insert_into_v3_is_seen_by_the_second_read(view_of_two):
    view = view_of_two
    view.start_at(0)
    view.insert(0, dead=True, table=view.stores.tables.v4)
    request = view.request()
    view.steps(request, "plan", "check")
    late = view.insert(0, dead=False, table=view.stores.tables.v3)
    view.steps(request, "apply")
    assert late in view.rows(0)
    assert len(view.rows(0)) == 2
    assert view.browse_start == view.at(0)


def test_a_missing_content_start_is_found_in_either_table(view_of_two):
    view = view_of_two
    view.start_at(3, content=None)
    view.insert(0, dead=True, table=view.stores.tables.v3)
    view.clean()
    assert view.rows(0) == set()
    assert view.content_start <= datetime.now(UTC)
    assert view.content_start == view.browse_start
