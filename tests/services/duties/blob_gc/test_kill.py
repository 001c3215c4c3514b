"""kill -9 inside plan and apply; the same plan applied again, or the next run, ends in the state of an undisturbed one (I7)."""

import json
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from mailslice.model import crash

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


def environment(settings):
    """MAILSLICE_* of these settings."""
    return {
        "MAILSLICE_CASSANDRA_CONTACT_POINTS": settings.cassandra.contact_points[0],
        "MAILSLICE_CASSANDRA_PORT": str(settings.cassandra.port),
        "MAILSLICE_CASSANDRA_KEYSPACE": settings.cassandra.keyspace,
        "MAILSLICE_OWN_KEYSPACE": settings.own.keyspace,
        "MAILSLICE_RABBITMQ_URL": settings.rabbitmq.url.get_secret_value(),
        "MAILSLICE_RABBITMQ_MANAGEMENT_URL": settings.rabbitmq.management_url.get_secret_value(),
        "MAILSLICE_S3_ENDPOINT": settings.s3.endpoint,
        "MAILSLICE_S3_ACCESS_KEY": settings.s3.access_key,
        "MAILSLICE_S3_SECRET_KEY": settings.s3.secret_key.get_secret_value(),
        "MAILSLICE_S3_BUCKET": settings.s3.bucket,
        "MAILSLICE_OWN_BUCKET": settings.own.bucket,
        "MAILSLICE_ARTIFACTS": settings.duty.artifacts,
        "MAILSLICE_GC_ABSENT_SOURCES": "enqueuedMailsV3",
    }


def kill(heap, step, request, point, hours):
    """The step, in a process that dies at `point`."""
    others = {
        name: value for name, value in os.environ.items() if not name.startswith("MAILSLICE_")
    }
    script = Path(__file__).with_name("killed.py")
    arguments = [
        sys.executable,
        str(script),
        step,
        request.run,
        json.dumps(dict(request.params)),
        str(hours),
    ]
    environ = {**others, **environment(heap.settings), crash.VARIABLE: point}
    done = subprocess.run(
        arguments, env=environ, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr


def let_the_lock_run_out(heap):
    """What 60 s would do."""
    holder = heap.stores.own.locks.holder("blob_gc")
    assert holder is not None
    heap.stores.own.locks.release("blob_gc", holder)


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
    kill(heap, "apply", request, point, 3)
    let_the_lock_run_out(heap)
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
    kill(heap, "apply", request, "apply:inside-deletes", 3)
    let_the_lock_run_out(heap)
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
    kill(heap, "apply", request, point, 3)
    let_the_lock_run_out(heap)
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
    kill(heap, "apply", request, point, 3)
    let_the_lock_run_out(heap)
    heap.message(missed, stays)
    heap.collect(3 * HOURS)
    assert heap.keys() == {stays, missed}


@pytest.mark.parametrize(
    "point", ["plan:after-scan", pytest.param("plan:written", marks=pytest.mark.soak)]
)
def test_a_plan_that_was_killed_changed_nothing(due, point):
    heap, _, orphans, stays = due
    kill(heap, "plan", heap.request(), point, 3)
    assert heap.keys() == orphans | {stays}
    assert heap.collect(2 * HOURS)["gcedBlobCount"] == 2
