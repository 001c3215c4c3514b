"""Disk that comes back on a real Cassandra, by the command of the local stack."""

import json
import random
import signal
import subprocess
import sys
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mailslice.admin import queues
from mailslice.duties.reclaim import duty, node_work, survey
from mailslice.duties.reclaim.nodetool import Nodetool, flush
from mailslice.engine import worker_stores
from mailslice.maintenance.artifacts import RunFolder, artifacts
from mailslice.maintenance.ledger import Ledger
from mailslice.maintenance.run_request import NO_QUEUE, RunRequest
from mailslice.model import crash
from mailslice.model.errors import BadInput, ClockSkew, GateFailed, PlanRefused
from mailslice.model.mail import BlobId, EnqueueId, Mail, Partition, QueuedMail, ViewRow
from mailslice.model.slices import slice_start
from mailslice.stores import open_stores
from mailslice.stores.cassandra.nodes import Compacting, Nodes
from mailslice.stores.cassandra.repairs import repaired
from tests.services.cassandra.recorded_repairs import record
from tests.services.duties.world import run_all_in_process, run_step_in_process

pytestmark = pytest.mark.new_keyspaces

WINDOW = timedelta(seconds=10)
ROWS, SLICES = 6000, 12


@pytest.fixture(autouse=True)
def _close_workers_stores():
    yield
    worker_stores.close_all()


@pytest.fixture(scope="module")
def nodetool(fresh_module):
    """The command of the local stack."""
    if "MAILSLICE_NODETOOL" not in fresh_module.env:
        pytest.skip("these services were started without MAILSLICE_NODETOOL")
    return Nodetool.parse(fresh_module.env["MAILSLICE_NODETOOL"])


@pytest.fixture(scope="module")
def world(fresh_module, nodetool):
    """A queue of about 7 MiB of rows that are all dead but one, and its stores."""
    fresh = fresh_module.but(MAILSLICE_QUEUE_SLICE_WINDOW="10s", MAILSLICE_QUEUE_SHARED="false")
    with open_stores(fresh.settings) as stores:
        queue = queues.create(stores, "spool")
        base = slice_start(datetime.now(UTC), WINDOW) - 40 * WINDOW
        stores.tables.browse_starts.insert_first(queue, base)
        stores.tables.content_starts.insert_first(queue, base)
        rows = [row(queue, base, number) for number in range(ROWS)]
        stores.tables.v4.insert_many(rows)
        stores.tables.deleted.mark_many(queue, [each.enqueue_id for each in rows[1:]])
        yield fresh, stores, queue


def row(queue, base, number):
    """About 1.2 kB that do not compress."""
    start = base + number % SLICES * WINDOW
    name = random.Random(number).randbytes(600).hex()
    return ViewRow(
        queue,
        Partition(start, 0),
        start,
        QueuedMail(
            EnqueueId(uuid.uuid4()), Mail(name, None, ("c@d.example",)), BlobId("h"), BlobId("b")
        ),
    )


def request(**params):
    return RunRequest("reclaim", NO_QUEUE, f"r-{uuid.uuid4().hex[:8]}", who="tester", params=params)


def reclaim(settings, **params):
    return run_all_in_process(request(**params), settings)


def files_mib(stores, keyspace):
    """What really lies in the node's data folder, when that is on this machine."""
    [[folders]] = stores.cassandra.execute(
        "SELECT value FROM system_views.settings WHERE name = 'data_file_directories'"
    )
    folder = Path(folders.strip("[]")) / keyspace
    return sum(file.stat().st_size for file in folder.glob("enqueuedmailsv4-*/*-Data.db")) / 2**20


def without_tool(settings):
    return settings.model_copy(update={"duty": settings.duty.model_copy(update={"nodetool": ""})})


def test_what_is_deleted_comes_back_and_a_second_run_finds_nothing(world):
    fresh, stores, queue = world
    settings = fresh.settings
    keyspace = settings.cassandra.keyspace
    assert reclaim(settings)["status"] in {
        "done",
        "nothing to do",
    }  # whatever is in memory is on disk now, or nothing was there
    reclaim(settings, force=True)
    full = files_mib(stores, keyspace)
    assert full > 5
    cleaned = run_all_in_process(
        RunRequest("queue_cleanup", queue, "cleaned", params={"grace": "1s"}), settings
    )
    assert cleaned["applied"] == ROWS - ROWS // SLICES

    told = reclaim(without_tool(settings))
    assert (told["status"], told["planned"], told["queue"]) == ("nothing to do", 0, None)
    assert 1 <= told["waitingMib"] <= 20
    assert (
        f"garbagecollect -g ROW -j 1 {keyspace} enqueuedmailsv4 deletedmailsv2" in told["command"]
    )
    assert told["command"] in told["message"]
    assert files_mib(stores, keyspace) > full - 1

    dry = reclaim(settings, dry_run=True)
    assert (dry["status"], dry["planned"], dry["applied"]) == ("dry run", 1, 0)

    report = reclaim(settings)
    assert (
        report["status"],
        report["planned"],
        report["applied"],
        report["failed"],
        report["left"],
    ) == ("done", 1, 1, 0, 0)
    [node] = report["nodes"]
    assert node["before"]["enqueuedmailsv4"] >= full - 1
    assert node["after"]["enqueuedmailsv4"] < full / 2
    assert report["freedMib"] == sum(node["before"].values()) - sum(node["after"].values()) > 0
    assert report["after"]["mib"] < report["before"]["mib"]
    assert files_mib(stores, keyspace) < full / 2
    assert Ledger(stores, settings).last("reclaim", NO_QUEUE)["nodes"] == report["nodes"]
    picture = artifacts(settings).read(
        RunFolder(artifacts(settings), "reclaim", NO_QUEUE, report["run"]).file("disk.svg")
    )
    assert picture.startswith(b"<?xml")
    assert b"enqueuedmailsv4" in picture

    again = reclaim(settings)
    assert (again["status"], again["planned"], again["waitingMib"], again["nodes"][0]["why"]) == (
        "nothing to do",
        0,
        0,
        None,
    )
    assert len(list(stores.tables.v4.partitions(queue))) >= 1


@pytest.mark.parametrize(
    "point",
    [
        "apply:before-collect",
        *(
            pytest.param(point, marks=pytest.mark.soak)
            for point in ("apply:locked", "apply:after-node")
        ),
    ],
)
def test_a_run_that_was_killed_is_taken_up_by_the_next(world, point):
    fresh, stores, _ = world
    asked = request(force=True)
    for step in ("plan", "check"):
        run_step_in_process(step, asked, fresh.settings)
    environ = {**fresh.environ, crash.VARIABLE: point}
    script = (
        "import sys; from mailslice.maintenance.spark_job import main; "
        f"sys.exit(main('reclaim', ['apply', '--run', {asked.run!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    holder = stores.own.locks.holder("reclaim")
    assert holder.startswith(asked.run)
    stores.own.locks.release("reclaim", holder)  # what 60 s would do
    for step in ("apply", "verify"):
        run_step_in_process(step, asked, fresh.settings)
    assert run_step_in_process("report", asked, fresh.settings)["applied"] == 1


def test_a_password_in_the_command_is_in_no_report(world):
    settings = world[0].but(MAILSLICE_NODETOOL="nodetool -h {host} -pw hunter2").settings
    report = reclaim(settings, dry_run=True, force=True)
    assert (report["status"], report["planned"]) == ("dry run", 1)
    location = artifacts(settings)
    assert not [name for name in location.files("") if b"hunter2" in location.read(name)]
    assert "hunter2" not in str(Ledger(world[1], settings).last("reclaim", NO_QUEUE))


def test_a_command_that_fails_fails_the_run_and_says_why(world):
    fresh, _, _ = world
    settings = fresh.but(
        MAILSLICE_NODETOOL="sh -c 'echo no such host {host} >&2; exit 255'"
    ).settings
    report = reclaim(settings, force=True)
    assert (report["status"], report["failed"], report["applied"]) == ("failed", 1, 0)
    assert report["message"].endswith("127.0.0.1: flush ended with 255: no such host 127.0.0.1")
    assert report["nodes"][0]["status"] == "failed"


def test_a_plan_that_was_edited_is_refused(world):
    fresh, _, _ = world
    asked = request(force=True)
    run_step_in_process("plan", asked, fresh.settings)
    folder = RunFolder(artifacts(fresh.settings), asked.duty, asked.queue, asked.run)
    written = folder.read_json("plan.json")
    written["decided"]["keyspace"] = "system"
    folder.write_json("plan.json", written)
    for step in ("check", "apply"):
        with pytest.raises(PlanRefused):
            run_step_in_process(step, asked, fresh.settings)


def test_a_cluster_with_a_node_down_stops_at_the_gate(world, monkeypatch):
    fresh, _, _ = world
    another_node(monkeypatch, up=False)
    with pytest.raises(GateFailed, match="Every node is up"):
        reclaim(fresh.but(MAILSLICE_NODETOOL="true {host}").settings, force=True)
    assert reclaim(without_tool(fresh.settings))["status"] == "nothing to do"


def another_node(monkeypatch, *, up, alone=False):
    """Beside the real one, or in place of it."""
    here = Nodes.all

    def two(self):
        first, *_ = here(self)
        other = replace(first, address="10.9.9.9", up=up, asked=False)
        return (other,) if alone else (first, other)

    monkeypatch.setattr(Nodes, "all", two)


@pytest.mark.parametrize("planned_node_is_away", [True, False])
def test_a_node_that_goes_away_after_the_plan_stops_at_the_gate(
    world, monkeypatch, planned_node_is_away
):
    settings = world[0].but(MAILSLICE_NODETOOL="true {host}").settings
    asked = request(force=True)
    run_step_in_process("plan", asked, settings)
    if planned_node_is_away:
        monkeypatch.setattr(Nodes, "all", lambda _: ())
    else:
        another_node(monkeypatch, up=False)
    with pytest.raises(GateFailed, match="Every node is up"):
        run_step_in_process("check", asked, settings)


def test_a_command_that_names_no_host_stops_at_the_gate_where_there_are_several(world, monkeypatch):
    settings = world[0].but(MAILSLICE_NODETOOL="true").settings
    asked = request(force=True)
    run_step_in_process("plan", asked, settings)
    another_node(monkeypatch, up=True)
    with pytest.raises(GateFailed, match=r"MAILSLICE_NODETOOL names \{host\}"):
        run_step_in_process("check", asked, settings)


def test_a_node_that_still_collects_after_apply_fails(world, monkeypatch):
    settings, asked = world[0].settings, request(force=True)
    for step in ("plan", "check", "apply"):
        run_step_in_process(step, asked, settings)
    working = Compacting(pending=1, collecting=True)
    monkeypatch.setattr(Nodes, "compacting", lambda *_: working)
    with pytest.raises(GateFailed, match="No reclaimed node is still collecting"):
        run_step_in_process("verify", asked, settings)
    another_node(monkeypatch, up=False, alone=True)
    with pytest.raises(GateFailed, match="There are rows to judge"):
        run_step_in_process("verify", asked, settings)


@pytest.fixture
def several_replicas(monkeypatch):
    """The steps read the history of repairs, which on one node they would not."""
    for module in (survey, duty, node_work):
        monkeypatch.setattr(module, "table_repairs", repaired)


def test_tables_that_no_repair_within_gc_grace_covers_are_refused(world, several_replicas):
    fresh, stores, _ = world
    keyspace, tables = fresh.settings.cassandra.keyspace, ("enqueuedmailsv4", "deletedmailsv2")
    with pytest.raises(GateFailed, match=r"repaired within gc_grace.*--unrepaired"):
        reclaim(fresh.settings, force=True)
    refused = Ledger(stores, fresh.settings).last("reclaim", NO_QUEUE)
    assert (refused["status"], refused["applied"]) == ("refused", 0)

    old = datetime.now(UTC) - timedelta(days=9, hours=23)
    record(stores.cassandra, keyspace=keyspace, tables=tables, began=old)
    asked = request(force=True, dry_run=True)
    with pytest.raises(GateFailed, match="repaired within gc_grace"):
        run_all_in_process(asked, fresh.settings)
    said = RunFolder(artifacts(fresh.settings), "reclaim", NO_QUEUE, asked.run).read_json(
        "plan.json"
    )
    assert "not repaired within gc_grace: enqueuedmailsv4: last repair" in said["message"]

    record(stores.cassandra, keyspace=keyspace, tables=tables[:1])
    with pytest.raises(GateFailed, match=r"deletedmailsv2: .* in 1 of 2 rows|in 1 of 2 rows"):
        reclaim(fresh.settings, force=True)
    record(stores.cassandra, keyspace=keyspace, tables=tables[1:])
    assert reclaim(fresh.settings, force=True)["applied"] == 1


def test_an_operator_may_go_on_without_a_repair_and_says_why(world, several_replicas):
    fresh, stores, _ = world
    stores.cassandra.execute(
        f"ALTER TABLE {fresh.settings.cassandra.keyspace}.deletedmailsv2 WITH gc_grace_seconds = 60"
    )
    with pytest.raises(GateFailed):
        reclaim(fresh.settings, force=True)
    with pytest.raises(BadInput, match="unrepaired needs a reason"):
        reclaim(fresh.settings, force=True, unrepaired=True, reason=" ")
    said = "no node was away this year"
    assert reclaim(fresh.settings, force=True, unrepaired=True, reason=said)["reason"] == said


def mailslice(fresh, *words, **more):
    program = Path(sys.executable).with_name("mailslice")
    done = subprocess.run(
        [program, *words],
        env={**fresh.environ, **more},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.soak
def test_from_outside(world):
    fresh, _, _ = world
    code, out, err = mailslice(
        fresh,
        "duty",
        "run",
        "reclaim",
        "--queue",
        "spool",
        "--force",
        "--reason",
        "by hand",
        "--json",
    )
    report = json.loads(out.splitlines()[-1])
    assert "duty reclaim is about all queues: --queue spool is ignored" in err
    assert (code, report["queue"], report["applied"], report["reason"]) == (0, None, 1, "by hand")
    code, out, _ = mailslice(fresh, "report", "last", "--duty", "reclaim", "--json")
    assert json.loads(out.splitlines()[-1])["run"] == report["run"]


@pytest.mark.parametrize(
    ("words", "more", "said"),
    [
        (("--queue", "nowhere"), {}, "nowhere"),
        (("--max-pending", "-1"), {}, "max_pending"),
        (("--node-timeout", "999999999999d"), {}, "longer than any clock"),
        ((), {"MAILSLICE_NODETOOL": "ssh '"}, "MAILSLICE_NODETOOL"),
    ],
)
def test_wrong_input_from_outside(world, words, more, said):
    code, out, err = mailslice(world[0], "duty", "run", "reclaim", *words, "--json", **more)
    assert (code, out) == (2, "")
    assert said in err


def test_a_command_that_does_nothing_is_not_believed(fresh, nodetool):
    """In keyspaces of its own: what the node did shortly before would count for the run."""
    with open_stores(fresh.settings) as stores:
        queue = queues.create(stores, "spool")
        stores.tables.v4.insert_many([row(queue, slice_start(datetime.now(UTC), WINDOW), 0)])
        [node] = Nodes(stores.cassandra).all()
    minute, keyspace = timedelta(minutes=1), fresh.settings.cassandra.keyspace
    nodetool.run(node.address, flush(keyspace, ("enqueuedmailsv4",)), minute)
    settings = fresh.but(MAILSLICE_NODETOOL="true {host}").settings
    with pytest.raises(GateFailed, match="rewrote its tables"):
        run_all_in_process(request(force=True), settings)


def test_a_clock_by_which_repairs_and_its_own_work_would_be_misjudged_is_refused(world, tmp_path):
    called = tmp_path / "called"
    settings = world[0].but(MAILSLICE_NODETOOL=f"touch {called} {{host}}").settings
    ahead = datetime.now(UTC) + timedelta(minutes=2)
    with pytest.raises(ClockSkew, match="allowed is a minute"):
        run_all_in_process(request(force=True), settings, clock=lambda: ahead)
    assert not called.exists()
