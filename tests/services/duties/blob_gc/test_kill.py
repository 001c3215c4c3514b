"""kill -9 inside plan and apply.

The same plan applied again, or the next run, ends in the state of an undisturbed one (I7).
"""

from datetime import timedelta

import pytest

HOURS = timedelta(hours=1)
POINTS = [
    *(
        "apply:locked",
        "apply:after-restores",
        "apply:after-second-scan",
        "apply:after-candidates",
        "apply:after-copies",
    ),
    *("apply:inside-deletes", "apply:after-deletes", "apply:after-look"),
]
GONE_BY_THEN = {"apply:inside-deletes", "apply:after-deletes", "apply:after-look"}


@pytest.fixture
def due(heap):
    """(heap, request of a plan over two orphans, checked; the orphans; a blob that stays)."""
    orphans, stays = {heap.blob(), heap.blob()}, heap.blob()
    heap.message(stays, stays)
    heap.collect()
    request = heap.request()
    heap.steps(request, "plan", "check", at=2 * HOURS)
    return heap, request, orphans, stays


@pytest.mark.parametrize("point", ["apply:after-copies", "apply:inside-deletes"])
def test_the_same_plan_applied_again_after_a_kill_ends_in_the_same_state(due, point):
    """As an Airflow retry of the task does: what the first try deleted counts as this run's."""
    heap, request, orphans, stays = due
    heap.kill("apply", request, point, ahead=3)
    heap.let_the_locks_run_out()
    report = heap.steps(request, "apply", "verify", "report", at=2 * HOURS)
    assert (
        report["planned"],
        report["gcedBlobCount"],
        report["skipped"],
        report["errorCount"],
    ) == (2, 2, 0, 0)
    assert (heap.keys(), heap.kept()) == ({stays}, orphans)


def test_without_copies_a_kill_among_the_deletes_leaves_what_the_next_try_counts_as_gone(due):
    heap, _, orphans, stays = due
    request = heap.request(keep="0s")
    heap.steps(request, "plan", "check", at=2 * HOURS)
    heap.kill("apply", request, "apply:inside-deletes", ahead=3)
    heap.let_the_locks_run_out()
    report = heap.steps(request, "apply", "verify", "report", at=2 * HOURS)
    assert (report["status"], report["planned"], report["gcedBlobCount"], report["skippedBy"]) == (
        "done",
        2,
        0,
        {"gone already": 2},
    )
    assert (heap.keys(), heap.kept(), report["errorCount"]) == ({stays}, set(), 0)
    assert orphans.isdisjoint(heap.keys())


@pytest.mark.parametrize(
    "point", ["apply:after-candidates", "apply:inside-deletes", "apply:after-deletes"]
)
def test_the_run_after_a_kill_goes_on_and_puts_back_what_is_referred_to_since(due, point):
    heap, request, orphans, stays = due
    heap.kill("apply", request, point, ahead=3)
    heap.let_the_locks_run_out()
    assert heap.keys() == ({stays} if point in GONE_BY_THEN else orphans | {stays})
    missed = min(orphans)
    heap.row(missed, missed)
    report = heap.collect(3 * HOURS)
    assert report["restored"] == (1 if point in GONE_BY_THEN else 0)
    assert heap.keys() == {stays, missed}
    assert heap.collect(4 * HOURS)["status"] == "nothing to do"


@pytest.mark.soak
@pytest.mark.parametrize("point", POINTS)
def test_no_kill_anywhere_loses_a_blob_that_is_referred_to(due, point):
    heap, request, orphans, stays = due
    missed = min(orphans)
    heap.kill("apply", request, point, ahead=3)
    heap.let_the_locks_run_out()
    heap.message(missed, stays)
    heap.collect(3 * HOURS)
    assert heap.keys() == {stays, missed}


@pytest.mark.parametrize(
    "point", ["plan:after-scan", pytest.param("plan:written", marks=pytest.mark.soak)]
)
def test_a_plan_that_was_killed_changed_nothing(due, point):
    heap, _, orphans, stays = due
    heap.kill("plan", heap.request(), point, ahead=3)
    assert heap.keys() == orphans | {stays}
    assert heap.collect(2 * HOURS)["gcedBlobCount"] == 2
