"""Every duty through a real Airflow with its scheduler, on real stores with planted faults: the
report lists exactly those, and a second run finds nothing.
"""

from __future__ import annotations

import time
import uuid
from datetime import timedelta

import pytest

from mailslice.admin import queues
from mailslice.maintenance.ledger import Ledger
from mailslice.maintenance.run_request import NO_QUEUE
from mailslice.model.mail import BlobId, QueueName
from mailslice.model.names import QueueTable
from mailslice.stores import open_stores
from tests.acceptance.airflow_process import airflow_standalone
from tests.services.duties.audited import Spool
from tests.services.duties.counter_repair.making import Mailboxes, create_mailbox_tables
from tests.services.duties.dead_letters.conftest import Letters
from tests.services.duties.migrate_v3_to_v4.conftest import OldView
from tests.services.duties.stuck_mails.conftest import StuckQueue

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]
DAGS = (
    "blob_gc",
    "counter_repair",
    "dead_letters",
    "migrate_v3_to_v4",
    "queue_audit",
    "queue_cleanup",
    "queue_size",
    "reclaim",
    "republish_lost",
    "stuck_mails",
)
SETTINGS = {
    "MAILSLICE_QUEUE_SHARED": "false",
    "MAILSLICE_QUEUE_SLICE_WINDOW": "10m",
    "MAILSLICE_QUEUE_BUCKET_COUNT": "2",
    "MAILSLICE_GC_ABSENT_SOURCES": "messageV3,attachmentV2,mailRepositoryContentV2,enqueuedMailsV3",
    "MAILSLICE_WORKER_RECORD_EVERY": "1s",
}


@pytest.fixture(scope="module")
def world(fresh_module):
    """The deployment, with both tables of the queue view and James' mailboxes."""
    world = fresh_module.but(**SETTINGS)
    old = world.settings.model_copy(
        update={"queue": world.settings.queue.model_copy(update={"table": QueueTable.V3})}
    )
    with open_stores(old) as stores:
        stores.tables.create()
        create_mailbox_tables(stores)
    return world


@pytest.fixture(scope="module")
def stores(world):
    with open_stores(world.settings) as opened:
        queues.create(opened, "first")
        opened.own_blobs.ensure_bucket()
        yield opened


@pytest.fixture(scope="module")
def airflow(stores, world, tmp_path_factory):
    home = tmp_path_factory.mktemp("airflow") / "home"
    with airflow_standalone(home, world.env, dags=DAGS) as running:
        running.connect("local[2]")
        yield running


@pytest.fixture
def queue(stores):
    return queues.create(stores, f"q-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def run(airflow, stores, world):
    """A green run of a DAG; its report."""

    def run(dag: str, queue: QueueName | None = None, **conf: object) -> dict:
        given = {
            "reason": "test",
            "dry_run": False,
            **({"queues": [queue]} if queue else {}),
            **conf,
        }
        dag_run = airflow.trigger(dag, given)
        states = airflow.wait(dag, dag_run)
        assert {state for task, state in states.items()} == {"success"}, states
        report = Ledger(stores, world.settings).last(dag, queue or NO_QUEUE)
        assert (report["dagRun"], report["reason"], report["queue"]) == (dag_run, "test", queue)
        return report

    return run


def test_blob_gc(run, stores):
    orphans = [BlobId(str(uuid.uuid4())) for _ in range(3)]
    for blob in orphans:
        stores.blobs.put(blob, b"nobody's")
    kept = Spool(stores.settings, stores, queues.create(stores, "refers"))
    kept.put("wanted", message=False)
    wanted = {blob.key for blob in stores.blobs.list()} - set(orphans)
    short = {"grace": "1s", "delete_after": "1s", "max_share": 1}
    time.sleep(3)
    first = run("blob_gc", **short)
    assert (first["orphans"], first["candidates"], first["gcedBlobCount"]) == (3, 3, 0)
    second = run("blob_gc", **short)
    assert (
        second["orphans"],
        second["gcedBlobCount"],
        second["restored"],
        second["errorCount"],
    ) == (3, 3, 0, 0)
    assert {blob.key for blob in stores.blobs.list()} == wanted
    third = run("blob_gc", **short)
    assert (third["orphans"], third["candidates"], third["gcedBlobCount"]) == (0, 0, 0)


def test_counter_repair(run, stores, world):
    james = Mailboxes(world.settings, stores)
    drifted = james.mailbox(messages=3, seen=1, add=(2, -1))
    good = james.mailbox("bob@example.com", messages=2)
    first = run("counter_repair", settle="1s")
    assert (
        first["processedMailboxes"],
        first["wrong"],
        first["applied"],
        first["failedMailboxes"],
    ) == (2, 1, 1, 0)
    assert (james.counters(drifted), james.counters(good)) == ((3, 2), (2, 2))
    second = run("counter_repair", settle="1s")
    assert (second["wrong"], second["applied"]) == (0, 0)


def test_queue_audit_and_republish_lost(run, stores, world, queue):
    spool = Spool(world.settings, stores, queue)
    spool.put("waiting")
    lost = spool.put("lost", message=False)
    spool.put("bare", content=False)
    first = run("queue_audit", queue, census=True, older_than="1m")
    assert {verdict: count for verdict, count in first["verdicts"].items() if count} == {
        "waiting": 1,
        "lost": 1,
        "bare": 1,
    }
    back = run("republish_lost", queue)
    assert back["nbRequeuedMails"] == 1
    assert lost in [enqueue_id for enqueue_id, _, _ in spool.messages()]
    second = run("queue_audit", queue, census=True, older_than="1m")
    assert {verdict: count for verdict, count in second["verdicts"].items() if count} == {
        "waiting": 2,
        "bare": 1,
    }
    assert run("republish_lost", queue)["nbRequeuedMails"] == 0


def test_dead_letters(run, stores, world, queue):
    letters = Letters(world.settings, stores, queue)
    letters.letter(letters.mail("deleted", marked=True))
    letters.letter(b"{no mail")
    letters.letter(letters.mail("rejected"))
    first = run("dead_letters", queue)
    assert sum(first["causes"].values()) == 3
    assert (first["dropped"], first["exported"], first["redriven"], first["kept"]) == (1, 1, 0, 1)
    assert letters.dead_names() == ["rejected"]
    second = run("dead_letters", queue, redrive=True, limit=5)
    assert (second["dropped"], second["redriven"], second["kept"]) == (0, 1, 0)
    assert letters.work() == ["rejected"]
    third = run("dead_letters", queue)
    assert (third["causes"], third["planned"]) == ({}, 0)


def test_stuck_mails(run, stores, world, queue):
    stuck = StuckQueue(world.settings, stores, queue)
    item, quick = stuck.mail("stuck"), stuck.mail("quick")
    worker = stuck.worker(stuck.held(item, 900), stuck.held(quick, 1))
    try:
        first = run("stuck_mails", queue, lock_timeout="1m", mode="close")
        assert (first["inFlight"], first["closed"], first["failed"]) == (2, 1, 0)
        assert (stuck.is_marked(item), stuck.is_marked(quick)) == (True, False)
        assert [kept.name for kept in stuck.kept()] == ["stuck"]
        worker.say(in_flight=(stuck.held(quick, 30),))
        assert run("stuck_mails", queue, lock_timeout="1m", mode="close")["closed"] == 0
    finally:
        worker.fall_silent()


def test_migrate_v3_to_v4(run, stores, world, queue):
    old = OldView(world.settings, stores, queue)
    old.start_at(-3)
    live = [old.insert(-1), old.insert(0)]
    old.insert(0, dead=True)
    first = run("migrate_v3_to_v4", queue)
    assert (first["copied"], first["verified"]) == (2, 2)
    assert set(old.v4) == {row.enqueue_id for row in live}
    assert run("migrate_v3_to_v4", queue)["copied"] == 0


def test_queue_cleanup_and_queue_size(run, stores, world, queue):
    spool = Spool(world.settings, stores, queue)
    done = [
        spool.put(f"done {number}", age=timedelta(hours=9), message=False) for number in range(3)
    ]
    for each in done:
        spool.mark(each)
    assert run("queue_size", queue)["size"] == 0
    cleaned = run("queue_cleanup", queue, sweep=False)
    assert (cleaned["planned"], cleaned["applied"], cleaned["failed"]) == (3, 3, 0)
    assert run("queue_cleanup", queue)["applied"] == 0


def test_reclaim_says_what_waits(run):
    report = run("reclaim")
    assert report["failed"] == 0
