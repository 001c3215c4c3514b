"""kill -9 around the claim and the update, and at the borders of steps: no difference is ever applied twice, and what is not known is said (I7, I9)."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from mailslice.duties.counter_repair import decide
from mailslice.maintenance.artifacts import RunFolder, artifacts
from mailslice.model import crash


def kill(james, step, request, point):
    """The step, in a process that dies at `point`."""
    settings = james.settings
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("MAILSLICE_")},
        "MAILSLICE_CASSANDRA_CONTACT_POINTS": settings.cassandra.contact_points[0],
        "MAILSLICE_CASSANDRA_PORT": str(settings.cassandra.port),
        "MAILSLICE_CASSANDRA_KEYSPACE": settings.cassandra.keyspace,
        "MAILSLICE_OWN_KEYSPACE": settings.own.keyspace,
        "MAILSLICE_ARTIFACTS": settings.duty.artifacts,
        "MAILSLICE_DUTY_SPARK_MASTER": "local[2]",
        "PYTHONPATH": str(Path(__file__).parents[4]),
        crash.VARIABLE: point,
    }
    arguments = [
        sys.executable,
        str(Path(__file__).with_name("killed.py")),
        step,
        request.run,
        json.dumps(dict(request.params)),
    ]
    done = subprocess.run(
        arguments, env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr


def let_the_lock_run_out(james):
    """What 60 s would do."""
    holder = james.stores.own.locks.holder("counter_repair/-")
    assert holder is not None
    james.stores.own.locks.release("counter_repair/-", holder)


def one_drifted(james, **params):
    mailbox = james.mailbox(messages=5, seen=2, add=(2, 1))
    request = james.request(mailboxes=[str(mailbox)], **params)
    james.steps(request, "plan", "check")
    return mailbox, request


def test_killed_before_the_claim_the_same_run_goes_on(james):
    mailbox, request = one_drifted(james)
    for point in ("apply:locked", "apply:before-claim"):
        kill(james, "apply", request, point)
        let_the_lock_run_out(james)
        assert james.counters(mailbox) == (7, 4)
        assert james.stores.own.counter_claims.list(mailbox) == []
    report = james.steps(request, "apply", "verify", "report")
    assert (report["status"], report["applied"], report["unknown"]) == ("done", 1, 0)
    assert james.counters(mailbox) == (5, 3)


def test_killed_between_claim_and_update_its_run_sends_none_and_the_next_corrects(james, long_ago):
    mailbox, request = one_drifted(james)
    kill(james, "apply", request, "apply:after-claim")
    let_the_lock_run_out(james)
    report = james.steps(request, "apply", "verify", "report")
    assert (report["status"], report["applied"], report["unknown"], report["failedMailboxes"]) == (
        "failed",
        0,
        1,
        1,
    )
    assert report["failures"] == {str(mailbox): decide.UNKNOWN_UPDATE}
    assert james.counters(mailbox) == (7, 4)
    assert james.repair(mailboxes=[str(mailbox)])["applied"] == 1
    assert james.counters(mailbox) == (5, 3)


def test_killed_after_the_update_it_is_not_sent_again_by_any_run(james, long_ago):
    mailbox, request = one_drifted(james)
    kill(james, "apply", request, "apply:after-update")
    let_the_lock_run_out(james)
    assert james.counters(mailbox) == (5, 3)
    report = james.steps(request, "apply", "verify", "report")
    assert (report["status"], report["applied"], report["unknown"]) == ("done", 1, 0)
    assert james.counters(mailbox) == (5, 3)
    assert james.repair(mailboxes=[str(mailbox)])["wrong"] == 0


def test_killed_after_the_update_in_a_mailbox_that_moved_on_it_stays_unknown(james):
    mailbox, request = one_drifted(james)
    kill(james, "apply", request, "apply:after-update")
    let_the_lock_run_out(james)
    james.message(mailbox, 9)
    james.add(mailbox, 1, 1)
    applied = james.steps(request, "apply")
    assert (applied["applied"], applied["unknown"]) == (0, 1)
    assert james.counters(mailbox) == (6, 4)


def test_killed_after_the_counters_or_in_the_projection_the_rest_is_done_once(james):
    mailbox = james.mailbox(messages=5, seen=2)
    james.message(mailbox, 8, tables=("imapuidtable",))
    request = james.request(mailboxes=[str(mailbox)], repair_projection=True)
    james.steps(request, "plan", "check")
    for point in ("apply:after-counters", "apply:projection-read"):
        kill(james, "apply", request, point)
        let_the_lock_run_out(james)
        assert james.counters(mailbox) == (6, 4)
    report = james.steps(request, "apply", "verify", "report")
    assert (report["status"], report["applied"], report["projection"]["written"]) == ("done", 1, 1)
    assert james.counters(mailbox) == (6, 4)
    assert set(james.projection(mailbox)) == {1, 2, 3, 4, 5, 8}
    again = james.repair(mailboxes=[str(mailbox)], repair_projection=True)
    assert (again["status"], again["wrong"], sum(again["inconsistencies"].values())) == (
        "nothing to do",
        0,
        0,
    )


def test_a_plan_that_was_killed_changed_nothing_and_is_made_anew_by_the_same_run(james):
    mailbox = james.mailbox(messages=5, seen=2, add=(2, 1))
    request = james.request(mailboxes=[str(mailbox)])
    kill(james, "plan", request, "plan:after-scan")
    assert (james.counters(mailbox), james.stores.own.counter_claims.list(mailbox)) == ((7, 4), [])
    report = james.steps(request, "plan", "check", "apply", "verify", "report")
    assert (report["status"], report["wrong"], report["applied"]) == ("done", 1, 1)
    assert james.counters(mailbox) == (5, 3)
    parts = [
        name
        for name in RunFolder(
            artifacts(james.settings), "counter_repair", "-", request.run
        ).artifacts.files("runs")
        if request.run in name
    ]
    assert sum("/plan/drifts" in name for name in parts) == 1, (
        "the files of the plan that was killed are still there"
    )
