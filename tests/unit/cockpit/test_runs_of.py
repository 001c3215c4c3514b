"""The reports of one Airflow run: all of its queues, however old it is."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from mailslice.cockpit import views
from mailslice.maintenance.artifacts import RunFolder, artifacts
from mailslice.maintenance.run_request import NO_QUEUE, run_of_dag
from mailslice.model.settings import DutySettings, Settings
from mailslice.stores.own.runs import RunRow, Runs

FIRST = datetime(2026, 11, 20, 12, tzinfo=UTC)
DAY = timedelta(days=1)
QUEUES = (NO_QUEUE, *(f"q{number:02}" for number in range(60)))


class Records:
    """The ledger's rows."""

    def __init__(self):
        self.kept, self.given = [], 0

    def put(self, values, _ttl):
        self.kept.append(
            {**values, "started": datetime.fromtimestamp(values["started"] / 1000, UTC)}
        )

    def partitions(self):
        keys = {(one["duty"], one["queuename"]) for one in self.kept}
        return iter([{"duty": duty, "queuename": queue} for duty, queue in sorted(keys)])

    def rows(self, partition, limit):
        found = [one for one in self.kept if partition.items() <= one.items()]
        newest = sorted(found, key=lambda one: one["started"], reverse=True)[:limit]
        self.given += len(newest)
        return iter(newest)

    def first_rows(self, partitions, limit):
        return (row for partition in partitions for row in self.rows(partition, limit))


class Ledger:
    """Stores that have a ledger, and a folder of runs."""

    def __init__(self, folder):
        self.settings = Settings(duty=DutySettings(artifacts=str(folder)))
        self.records = Records()
        self.runs = Runs(self.records)

    def existing_runs(self):
        return self.runs

    def add(self, number, queue, *, kept=True, duty="queue_audit"):
        dag_run = f"scheduled__{number}"
        run, started = run_of_dag(duty, queue, dag_run), FIRST + timedelta(hours=number)
        report = {
            "run": run,
            "dagRun": dag_run,
            "duty": duty,
            "queue": None if queue == NO_QUEUE else queue,
            "status": "done",
            "started": started.isoformat(),
        }
        row = RunRow(run, duty, queue, started, "done", json.dumps(report), dag_run)
        self.runs.save(row, DAY)
        if kept:
            self.file(queue, run, duty).write_text(json.dumps(report))

    def file(self, queue, run, duty="queue_audit"):
        folder = Path(RunFolder(artifacts(self.settings), duty, queue, run).uri)
        folder.mkdir(parents=True, exist_ok=True)
        return folder / "report.json"

    def queues_of(self, number):
        return [one["queue"] for one in views.runs_of(self, "queue_audit", f"scheduled__{number}")]


@pytest.fixture
def ledger(tmp_path):
    """Five runs of sixty-one queues: the newest 200 rows are all of the last three, and some."""
    ledger = Ledger(tmp_path)
    for number in range(5):
        for queue in QUEUES:
            ledger.add(number, queue)
    ledger.add(0, "other", duty="queue_size")
    return ledger


@pytest.mark.parametrize("number", range(5))
def test_a_run_shows_all_its_queues_once_however_old_it_is(ledger, number):
    every = sorted(ledger.queues_of(number), key=str)
    assert every == sorted((None if one == NO_QUEUE else one for one in QUEUES), key=str)


def test_a_queue_on_which_the_run_never_was_or_whose_report_is_damaged_is_left_out(ledger):
    ledger.add(9, "new")
    ledger.file("q07", run_of_dag("queue_audit", "q07", "scheduled__0")).write_text("{")
    assert set(QUEUES) - set(ledger.queues_of(0)) == {NO_QUEUE, "q07"}
    assert ledger.queues_of(9) == ["new"]
    assert ledger.queues_of(77) == []


def test_what_the_newest_rows_show_is_kept_where_the_folder_is_gone(ledger):
    ledger.add(9, "gone", kept=False)
    ledger.add(9, "q01", kept=False)
    assert set(ledger.queues_of(9)) == {"gone", "q01"}


@pytest.mark.parametrize("run", [None, "scheduled__0"])
def test_however_many_queues_there_are_two_hundred_rows_are_read(ledger, run):
    views.runs_of(ledger, "queue_audit", run)
    assert ledger.records.given <= 200


def test_without_a_run_the_newest_of_the_duty_are_shown(ledger):
    lines = views.runs_of(ledger, "queue_audit")
    assert [line["started"] for line in lines] == [
        FIRST + timedelta(hours=number) for number in (4, 3, 2) for _ in QUEUES
    ]
    ledger.records.kept = [one for one in ledger.records.kept if one["queuename"] == "q00"]
    assert len(views.runs_of(ledger, "queue_audit")) == 5
    assert views.runs_of(SimpleNamespace(existing_runs=lambda: None), "queue_audit") == []
