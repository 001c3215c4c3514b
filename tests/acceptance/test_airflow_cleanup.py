"""queue_cleanup through a real Airflow with its scheduler, on real stores: by hand, as a backfill
on a Spark cluster, and again.
"""

from __future__ import annotations

import getpass
import time
from datetime import UTC, datetime, timedelta

import psutil
import pytest

from mailslice.admin import queues
from mailslice.admin.mail_queue import MailQueue
from mailslice.maintenance.ledger import Ledger
from mailslice.model.clock import system_clock
from mailslice.model.mail import QueueName
from mailslice.stores import open_stores
from tests.acceptance.airflow_process import airflow_standalone, spark_cluster
from tests.contracts.making import row

DAG = "queue_cleanup"
DAY = timedelta(days=1)
_IDLE_PERCENT = 40
"""Of all cores: Airflow's own processes look for work all the time."""
STEPS = ("plan_cleanup", "check_plan", "apply_cleanup", "verify", "report")

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def stores(fresh_module):
    with open_stores(fresh_module.settings) as opened:
        for queue in ("by hand", "ranges", "idle", "away"):
            queues.create(opened, queue)
        yield opened


@pytest.fixture(scope="module")
def airflow(stores, fresh_module, tmp_path_factory):
    # The queues with rows are large, so that Spark works on them; what has nothing to do is small.
    env = {**fresh_module.env, "MAILSLICE_DUTY_SMALL_ROWS": "15"}
    with airflow_standalone(tmp_path_factory.mktemp("airflow") / "home", env) as running:
        yield running


def put(stores, queue, hours, *, live=()):
    """Ten rows in the slice of each hour, dead but for the first of those in `live`."""
    for hour in hours:
        rows = [row(queue, hour + timedelta(minutes=10)) for _ in range(10)]
        stores.tables.v4.insert_many(rows)
        stores.tables.deleted.mark_many(
            queue, [each.enqueue_id for each in rows[1 if hour in live else 0 :]]
        )
    stores.tables.browse_starts.insert_first(queue, min(hours))
    stores.tables.content_starts.insert_first(queue, min(hours))


def slices(stores, queue):
    return {
        each.slice_start: (each.live, each.dead)
        for each in MailQueue(stores, queue, system_clock).slices()
    }


def nothing_to_do(airflow, stores, settings):
    """A run on the queue "idle"; how many seconds it took."""
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    queue = QueueName("idle")
    stores.tables.browse_starts.insert_first(queue, hour)
    stores.tables.content_starts.insert_first(queue, hour)
    began = time.monotonic()
    run = airflow.trigger(DAG, {"queues": ["idle"], "dry_run": False})
    states = airflow.wait(DAG, run)
    seconds = time.monotonic() - began
    assert [states[step, "idle"] for step in STEPS] == ["success"] * 5
    report = Ledger(stores, settings).last(DAG, queue)
    assert (report["status"], report["dagRun"]) == ("nothing to do", run)
    return seconds


def test_a_run_with_nothing_to_do_needs_no_spark(airflow, stores, fresh_module):
    nothing_to_do(airflow, stores, fresh_module.settings)


def test_a_run_with_nothing_to_do_takes_at_most_a_minute(airflow, stores, fresh_module, capsys):
    """A figure, and no test on a machine that does something else."""
    if psutil.cpu_percent(10) > _IDLE_PERCENT:
        pytest.skip("the machine is busy: a time would be of that")
    seconds = nothing_to_do(airflow, stores, fresh_module.settings)
    with capsys.disabled():
        print(f"\nan Airflow run with nothing to do: {seconds:.0f} s")
    assert seconds <= 60


def test_a_missing_spark_connection_is_said_in_a_sentence_instead_of_meaning_yarn(airflow, stores):
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    put(stores, QueueName("away"), [hour - timedelta(hours=back) for back in (9, 7, 5)])
    run = airflow.trigger(DAG, {"queues": ["away"], "dry_run": False})
    states = airflow.wait(DAG, run)
    assert states["plan_cleanup", "away"] == "failed"
    log = airflow.api(
        "GET", f"dags/{DAG}/dagRuns/{run}/taskInstances/plan_cleanup/logs/1?map_index=0"
    )
    assert "is missing or names no master" in str(log)


def test_a_run_by_hand_cleans_its_queue_although_another_one_fails(airflow, stores, fresh_module):
    queue = QueueName("by hand")
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    old, pinned, between = (
        hour - 9 * timedelta(hours=1),
        hour - 7 * timedelta(hours=1),
        hour - 5 * timedelta(hours=1),
    )
    put(stores, queue, [old, pinned, between], live=[pinned])
    airflow.connect("local[2]")

    run = airflow.trigger(
        DAG, {"queues": ["nosuch", "by hand"], "reason": "test", "dry_run": False}
    )
    states = airflow.wait(DAG, run)

    assert [states[step, "by hand"] for step in STEPS] == ["success"] * 5
    assert states["plan_cleanup", "nosuch"] == states["report", "nosuch"] == "failed"
    assert airflow.state(DAG, run) == "failed"
    assert slices(stores, queue) == {pinned: (1, 9)}
    assert stores.tables.browse_starts.get(queue).value == pinned
    ledger = Ledger(stores, fresh_module.settings)
    report = ledger.last(DAG, queue)
    assert (report["status"], report["planned"], report["applied"], report["failed"]) == (
        "done",
        20,
        20,
        0,
    )
    assert (report["dagRun"], report["who"], report["reason"]) == (run, "admin", "test")
    refused = ledger.last(DAG, QueueName("nosuch"))
    assert (refused["status"], refused["dagRun"]) == ("failed", run)
    assert (
        "RabbitMQ has no mail queue 'nosuch'; known are: away, by hand, idle, ranges"
        in refused["message"]
    )
    assert (
        airflow.api("GET", "assets/events?name_pattern=queue_cleanup&order_by=-timestamp")[
            "total_entries"
        ]
        >= 1
    )


def test_a_backfill_on_a_spark_cluster_cleans_its_range_once(
    airflow, stores, fresh_module, tmp_path
):
    queue = QueueName("ranges")
    first = datetime.now(UTC).replace(hour=2, minute=15, second=0, microsecond=0) - 4 * DAY
    inside = [first + timedelta(minutes=45), first + timedelta(hours=20, minutes=45)]
    outside = [first - timedelta(minutes=15), first + DAY + timedelta(minutes=45)]
    put(stores, queue, [*inside, *outside])
    starts = stores.tables.browse_starts.get(queue), stores.tables.content_starts.get(queue)
    span = ("--from-date", first.isoformat(), "--to-date", first.isoformat())

    with spark_cluster(tmp_path / "spark") as master:
        airflow.connect(master)
        airflow.command(
            "backfill", "create", "--dag-id", DAG, *span, "--dag-run-conf", '{"queues": ["ranges"]}'
        )
        runs = sorted(
            found["dag_run_id"]
            for found in airflow.api("GET", f"dags/{DAG}/dagRuns?run_type=backfill")["dag_runs"]
        )
        [run] = runs
        airflow.wait(DAG, run)
        assert airflow.state(DAG, run) == "success"
        assert sorted(slices(stores, queue)) == sorted(outside)
        assert (
            stores.tables.browse_starts.get(queue),
            stores.tables.content_starts.get(queue),
        ) == starts
        ledger = Ledger(stores, fresh_module.settings)
        [report] = ledger.list(DAG, queue)
        assert (report["status"], report["applied"], report["who"], report["dagRun"]) == (
            "done",
            20,
            getpass.getuser(),
            run,
        )

        airflow.backfilled(DAG)
        airflow.command(
            "backfill",
            "create",
            "--dag-id",
            DAG,
            *span,
            "--reprocess-behavior",
            "completed",
            "--dag-run-conf",
            '{"queues": ["ranges"]}',
        )
        airflow.wait(DAG, run)
        report = next(report for report in ledger.list(DAG, queue) if report["dagRun"] == run)
        assert (report["status"], report["planned"], report["applied"]) == ("nothing to do", 0, 0)
        assert report["message"].startswith("nothing to do, the range is clean already")
        assert sorted(slices(stores, queue)) == sorted(outside)
        apps = (
            (tmp_path / "spark" / "master.log").read_text(encoding="utf-8").count("Registered app")
        )
        assert apps == 2, "plan and apply of the first run; the second had nothing to do"
