"""Verify fails for what is wrong in the stores, and for nothing that James does meanwhile."""

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partialmethod

import pytest

from mailslice.duties.queue_cleanup import duty
from mailslice.duties.queue_cleanup import view as views
from mailslice.duties.queue_cleanup.reads import SecondRead
from mailslice.model.errors import GateFailed
from mailslice.model.mail import EnqueueId, Partition
from tests.services.duties.queue_cleanup.conftest import micros


@pytest.fixture
def busy(view):
    """(view, a request, its dead row in slice 0, its live row in slice 3)."""
    view.start_at(0)
    dead, live = view.insert(0, dead=True), view.insert(3, dead=False)
    return view, view.request(), dead, live


def now_us():
    return micros(datetime.now(UTC))


def test_james_moving_both_starts_on_while_apply_works_is_no_alarm(busy, monkeypatch):
    view, request, _, live = busy
    delete = duty.delete_partitions

    def meanwhile(*args, **kwargs):
        view.mark(live)
        view.james_writes_browse_start(view.at(7))
        found = delete(*args, **kwargs)
        view.james_writes_browse_start(view.at(9) + timedelta(seconds=3))
        view.stores.tables.content_starts.write(
            view.queue, view.at(9) + timedelta(seconds=3), now_us() + 10_000_000
        )
        return found

    monkeypatch.setattr(duty, "delete_partitions", meanwhile)
    view.steps(request, "plan", "check", "apply")
    assert view.steps(request, "verify")["success"]


def test_james_moving_past_a_mail_that_is_live_is_not_judged(busy):
    view, request, _, _ = busy
    view.steps(request, "plan", "check", "apply")
    view.james_writes_browse_start(view.at(8))
    assert view.steps(request, "verify")["success"]


@pytest.mark.parametrize("unseen", [False, True])
@pytest.mark.parametrize("james_moved", [False, True])
def test_a_start_of_ours_that_passed_a_live_mail_fails(busy, monkeypatch, unseen, james_moved):
    """Also a start that is lower than the plan's, a mail that the plan's read did not see, and a
    start that James moved between plan and apply.
    """
    view, request, dead, live = busy
    if unseen:
        view.mark(live)
        view.insert(9, dead=False)
    view.steps(request, "plan", "check")
    if unseen:
        row = view.stores.tables.v4.row(view.queue, Partition(view.at(0), 0), dead)
        late = replace(
            row,
            partition=Partition(view.at(4), 0),
            item=replace(row.item, enqueue_id=EnqueueId(uuid.uuid4())),
        )
        view.stores.tables.v4.copy_many([(late, now_us() - 60_000_000)])
    monkeypatch.setattr(SecondRead, "browse_start", lambda *_: view.at(5))
    if james_moved:
        view.james_writes_browse_start(view.at(1))
    view.steps(request, "apply")
    with pytest.raises(GateFailed, match="live_rows_passed is 1 "):
        view.steps(request, "verify")


def test_a_live_mail_that_was_done_behind_a_start_of_ours_is_no_alarm(busy, monkeypatch):
    view, request, _, live = busy
    view.steps(request, "plan", "check")
    view.mark(live)
    monkeypatch.setattr(SecondRead, "browse_start", lambda *_: view.at(5))
    view.steps(request, "apply")
    assert view.steps(request, "verify")["success"]


def test_james_moving_both_starts_between_the_two_reads_is_no_alarm(busy, monkeypatch):
    view, request, _, live = busy
    view.steps(request, "plan", "check", "apply")
    view.mark(live)
    moved = []

    def first_of_two(self, queue, *, read):
        found = read(self, queue)
        if not moved and self._name.lower().endswith("browsestart"):
            moved.append(view.at(9))
            view.james_writes_browse_start(view.at(9))
            view.stores.tables.content_starts.write(view.queue, view.at(9), now_us() + 10_000_000)
        return found

    kind = type(view.stores.tables.browse_starts)
    monkeypatch.setattr(kind, "get", partialmethod(first_of_two, read=kind.get))
    assert view.steps(request, "verify")["success"]
    assert moved


def test_james_dropping_marks_while_verify_reads_is_no_alarm(busy, monkeypatch):
    """It writes browseStart, then drops marks, then rows: verify has read the row."""
    view, request, _, live = busy
    view.steps(request, "plan", "check")
    view.mark(live)
    monkeypatch.setattr(SecondRead, "browse_start", lambda *_: view.at(5))
    view.steps(request, "apply")
    table = type(view.stores.tables.v4)
    ids = table.ids

    def meanwhile(*args):
        found = list(ids(*args))
        view.james_writes_browse_start(view.at(5))
        view.unmark(live)
        return iter(found)

    monkeypatch.setattr(table, "ids", meanwhile)
    assert view.steps(request, "verify")["success"]


@pytest.mark.parametrize("grace", ["2s", "1h"])
def test_slices_are_remembered_as_of_when_they_were_read(busy, grace):
    """Verify or report may come a day later.

    A slice that was open when it was read has new mail by then.
    """
    view, _, _, live = busy
    request = view.request(grace=grace)
    view.steps(request, "plan", "check", "apply")
    for step in ("verify", "report"):
        view.steps(request, step, clock=lambda: datetime.now(UTC) + timedelta(hours=2))
    known = view.stores.remembered_slices(view.queue)
    assert [each.survivors for each in known] == ([(live,)] if grace == "2s" else [])
    assert all(each.cleaned_at < datetime.now(UTC) for each in known)


def test_a_content_start_after_browse_start_fails(busy):
    view, request, _, _ = busy
    view.steps(request, "plan", "check", "apply")
    view.stores.tables.content_starts.write(view.queue, view.at(4), now_us())
    with pytest.raises(GateFailed, match="contentStart is not after browseStart"):
        view.steps(request, "verify")


@pytest.mark.parametrize("before", ["apply", "verify"])
def test_a_mail_that_another_cleanup_cleaned_after_it_was_done_is_no_alarm(busy, before):
    """The live mail of slice 2 keeps browseStart there, so the done one of slice 3 is in view."""
    view, request, _, live = busy
    view.insert(2, dead=False)
    view.steps(request, "plan", "check", *(["apply"] if before == "verify" else []))
    view.mark(live)
    view.clean()
    assert (view.rows(3), view.is_marked(live), view.browse_start) == (set(), False, view.at(2))
    view.steps(request, *(["apply"] if before == "apply" else []), "verify")


def test_a_live_mail_whose_row_is_gone_fails(busy):
    view, request, _, _ = busy
    view.clean()
    view.steps(request, "plan", "check", "apply")
    view.clean(dry_run=True)
    view.stores.tables.v4.delete_partition_future(
        view.queue, Partition(view.at(3), 0), now_us()
    ).result()
    with pytest.raises(GateFailed, match="survivors_lost is 1 "):
        view.steps(request, "verify")


def test_a_row_that_was_deleted_and_is_there_fails(busy):
    view, request, dead, _ = busy
    view.steps(request, "plan", "check", "apply")
    view.insert(0, dead=True, enqueue_id=dead)
    with pytest.raises(GateFailed, match="deleted_rows_there is 1 "):
        view.steps(request, "verify")


def test_a_row_in_view_that_is_left_and_lost_its_mark_fails(busy, monkeypatch):
    view, request, _, _ = busy
    dead = view.insert(4, dead=True)

    def unmark(run, partitions, throttle):
        view.unmark(dead)
        return len(partitions), {}

    monkeypatch.setattr(duty, "delete_partitions", unmark)
    view.steps(request, "plan", "check", "apply")
    with pytest.raises(GateFailed, match="planned_rows_left_without_mark is 1 "):
        view.steps(request, "verify")


@pytest.mark.parametrize("start", ["browse", "content"])
def test_a_start_of_ours_that_is_no_multiple_of_the_window_fails(busy, monkeypatch, start):
    view, request, _, _ = busy
    table = type(getattr(view.stores.tables, f"{start}_starts"))
    write = table.write

    def unaligned(self, queue, value, timestamp_us):
        if self._name.lower().endswith(start + "start"):
            value -= timedelta(seconds=3)
        write(self, queue, value, timestamp_us)

    monkeypatch.setattr(table, "write", unaligned)
    moved = getattr(views, f"move_{start}_start")

    def told(*args):
        found = moved(*args)
        return type(found)(found.before, found.after, found.after)

    monkeypatch.setattr(views, f"move_{start}_start", told)
    view.steps(request, "plan", "check", "apply")
    with pytest.raises(GateFailed, match=f"{start}_start_unaligned is 1 "):
        view.steps(request, "verify")


def test_a_start_that_was_written_by_a_try_that_was_killed_is_judged(busy, monkeypatch):
    view, request, _, _ = busy
    view.steps(request, "plan", "check")
    with monkeypatch.context() as patch:
        patch.setattr(SecondRead, "browse_start", lambda *_: view.at(5))
        patch.setattr(duty, "quarantine_rows", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            view.steps(request, "apply")
    view.steps(request, "apply")
    with pytest.raises(GateFailed, match="live_rows_passed is 1 "):
        view.steps(request, "verify")


def test_a_cleanup_reads_each_partition_at_most_three_times(busy, monkeypatch):
    view, request, _, _ = busy
    view.mark(view.insert(5, dead=True))
    read, table = [], type(view.stores.tables.v4)

    def counted(self, kind, queue, partitions, *args, **kwargs):
        listed = list(partitions)
        read.extend(listed)
        return pages(self, kind, queue, listed, *args, **kwargs)

    pages = table.pages
    monkeypatch.setattr(table, "pages", counted)
    view.steps(request, "plan")
    sampled = 1  # some rows of a few planned partitions, for the bytes of the report
    view.steps(request, "check", "apply", "verify", "report")
    counts = {world: read.count(world) for world in set(read)}
    assert counts[Partition(view.at(0), 0)] == 3 + sampled
    assert counts[Partition(view.at(3), 0)] <= 3
    assert max(counts.values()) <= 3 + sampled
