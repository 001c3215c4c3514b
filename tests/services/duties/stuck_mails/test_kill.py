"""kill -9 inside apply, then the next run, or the same task again: the mail is closed once, whole, or is its holder's (I1, I7). And inside a release."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mailslice.admin.mail_queue import MailQueue
from mailslice.codec import message
from mailslice.model import crash
from mailslice.model.clock import system_clock
from mailslice.model.names import RabbitNames
from mailslice.stores.cassandra.own.quarantine import State
from mailslice.stores.rabbitmq.connection import blocking_connection
from tests.services.duties import running
from tests.services.duties.running import environment, let_run_out
from tests.services.duties.stuck_mails.conftest import BODY, HEADER

SOAK = pytest.mark.soak
POINTS = [
    "apply:decided",
    *(
        pytest.param(point, marks=SOAK)
        for point in (
            "apply:locked",
            "quarantine:noted",
            "quarantine:copied",
            "apply:kept",
            "apply:renewed",
            "apply:marked",
        )
    ),
]
MAILSLICE = str(Path(sys.executable).with_name("mailslice"))


def kill(place, request, point):
    """Apply, in a process that dies at `point`; its lock is let go at once, as 60 s would do."""
    running.kill("apply", request, environment(place.settings), point)
    let_run_out(place.stores, f"stuck_mails/{place.queue}")


def own_keys(place):
    return len(list(place.stores.own_blobs.list(f"quarantine/{place.queue}/")))


def assert_closed_once(place, item):
    assert place.is_marked(item)
    (kept,) = place.kept()
    assert (kept.state, kept.action) == (State.KEPT, "closed")
    assert place.quarantine.content(kept) == HEADER + BODY
    assert {decision.action for decision in place.decisions()} == {"closed"}


def killed(place, point):
    item = place.mail()
    worker = place.worker(place.held(item))
    request = place.request()
    place.steps(request, "plan", "check")
    kill(place, request, point)
    return item, worker, request


@pytest.mark.parametrize("point", POINTS)
def test_the_run_after_a_kill_ends_in_the_same_state(place, point):
    item, _, _ = killed(place, point)
    report = place.run()
    assert report["status"] in {"done", "nothing to do"}
    assert_closed_once(place, item)
    assert place.run()["finishedOfEarlierRuns"] == {}


@SOAK
def test_the_same_apply_again_after_a_kill_ends_in_the_same_state(place):
    """As an Airflow retry of the task does."""
    item, _, request = killed(place, "apply:marked")
    report = place.steps(request, "apply", "verify", "report")
    assert (report["closed"], report["applied"]) == (1, 1)
    assert_closed_once(place, item)


@pytest.mark.parametrize(
    "point", ["quarantine:copied", "apply:kept", "apply:decided", "apply:renewed"]
)
@SOAK
def test_a_mail_whose_holder_gave_it_back_after_the_kill_is_in_the_queue_and_not_in_quarantine(
    place, point
):
    item, worker, _ = killed(place, point)
    worker.say(in_flight=())
    place.run()
    assert not place.is_marked(item)
    assert (place.kept(), own_keys(place)) == ([], 0)


@SOAK
def test_a_mail_that_was_marked_before_the_kill_is_kept_though_its_holder_is_gone(place):
    item, worker, _ = killed(place, "apply:marked")
    worker.fall_silent()
    place.stores.own.worker_records.discard(
        place.queue, place.stores.own.worker_records.read(place.queue, worker.name)
    )
    place.run()
    assert_closed_once(place, item)


@pytest.mark.parametrize(
    "point",
    [
        "release:published",
        pytest.param("release:claimed", marks=SOAK),
        pytest.param("release:recorded", marks=SOAK),
    ],
)
def test_a_release_by_the_command_line_that_is_killed_and_asked_again_is_one_new_entry(
    place, point
):
    item = place.mail("once")
    place.worker(place.held(item))
    place.run()
    words = [MAILSLICE, "stuck", "release", place.queue, "--name", "once", "--json"]
    done = subprocess.run(
        words,
        env={**environment(place.settings), crash.VARIABLE: point},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    let_run_out(place.stores, f"quarantine/{place.queue}/{item.enqueue_id}/1")
    (mail,) = place.kept()
    place.quarantine.release(mail)
    (row,) = MailQueue(place.stores, place.queue, system_clock).browse()
    with blocking_connection(place.settings.rabbitmq) as connection:
        channel = connection.channel()
        bodies = iter(
            lambda: channel.basic_get(RabbitNames(place.queue).work_queue, auto_ack=True)[2], None
        )
        came = [decoded.enqueue_id for decoded in map(message.decode, bodies)]
    handled = [
        each for each in came if not place.stores.tables.deleted.is_marked(place.queue, each)
    ]
    assert handled == [row.enqueue_id]
    assert (place.kept(), own_keys(place)) == ([], 0)
