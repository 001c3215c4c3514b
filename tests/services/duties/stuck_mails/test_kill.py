"""kill -9 inside apply, then the next run, or the same task again.

The mail is closed once, whole, or is its holder's (I1, I7). And inside a release.
"""

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
from tests.services.duties.stuck_mails.conftest import BODY, HEADER
from tests.services.duties.world import environment, let_run_out

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


def kill(world, request, point):
    """Apply, in a process that dies at `point`; its lock is let go at once, as 60 s would do."""
    world.kill("apply", request, point)
    world.let_the_locks_run_out()


def own_keys(world):
    return len(list(world.stores.own_blobs.list(f"quarantine/{world.queue}/")))


def assert_closed_once(world, item):
    assert world.is_marked(item)
    (kept,) = world.kept()
    assert (kept.state, kept.action) == (State.KEPT, "closed")
    assert world.quarantine.content(kept) == HEADER + BODY
    assert {decision.action for decision in world.decisions()} == {"closed"}


def killed(world, point):
    item = world.mail()
    worker = world.worker(world.held(item))
    request = world.request()
    world.steps(request, "plan", "check")
    kill(world, request, point)
    return item, worker, request


@pytest.mark.parametrize("point", POINTS)
def test_the_run_after_a_kill_ends_in_the_same_state(world, point):
    item, _, _ = killed(world, point)
    report = world.run()
    assert report["status"] in {"done", "nothing to do"}
    assert_closed_once(world, item)
    assert world.run()["finishedOfEarlierRuns"] == {}


@SOAK
def test_the_same_apply_again_after_a_kill_ends_in_the_same_state(world):
    """As an Airflow retry of the task does."""
    item, _, request = killed(world, "apply:marked")
    report = world.steps(request, "apply", "verify", "report")
    assert (report["closed"], report["applied"]) == (1, 1)
    assert_closed_once(world, item)


@pytest.mark.parametrize(
    "point", ["quarantine:copied", "apply:kept", "apply:decided", "apply:renewed"]
)
@SOAK
def test_a_mail_whose_holder_gave_it_back_after_the_kill_is_in_the_queue_and_not_in_quarantine(
    world, point
):
    item, worker, _ = killed(world, point)
    worker.say(in_flight=())
    world.run()
    assert not world.is_marked(item)
    assert (world.kept(), own_keys(world)) == ([], 0)


@SOAK
def test_a_mail_that_was_marked_before_the_kill_is_kept_though_its_holder_is_gone(world):
    item, worker, _ = killed(world, "apply:marked")
    worker.fall_silent()
    world.stores.own.worker_records.discard(
        world.queue, world.stores.own.worker_records.get(world.queue, worker.name)
    )
    world.run()
    assert_closed_once(world, item)


@pytest.mark.parametrize(
    "point",
    [
        "release:published",
        pytest.param("release:claimed", marks=SOAK),
        pytest.param("release:recorded", marks=SOAK),
    ],
)
def test_a_release_by_the_command_line_that_is_killed_and_asked_again_is_one_new_entry(
    world, point
):
    item = world.mail("once")
    world.worker(world.held(item))
    world.run()
    words = [MAILSLICE, "stuck", "release", world.queue, "--name", "once", "--json"]
    done = subprocess.run(
        words,
        env={**environment(world.settings), crash.VARIABLE: point},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    let_run_out(world.stores, f"quarantine/{world.queue}/{item.enqueue_id}/1")
    (mail,) = world.kept()
    world.quarantine.release(mail)
    (row,) = MailQueue(world.stores, world.queue, system_clock).browse()
    with blocking_connection(world.settings.rabbitmq) as connection:
        channel = connection.channel()
        bodies = iter(
            lambda: channel.basic_get(RabbitNames(world.queue).work_queue, auto_ack=True)[2], None
        )
        came = [decoded.enqueue_id for decoded in map(message.decode, bodies)]
    handled = [
        each for each in came if not world.stores.tables.deleted.is_marked(world.queue, each)
    ]
    assert handled == [row.enqueue_id]
    assert (world.kept(), own_keys(world)) == ([], 0)
