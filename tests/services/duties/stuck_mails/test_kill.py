"""kill -9 inside apply, then the next run, or the same task again: the mail is closed once, whole, or is its holder's (I1, I7). And inside a release."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mailslice.codec import message
from mailslice.model import crash
from mailslice.model.clock import system_clock
from mailslice.model.names import RabbitNames
from mailslice.queue.mail_queue import MailQueue
from mailslice.stores.cassandra.own.quarantine import State
from mailslice.stores.rabbitmq.connection import blocking_connection
from tests.services.duties.stuck_mails.conftest import BODY, HEADER

SOAK = pytest.mark.soak
POINTS = ["quarantine:copied", "apply:kept", "apply:decided", "apply:marked"]
MAILSLICE = str(Path(sys.executable).with_name("mailslice"))


def environ(place, point=""):
    settings = place.settings
    own = {
        "MAILSLICE_CASSANDRA_CONTACT_POINTS": settings.cassandra.contact_points[0],
        "MAILSLICE_CASSANDRA_PORT": str(settings.cassandra.port),
        "MAILSLICE_CASSANDRA_KEYSPACE": settings.cassandra.keyspace,
        "MAILSLICE_OWN_KEYSPACE": settings.own.keyspace,
        "MAILSLICE_OWN_BUCKET": settings.own.bucket,
        "MAILSLICE_RABBITMQ_URL": settings.rabbitmq.url.get_secret_value(),
        "MAILSLICE_RABBITMQ_MANAGEMENT_URL": settings.rabbitmq.management_url.get_secret_value(),
        "MAILSLICE_S3_ENDPOINT": settings.s3.endpoint,
        "MAILSLICE_S3_BUCKET": settings.s3.bucket,
        "MAILSLICE_S3_ACCESS_KEY": settings.s3.access_key or "",
        "MAILSLICE_S3_SECRET_KEY": settings.s3.secret_key.get_secret_value() if settings.s3.secret_key else "",
        "MAILSLICE_ARTIFACTS": settings.duty.artifacts,
    }
    rest = {name: value for name, value in os.environ.items() if not name.startswith("MAILSLICE_")}
    return {**rest, **own, **({crash.VARIABLE: point} if point else {})}


def kill(place, request, point):
    """Apply, in a process that dies at `point`; its lock is let go at once, as 60 s would do."""
    script = Path(__file__).with_name("killed.py")
    arguments = [sys.executable, str(script), "apply", request.queue, request.run, json.dumps(dict(request.params))]
    done = subprocess.run(arguments, env=environ(place, point), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    free(place, f"stuck_mails/{place.queue}")


def free(place, name):
    if (holder := place.stores.own.locks.holder(name)) is not None:
        place.stores.own.locks.release(name, holder)


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


def test_the_same_apply_again_after_a_kill_ends_in_the_same_state(place):
    """As an Airflow retry of the task does."""
    item, _, request = killed(place, "apply:marked")
    report = place.steps(request, "apply", "verify", "report")
    assert (report["closed"], report["applied"]) == (1, 1)
    assert_closed_once(place, item)


@pytest.mark.parametrize("point", [pytest.param("quarantine:copied", marks=SOAK), "apply:kept", pytest.param("apply:decided", marks=SOAK)])
def test_a_mail_whose_holder_gave_it_back_after_the_kill_is_in_the_queue_and_not_in_quarantine(place, point):
    item, worker, _ = killed(place, point)
    worker.say(in_flight=())
    place.run()
    assert not place.is_marked(item)
    assert place.kept() == []
    if point != "quarantine:copied":
        assert own_keys(place) == 0


def test_a_mail_that_was_marked_before_the_kill_is_kept_though_its_holder_is_gone(place):
    item, worker, _ = killed(place, "apply:marked")
    worker.fall_silent()
    place.stores.own.worker_records.discard(place.queue, place.stores.own.worker_records.read(place.queue, worker.name))
    place.run()
    assert_closed_once(place, item)


@pytest.mark.parametrize("point", ["release:published", pytest.param("release:claimed", marks=SOAK), pytest.param("release:recorded", marks=SOAK)])
def test_a_release_by_the_command_line_that_is_killed_and_asked_again_is_one_new_entry(place, point):
    item = place.mail("once")
    place.worker(place.held(item))
    place.run()
    words = [MAILSLICE, "stuck", "release", place.queue, "--name", "once", "--json"]
    done = subprocess.run(words, env=environ(place, point), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    free(place, f"quarantine/{place.queue}/{item.enqueue_id}/1")
    (mail,) = place.kept()
    place.quarantine.release(mail)
    (row,) = MailQueue(place.stores, place.queue, system_clock).browse()
    with blocking_connection(place.settings.rabbitmq) as connection:
        channel = connection.channel()
        bodies = iter(lambda: channel.basic_get(RabbitNames(place.queue).work_queue, auto_ack=True)[2], None)
        came = [decoded.enqueue_id for decoded in map(message.decode, bodies)]
    handled = [each for each in came if not place.stores.tables.deleted.is_marked(place.queue, each)]
    assert handled == [row.enqueue_id]
    assert (place.kept(), own_keys(place)) == ([], 0)
