"""What the exporter makes of the ledger: of runs that failed, of some slices, without RabbitMQ."""

import json
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from pydantic import SecretStr

from mailslice.admin import queues
from mailslice.cli.exporter_samples import ledger_samples
from mailslice.maintenance.artifacts import iso
from mailslice.model.mail import QueueName
from mailslice.stores import open_stores
from mailslice.stores.cassandra.own import InFlightMail, WorkerRecord, WorkerRecords
from mailslice.stores.own.runs import RunRow
from tests.ports import free_port

NOW = datetime.now(UTC)
SPOOL = QueueName("spool")


def add_run(stores, duty, ago, **fields):
    finished = NOW - ago
    report = {"duty": duty, "queue": SPOOL, "finished": iso(finished), "status": "done"} | fields
    ended = finished if report["finished"] else None
    row = RunRow(iso(finished), duty, SPOOL, finished, "done", json.dumps(report), finished=ended)
    stores.own.runs.save(row, timedelta(days=1))


def values(stores, name):
    return {
        tuple(one.labels.values()): one.value for one in ledger_samples(stores) if one.name == name
    }


def test_an_audit_of_some_slices_is_not_the_last_audit(fresh):
    with open_stores(fresh.settings) as stores:
        queues.create(stores, SPOOL)
        add_run(stores, "queue_audit", timedelta(hours=2), verdicts={"lost": 3})
        slices = {"slices_from": "2026-11-20T00:00:00Z", "slices_before": None}
        add_run(stores, "queue_audit", timedelta(hours=1), verdicts={"lost": 0}, params=slices)
        assert values(stores, "mailslice_audit_mails") == {("spool", "lost"): 3}


@pytest.mark.parametrize(
    "newer",
    [
        {"status": "failed"},
        {"status": "failed", "verdicts": {"lost": 0}},
        {"verdicts": {"lost": 0}, "params": {"slices_from": "2026-11-20T00:00:00Z"}},
        {"status": "running", "finished": None},
    ],
)
def test_audits_without_a_result_leave_the_verdicts_of_the_one_before(fresh, newer):
    with open_stores(fresh.settings) as stores:
        queues.create(stores, SPOOL)
        add_run(stores, "queue_audit", timedelta(hours=5), verdicts={"lost": 3})
        for ago in (3, 2, 1):
            add_run(stores, "queue_audit", timedelta(hours=ago), **newer)
        assert values(stores, "mailslice_audit_mails") == {("spool", "lost"): 3}


def test_an_alert_that_the_newest_run_has_no_figure_for_goes_on(fresh):
    alert = {"name": "lost", "value": 3, "limit": 0, "text": "", "since": "", "told": ""}
    with open_stores(fresh.settings) as stores:
        queues.create(stores, SPOOL)
        add_run(stores, "queue_audit", timedelta(hours=1), status="failed", alerts=[alert])
        firing = values(stores, "mailslice_alert")
        assert firing["queue_audit", "spool", "lost"] == 1


@pytest.mark.parametrize("status", ["dry run", "refused", "failed"])
def test_dry_runs_do_not_hide_the_run_that_failed(fresh, status):
    failed = timedelta(days=3)
    with open_stores(fresh.settings) as stores:
        queues.create(stores, SPOOL)
        add_run(stores, "queue_cleanup", failed, status="failed")
        for ago in (3, 2, 1):
            dry = {"status": status, "params": {"dry_run": True}}
            add_run(stores, "queue_cleanup", timedelta(hours=ago), **dry)
        label = ("queue_cleanup", "spool")
        assert values(stores, "mailslice_duty_succeeded") == {label: 0}
        ended = values(stores, "mailslice_duty_finished_timestamp_seconds")
        assert ended == {label: (NOW - failed).timestamp()}


def test_a_dry_run_that_failed_is_no_failure_of_the_duty(fresh):
    with open_stores(fresh.settings) as stores:
        add_run(stores, "queue_cleanup", timedelta(hours=2))
        dry = {"status": "failed", "params": {"dry_run": True}}
        add_run(stores, "queue_cleanup", timedelta(hours=1), **dry)
        assert values(stores, "mailslice_duty_succeeded") == {("queue_cleanup", "spool"): 1}


def test_without_rabbitmq_the_ledger_has_its_figures(fresh):
    away = SecretStr(f"http://guest:guest@127.0.0.1:{free_port()}")
    rabbitmq = fresh.settings.rabbitmq.model_copy(update={"management_url": away})
    with open_stores(fresh.settings.model_copy(update={"rabbitmq": rabbitmq})) as stores:
        add_run(stores, "queue_cleanup", timedelta(hours=1))
        assert values(stores, "mailslice_duty_succeeded") == {("queue_cleanup", "spool"): 1}
        assert values(stores, "mailslice_queue_health") == {}


def test_workers_are_those_of_their_queue(fresh):
    mail = InFlightMail(uuid4(), "m", timedelta(seconds=1), "loaded", 1, begun=True)
    with open_stores(fresh.settings) as stores:
        WorkerRecords.created(stores.cassandra, stores.settings)
        for queue, mails in (("spool", 2), ("outgoing", 0)):
            beats = timedelta(hours=1)
            record = WorkerRecord("w", "h", 1, NOW, beats, 1, (mail,) * mails)
            stores.own.worker_records.save_future(QueueName(queue), record).result()
        alive = {("outgoing", "alive"): 1, ("spool", "alive"): 1}
        silent = {("outgoing", "silent"): 0, ("spool", "silent"): 0}
        assert values(stores, "mailslice_workers") == alive | silent
        handling = values(stores, "mailslice_workers_mails")
        assert (handling["spool", "handling"], handling["outgoing", "handling"]) == (2, 0)
