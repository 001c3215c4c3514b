"""V3 and V4 share starts and marks: where both exist every start and proof considers both."""

from datetime import UTC, datetime

from mailslice.model.names import CONTENT_START
from mailslice.stores.cassandra.ddl import tables_of
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


def test_a_plan_makes_no_table_beside_an_older_james_and_an_apply_content_start_alone(older_view):
    """So a second try of a killed apply has the tables of its plan."""
    view = older_view
    view.stores.tables.browse_starts.insert_first(view.queue, view.at(1))
    view.insert(0, dead=True, table=view.stores.tables.v3)
    live = view.insert(3, dead=False, table=view.stores.tables.v3)
    session, keyspace = view.stores.cassandra, view.settings.cassandra.keyspace
    before = tables_of(session, keyspace)
    report = view.clean(dry_run=True)
    assert (report["status"], report["planned"]) == ("dry run", 1)
    assert tables_of(session, keyspace) == before
    request = view.request()
    view.steps(request, "plan", "check")
    view.kill("apply", request, "apply:after-content-start")
    view.let_the_locks_run_out()
    view.steps(request, "apply", "verify", "report")
    assert tables_of(session, keyspace) == before | {CONTENT_START}
    assert (view.rows(0), view.rows(3)) == (set(), {live})
    assert (view.browse_start, view.content_start) == (view.at(3), view.at(3))


def test_a_missing_content_start_is_found_in_either_table(view_of_two):
    view = view_of_two
    view.start_at(3, content=None)
    view.insert(0, dead=True, table=view.stores.tables.v3)
    view.clean()
    assert view.rows(0) == set()
    assert view.content_start <= datetime.now(UTC)
    assert view.content_start == view.browse_start
