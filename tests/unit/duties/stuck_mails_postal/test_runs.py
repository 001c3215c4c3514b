"""Runs of stuck_mails_postal over a Postal in memory: what each leaves, and what it does not."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from mailslice.duties.stuck_mails_postal.closing_recovery import ClosingRecovery
from mailslice.duties.stuck_mails_postal.duty import DUTY, closed_messages
from mailslice.duties.stuck_mails_postal.planned import PlannedRow
from mailslice.duties.stuck_mails_postal.quarantine import copy_file, entry_of
from mailslice.duties.stuck_mails_postal.quarantined import QuarantineState, look_up
from mailslice.duties.stuck_mails_postal.releases import NotReleased
from mailslice.duties.stuck_mails_postal.rules import PostalStage
from mailslice.maintenance.artifacts import FILES
from mailslice.maintenance.progress import Progress
from mailslice.maintenance.result import Summaries
from mailslice.model.errors import MailsliceError, StoreUnavailable
from mailslice.model.settings import PostalMode
from mailslice.stores.own.postal_quarantine import EntryState, PostalEntry
from tests.killed import Killed
from tests.unit.duties.stuck_mails_postal.world import CONTENT, MESSAGE, NOW, World, fake

OLDEST = timedelta(hours=5)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    fake(monkeypatch)
    return World(tmp_path)


def test_a_stuck_message_is_closed(world: World) -> None:
    world.stuck()
    assert world.apply() == ({"closed": 1}, {})
    assert (world.queue, world.statuses(), world.copies) == ({}, ["Held"], [CONTENT])
    assert [one.state for one in world.entries] == [EntryState.KEPT]


def test_a_half_closed_message_of_a_server_that_cannot_be_read_stops_no_other(
    world: World,
) -> None:
    row = world.cut_off()
    world.stuck(server=2)
    world.unreadable = {1}
    assert world.apply() == ({"closed": 1}, {"server unreadable": 1})
    assert list(world.queue) == [row.id]
    assert [(one.server, one.state) for one in world.entries] == [
        (1, EntryState.CLOSING),
        (2, EntryState.KEPT),
    ]
    assert world.copies == [CONTENT, CONTENT]
    world.unreadable = set()
    assert world.apply("r-2") == ({"closed": 1}, {})


def test_a_half_closed_message_that_an_older_backup_has_not_is_kept_when_its_id_is_reused(
    world: World,
) -> None:
    world.cut_off()
    for rows in (world.queue, world.messages, world.records):
        rows.clear()
    world.newest = MESSAGE - 1
    world.apply()
    assert [one.state for one in world.entries] == [EntryState.KEPT]
    world.newest = None
    world.stuck(content=b"Subject: Another\r\n\r\nMail.\r\n")
    world.queue.clear()
    world.write("Sent")
    world.apply("r-2")
    assert world.copies == [CONTENT]


def test_the_limit_is_of_rows_that_can_be_acted_on(world: World) -> None:
    for number in range(1, 4):
        world.stuck(message=number, locked_for=OLDEST)
    middle = world.stuck(server=2, message=1, locked_for=timedelta(hours=3))
    young = world.stuck(server=2, message=2)
    world.unreadable = {1}
    assert world.apply(limit=1) == ({"closed": 1}, {"server unreadable": 3})
    assert middle.id not in world.queue
    assert young.id in world.queue


def test_holders_that_may_live_use_up_no_limit_of_a_retry(world: World) -> None:
    living = world.stuck(locked_for=OLDEST)
    world.write("SoftFail", NOW - OLDEST)
    dead = world.stuck(server=2)
    done = world.apply(mode=PostalMode.RETRY, limit=1)
    assert done == ({"closed": 1}, {"holder may live": 1})
    assert list(world.queue) == [living.id]
    assert dead.id not in world.queue


def test_a_second_try_of_a_plan_comes_to_no_more_than_its_limit(world: World) -> None:
    """The first try completed a row, and was killed."""
    world.stuck(locked_for=OLDEST)
    young = world.stuck(server=2)
    run, plan = world.planned(limit=1)
    world.queue.pop(1)
    assert world.applied(run, plan) == ({}, {"lock changed": 1})
    assert list(world.queue) == [young.id]


def batch(world: World, size: int = 3, server: int = 1) -> None:
    for message in range(1, size + 1):
        world.stuck(server, message, locked_by="host:a pid:1 thread:1")


def killed_at(world: World, change: int) -> None:
    """At this change of Postal's queue of the next try, the first is 1."""
    changes = iter(range(1, change + 1))

    def count() -> None:
        if next(changes) == change:
            world.while_closing = lambda: None
            raise Killed

    world.while_closing = count


@pytest.mark.parametrize("first", ["completed", "lost", "closed"])
def test_a_second_try_takes_what_the_first_did_to_a_batch_for_its_own(
    world: World, first: str
) -> None:
    batch(world)
    if first == "completed":
        world.write("Sent", message=1)
    if first == "lost":
        world.lose_content(message=1)
    run, plan = world.planned()
    killed_at(world, 2)
    with pytest.raises(Killed):
        world.applied(run, plan)
    assert list(world.queue) == [2, 3]
    done = {"closed": 3} if first == "closed" else {first: 1, "closed": 2}
    assert world.applied(run, plan) == (done, {})
    assert world.queue == {}


def test_a_second_try_does_again_what_was_decided_and_not_done(world: World) -> None:
    world.stuck()
    world.write("Sent")
    run, plan = world.planned()
    killed_at(world, 1)
    with pytest.raises(Killed):
        world.applied(run, plan)
    assert [action for action, _ in world.decisions] == ["completed"]
    assert world.applied(run, plan) == ({"completed": 1}, {})
    assert world.queue == {}


def test_a_second_try_counts_nothing_that_the_first_left_alone(world: World) -> None:
    """A worker locked the first row anew; the batch is its own."""
    batch(world)
    world.write("Sent", message=1)
    run, plan = world.planned()

    def work() -> None:
        world.queue[1] = replace(world.queue[1], locked_by="host:b")

    world.while_closing = work
    left = ({}, {"lock changed": 1, "batch in progress": 2})
    assert world.applied(run, plan) == left
    assert sorted(action for action, _ in world.decisions) == ["completed", "left alone"]
    assert world.applied(run, plan) == left


def test_a_change_that_fails_is_decided_as_left_alone(world: World) -> None:
    world.stuck()
    world.write("Sent")

    def fail() -> None:
        raise MailsliceError("1021: disk full")

    world.while_closing = fail
    assert world.apply() == ({}, {})
    assert ("left alone", "1021: disk full") in world.decisions


def test_a_batch_with_messages_of_a_server_that_cannot_be_read_is_left_alone(
    world: World,
) -> None:
    """How long its sendings take is not known, and the others wait for them."""
    batch(world, 1, server=1)
    batch(world, 2, server=2)
    world.stuck(server=2, message=9)
    world.unreadable = {1}
    assert world.apply() == ({"closed": 1}, {"server unreadable": 3})
    assert len(world.queue) == 3


def test_messages_beyond_the_newest_are_left_alone_and_the_others_go_on(world: World) -> None:
    """A backup is being loaded."""
    world.stuck(message=1)
    world.stuck(message=9)
    del world.messages[1, 9]
    world.newest = 8
    run, plan = world.planned()
    assert run.fields["unreadable"] == {"1": "message 9 is none yet in postal-server-1"}
    assert world.applied(run, plan) == ({"closed": 1}, {"server unreadable": 1})


def test_no_row_is_gone_where_another_row_shows_that_its_database_is_not_whole(
    world: World,
) -> None:
    """Rows without a lock are asked for apart from locked ones, and before them."""
    world.stuck(message=9)
    waiting = world.stuck(message=4, locked_by=None, locked_at=None)
    locked = world.stuck(message=3)
    del world.messages[1, 9], world.messages[1, 4], world.messages[1, 3]
    world.newest = 8
    world.apply()
    assert {waiting.id, locked.id} <= world.queue.keys()
    world.newest = 10
    assert world.apply("r-2") == ({"lost": 3}, {})


def test_a_run_in_shadow_mode_finishes_no_closing_and_a_release_says_so(world: World) -> None:
    world.cut_off()
    _, plan = world.planned(mode=PostalMode.SHADOW)
    assert not plan.has_work
    with pytest.raises(NotReleased, match="the next run in mode close or retry finishes that"):
        world.releases().release(world.entries[0])


def test_a_server_is_gone_when_its_database_is_too(world: World) -> None:
    """Its row alone is missing while somebody restores the main database."""
    world.stuck()
    world.servers = {2}
    run, plan = world.planned()
    assert run.fields["unreadable"] == {
        "1": "Postal has no row of it, and postal-server-1 is there"
    }
    assert world.applied(run, plan) == ({}, {"server unreadable": 1})
    world.unreadable = {1}
    assert world.apply("r-2") == ({"lost": 1}, {})


def test_no_server_is_gone_while_postal_has_none_at_all(world: World) -> None:
    """A restore has created the table, and has not filled it yet."""
    locked = world.stuck()
    waiting = world.stuck(server=2, locked_by=None, locked_at=None)
    world.servers.clear()
    world.unreadable = {1, 2}
    run, plan = world.planned()
    why = "Postal has no mail server at all, as while it is being restored"
    assert run.fields["unreadable"] == {"1": why, "2": why}
    assert world.applied(run, plan) == ({}, {"server unreadable": 1})
    assert {locked.id, waiting.id} == world.queue.keys()


def test_an_entry_of_a_server_whose_row_alone_is_missing_cannot_be_asked_for(world: World) -> None:
    world.stuck()
    world.apply()
    world.servers.clear()
    assert state_of(world) is QuarantineState.UNKNOWN
    world.unreadable = {1}
    assert state_of(world) is QuarantineState.UNKNOWN
    world.servers = {2}
    assert state_of(world) is QuarantineState.KEPT


def test_a_closing_that_died_before_its_first_row_left_them_all(world: World) -> None:
    world.stuck()
    run, plan = world.planned()
    run.folder.write_json(FILES["plan"], {"mode": "close", "planned": 1})
    with Progress(run, plan, DUTY.kinds):
        pass
    steps = Summaries.load(run.folder, DUTY.kinds)
    assert {**steps.fields(DUTY.bulky), **DUTY.report_fields(steps)}["left"] == 1


def test_a_report_says_what_was_done_by_the_state_that_was_planned(world: World) -> None:
    """The content of one was lost, and its last copy closed."""
    world.cut_off()
    world.lose_content()
    world.stuck(server=2)
    run, plan = world.planned(limit=1)
    world.applied(run, plan)
    steps = Summaries.load(run.folder, DUTY.kinds)
    assert steps.result.kinds["closed"] == 1
    assert DUTY.report_fields(steps)["doneByState"] == {"content lost": 1}


def test_a_report_says_by_state_which_rows_changed_since_the_plan(world: World) -> None:
    """Workers ended or took three, and a row without a message has left the queue; the server of
    one more cannot be read.
    """
    for message in range(1, 5):
        world.stuck(message=message, locked_for=OLDEST)
    gone = world.stuck(message=5, locked_by=None, locked_at=None)
    world.stuck(server=2)
    del world.messages[1, 5]
    run, plan = world.planned()
    world.queue.pop(1)
    world.queue[2] = replace(world.queue[2], locked_by="host:b", locked_at=NOW)
    world.queue.pop(gone.id)
    world.unreadable = {2}
    world.while_closing = lambda: world.queue.pop(3, None)
    world.write("Sent", message=3)
    for _ in range(2):  # the second try counts nothing twice
        world.applied(run, plan)
        steps = Summaries.load(run.folder, DUTY.kinds)
        changed = steps.fields(DUTY.bulky)["changedByState"]
        assert changed == {"stuck": 3, "message gone": 1}
        assert DUTY.report_fields(steps)["doneByState"] == {"stuck": 1}
        assert dict(steps.result.skipped) == {"lock changed": 4, "server unreadable": 1}


def test_a_second_try_that_ends_early_says_by_state_what_the_first_did(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch(world)
    run, plan = world.planned()
    killed_at(world, 3)
    with pytest.raises(Killed):
        world.applied(run, plan)

    def away(*_: object) -> None:
        raise StoreUnavailable("MariaDB is away")

    again = world.new_run()
    with monkeypatch.context() as patch:
        patch.setattr(ClosingRecovery, "finish_all", away)
        with pytest.raises(StoreUnavailable):
            world.applied(again, plan)
    steps = Summaries.load(run.folder, DUTY.kinds)
    assert steps.result.kinds["closed"] == 2
    assert DUTY.report_fields(steps)["doneByState"] == {"stuck": 2}
    world.applied(world.new_run(), plan)
    steps = Summaries.load(run.folder, DUTY.kinds)
    assert steps.result.kinds["closed"] == 3
    assert DUTY.report_fields(steps)["doneByState"] == {"stuck": 3}


def test_the_last_copy_outlives_a_lock_that_was_given_back(world: World) -> None:
    """The next run came days later: Postal's retention had dropped the content."""
    row = world.cut_off()
    world.queue[row.id] = replace(row, locked_by=None, locked_at=None)
    world.lose_content()
    assert world.apply("r-2") == ({}, {})
    assert ([one.state for one in world.entries], world.copies) == ([EntryState.CLOSING], [CONTENT])
    world.queue.clear()
    world.write("HardFail")
    assert world.apply("r-3") == ({}, {})
    assert ([one.state for one in world.entries], world.copies) == ([EntryState.KEPT], [CONTENT])
    assert world.statuses() == ["HardFail"]


def test_the_last_copy_outlives_a_lock_that_was_taken_anew(world: World) -> None:
    row = world.cut_off(locked_for=OLDEST)
    world.queue[row.id] = replace(row, locked_by="host:b", locked_at=NOW - timedelta(hours=1))
    world.lose_content()
    assert world.apply("r-2") == ({"closed": 1}, {})
    assert (world.queue, world.statuses(), world.copies) == ({}, ["Held"], [CONTENT])
    assert [one.state for one in world.entries] == [EntryState.KEPT]


@pytest.mark.parametrize("status", ["Sent", None])
def test_a_copy_goes_where_postal_delivered_the_message_or_has_it(
    world: World, status: str | None
) -> None:
    row = world.cut_off()
    if status is None:
        world.queue[row.id] = replace(row, locked_by=None, locked_at=None)
    else:
        world.queue.clear()
        world.lose_content()
        world.write(status)
    assert world.apply("r-2") == ({}, {})
    assert (world.entries, world.copies) == ([], [])


def test_a_closing_that_was_cut_off_beyond_the_limit_keeps_no_copy(world: World) -> None:
    world.stuck(server=2, locked_for=OLDEST)
    world.cut_off()
    assert world.apply(limit=1) == ({"closed": 1}, {})
    assert [(one.server, one.state) for one in world.entries] == [(2, EntryState.KEPT)]
    assert world.copies == [CONTENT]


def test_what_postals_tidy_task_takes_during_the_close_is_closed(world: World) -> None:
    world.stuck()
    world.while_closing = world.queue.clear
    assert world.apply() == ({"closed": 1}, {})
    assert (world.statuses(), world.copies) == (["Held"], [CONTENT])
    assert [one.state for one in world.entries] == [EntryState.KEPT]


@pytest.mark.parametrize("status", ["Sent", None])
def test_what_a_worker_finishes_or_locks_anew_during_the_close_is_not_closed(
    world: World, status: str | None
) -> None:
    row = world.stuck()

    def work() -> None:
        world.queue.clear()
        if status is None:
            world.queue[row.id] = replace(row, locked_by="host:b", locked_at=NOW)
        else:
            world.write(status)

    world.while_closing = work
    assert world.apply() == ({}, {"lock changed": 1})
    assert (world.entries, world.copies) == ([], [])
    assert world.statuses() == ([] if status is None else [status])


def closed_and_locked_again(world: World) -> None:
    """Somebody pressed Release in Postal, a worker died of it, and its closing had just begun."""
    world.now = NOW - timedelta(hours=2)
    world.stuck(locked_for=OLDEST)
    world.apply()
    world.now = NOW
    world.cut_off(queued=9, copied=False, locked_for=timedelta(hours=1))
    assert [one.state for one in world.entries] == [EntryState.NOTED]


def test_the_copy_of_the_first_closing_outlives_a_second_that_failed(world: World) -> None:
    closed_and_locked_again(world)
    world.lose_content()
    assert world.apply("r-2") == ({"closed": 1}, {})
    assert (world.queue, world.statuses(), world.copies) == ({}, ["Held", "Held"], [CONTENT])
    assert [one.state for one in world.entries] == [EntryState.KEPT]


def test_it_outlives_that_also_while_postal_cannot_be_asked_for_the_content(world: World) -> None:
    closed_and_locked_again(world)
    world.unreadable = {1}
    assert world.apply("r-2") == ({}, {"server unreadable": 1})
    assert ([one.state for one in world.entries], world.copies) == ([EntryState.NOTED], [CONTENT])


def test_it_goes_where_postal_has_the_content(world: World) -> None:
    closed_and_locked_again(world)
    world.queue.clear()
    assert world.apply("r-2") == ({}, {})
    assert (world.entries, world.copies) == ([], [])


def test_a_message_that_is_released_before_the_check_of_its_run_fails_no_check(
    world: World,
) -> None:
    for message in (1, 2):
        world.stuck(message=message)
    run, plan = world.planned()
    world.applied(run, plan)
    rows, (released, discarded) = run.read_rows(plan.rows, PlannedRow), world.entries
    world.releases().release(released)
    world.releases().discard(discarded)
    frame = closed_messages(run, rows, [released, discarded])
    assert {row["copy"] for row in frame.rows} == {"whole"}


def test_a_copy_that_is_missing_fails_a_check(world: World) -> None:
    world.stuck()
    run, plan = world.planned()
    world.applied(run, plan)
    run.folder.artifacts.remove(copy_file(world.entries[0].copy_id))
    frame = closed_messages(run, run.read_rows(plan.rows, PlannedRow), world.entries)
    assert [row["copy"] for row in frame.rows] == ["missing"]


def state_of(world: World) -> QuarantineState:
    (found,) = look_up(world.stores.postal, world.entries)
    return found.state


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("Sent", QuarantineState.FINISHED),
        ("SoftFail", QuarantineState.KEPT),
        ("Bounced", QuarantineState.KEPT),
    ],
)
def test_what_a_worker_answers_right_before_our_record_is_finished(
    world: World, status: str, state: QuarantineState
) -> None:
    world.stuck()
    world.while_closing = lambda: world.write(status)
    assert world.apply() == ({"closed": 1}, {})
    assert world.statuses() == [status, "Held"]
    assert state_of(world) is state


def test_what_was_answered_before_the_lock_is_kept(world: World) -> None:
    world.write("HardFail", NOW - OLDEST)
    world.stuck()
    world.apply()
    assert state_of(world) is QuarantineState.KEPT


def test_a_message_without_our_record_is_not_taken_for_the_one_that_was_closed(
    world: World,
) -> None:
    """Postal was rebuilt: it counts from 1 again."""
    world.stuck()
    world.apply()
    world.records.clear()
    assert state_of(world) is QuarantineState.UNKNOWN
    for act in (world.releases().release, world.releases().discard):
        with pytest.raises(NotReleased, match="no record of this closing"):
            act(world.entries[0])
    assert (world.queue, world.copies) == ({}, [CONTENT])
    world.releases(accept_duplicates=True).release(world.entries[0])
    assert ([row.message for row in world.queue.values()], world.entries) == ([MESSAGE], [])


@pytest.mark.parametrize("status", ["Sent", None])
def test_another_message_of_its_id_does_not_end_it(world: World, status: str | None) -> None:
    """That one is queued, or answered; the copy is the last of the first one."""
    world.stuck()
    world.apply()
    world.records.clear()
    if status is None:
        world.stuck(queued=20)
    else:
        world.write(status)
    assert state_of(world) is QuarantineState.UNKNOWN
    for act in (world.releases().release, world.releases().discard):
        with pytest.raises(NotReleased, match="no record of this closing"):
            act(world.entries[0])
    assert world.copies == [CONTENT]


def test_a_release_without_our_record_that_was_cut_off_is_finished_once(world: World) -> None:
    world.stuck()
    world.apply()
    world.records.clear()
    (entry,) = world.entries
    going = replace(entry, state=EntryState.RELEASING)
    world.stores.records.postal_quarantine.replace(entry, going)
    world.stuck(queued=20)
    assert world.releases(accept_duplicates=True).release(world.entries[0]) == 20
    assert (list(world.queue), world.entries, world.copies) == ([20], [], [])


def release_was_cut_off(world: World) -> PostalEntry:
    """Before the row was queued: an entry that says RELEASING, and nothing on its way."""
    world.stuck()
    world.apply()
    (entry,) = world.entries
    going = replace(entry, state=EntryState.RELEASING, released_after=1)
    world.stores.records.postal_quarantine.replace(entry, going)
    return world.entries[0]


@pytest.mark.parametrize("status", ["SoftFail", "Error"])
def test_a_deferral_of_the_old_worker_is_no_end_of_a_release_that_was_cut_off(
    world: World, status: str
) -> None:
    """It found no row to put back, so nobody else would send the mail."""
    entry = release_was_cut_off(world)
    world.write(status)
    assert state_of(world) is QuarantineState.KEPT
    assert world.releases().release(entry) is not None
    assert ([row.message for row in world.queue.values()], world.entries) == ([MESSAGE], [])


@pytest.mark.parametrize("status", ["HardFail", None])
def test_the_end_of_a_release_that_was_cut_off_removes_no_last_copy(
    world: World, status: str | None
) -> None:
    """Days later: Postal's retention dropped the content before a worker took the new row."""
    entry = release_was_cut_off(world)
    if status is None:
        world.stuck(queued=20)
    else:
        world.write(status)
    world.lose_content()
    with pytest.raises(NotReleased):
        world.releases().release(entry)
    assert (world.entries, world.copies) == ([entry], [CONTENT])
    world.releases().discard(entry)
    assert (world.entries, world.copies) == ([], [])


@pytest.mark.parametrize("status", ["HoldCancelled", None])
def test_a_release_that_was_cut_off_may_be_discarded_while_nothing_is_on_its_way(
    world: World, status: str | None
) -> None:
    entry = release_was_cut_off(world)
    if status is None:
        world.messages.clear()
        world.records.clear()
    else:
        world.write(status)
    world.releases().discard(entry)
    assert (world.entries, world.copies, world.queue) == ([], [], {})


@pytest.mark.parametrize("status", ["Sent", None])
def test_a_release_that_has_queued_the_row_is_not_discarded(
    world: World, status: str | None
) -> None:
    entry = release_was_cut_off(world)
    if status is None:
        world.stuck(queued=20)
    else:
        world.write(status)
    with pytest.raises(NotReleased, match="release it again"):
        world.releases().discard(entry)
    assert world.entries == [entry]
    world.releases().release(entry)
    assert world.entries == []


def test_a_closing_that_goes_on_says_how_far_the_worker_had_come_by_then(world: World) -> None:
    """The worker lived: it sent after the first run had looked."""
    row = world.stuck()
    noted = entry_of(world.run, row, PostalStage.BEFORE_SENDING, world.messages[1, MESSAGE])
    noted = replace(noted, who="somebody else", reason="a test")
    world.quarantine.copy(world.quarantine.note(noted) or noted, CONTENT)
    assert world.apply("r-2") == ({"closed": 1}, {})
    (entry,) = world.entries
    assert (entry.stage, entry.run) == ("maybe sent", "r-2")
    assert (entry.who, entry.reason) == (world.run.request.who, "")


def test_one_that_is_named_is_discarded_without_our_record(world: World) -> None:
    world.stuck()
    world.apply()
    world.records.clear()
    world.releases(accept_duplicates=True).discard(world.entries[0])
    assert (world.entries, world.copies, world.statuses()) == ([], [], [])


def test_one_that_postal_has_no_more_is_discarded_by_all(world: World) -> None:
    world.stuck()
    world.apply()
    world.messages.clear()
    world.records.clear()
    assert state_of(world) is QuarantineState.KEPT
    world.releases().discard(world.entries[0])
    assert world.entries == []


def test_the_copy_of_another_message_of_this_id_is_not_written_over(world: World) -> None:
    """Postal was restored in place from an older dump: it gives the same ids out again."""
    world.stuck()
    world.apply()
    world.records.clear()
    row = world.stuck(queued=20, content=b"Subject: Another\r\n\r\nMail.\r\n")
    assert world.apply("r-2") == ({}, {})
    assert (list(world.queue), world.copies) == ([row.id], [CONTENT])
    world.releases(accept_duplicates=True).discard(world.entries[0])
    assert world.apply("r-3") == ({"closed": 1}, {})


def test_the_same_message_is_closed_again(world: World) -> None:
    """Somebody pressed Release in Postal, and a worker died of it."""
    world.stuck()
    world.apply()
    world.now = NOW + timedelta(hours=2)
    world.queue[20] = replace(world.stuck(queued=20), locked_at=NOW + timedelta(hours=1))
    assert world.apply("r-2") == ({"closed": 1}, {})
    assert world.copies == [CONTENT]
