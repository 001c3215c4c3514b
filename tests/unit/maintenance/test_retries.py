"""What the runner records of a step that raises, and what a retry of the step makes of it."""

import json
import os
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError

from mailslice.maintenance import runner
from mailslice.maintenance.alerts import new_alerts
from mailslice.maintenance.artifacts import REQUEST as REQUEST_FILE
from mailslice.maintenance.artifacts import RunFolder, artifacts, folder_of, iso
from mailslice.maintenance.engine import TooLarge
from mailslice.maintenance.params import DutyParams
from mailslice.maintenance.run_request import RunRequest
from mailslice.model.errors import BadSetting, PlanRefused, StoreUnavailable
from mailslice.model.mail import QueueName
from mailslice.model.settings import S3Settings, load_settings
from mailslice.stores.blobs.s3_store import S3BlobStore
from mailslice.stores.own.runs import RunRow
from tests.killed import Killed

QUEUE = QueueName("spool")
REQUEST = RunRequest("queue_size", QUEUE, "r1")


class Runs:
    """The ledger's table."""

    def __init__(self):
        self.rows, self.given = {}, 0

    def save(self, row, _ttl):
        self.rows[row.run, row.started] = row

    def list(self, _duty=None, _queue=None, limit=1000):
        newest = sorted(self.rows.values(), key=lambda row: row.started, reverse=True)[:limit]
        self.given += len(newest)
        return newest

    def get(self, run):
        return next((row for row in self.list() if row.run == run), None)

    def delete(self, row):
        del self.rows[row.run, row.started]


class OwnBucket:
    """The client of S3. `refused`: the keys that it will not delete."""

    def __init__(self):
        self.exists, self.keys, self.refused, self.asked = True, [], set(), []

    def head_bucket(self, **_):
        if not self.exists:
            raise ClientError({"Error": {"Code": "404"}}, "HeadBucket")
        return {}

    def list_objects_v2(self, MaxKeys, ContinuationToken="", **_):  # noqa: N803 - S3's words
        self.asked.append("list")
        if not self.exists:
            raise ClientError({"Error": {"Code": "NoSuchBucket"}}, "ListObjectsV2")
        keys = sorted(key for key in self.keys if key > ContinuationToken)
        page = [{"Key": key, "Size": 1, "LastModified": None} for key in keys[:MaxKeys]]
        rest = {"NextContinuationToken": page[-1]["Key"]} if keys[MaxKeys:] else {}
        return {"Contents": page, "IsTruncated": bool(rest), **rest}

    def delete_objects(self, Delete, **_):  # noqa: N803
        self.asked.append("delete")
        keys = {each["Key"] for each in Delete["Objects"]}
        self.keys = [key for key in self.keys if key not in keys - self.refused]
        return {
            "Deleted": [{"Key": key} for key in keys - self.refused],
            "Errors": [{"Key": key, "Code": "AccessDenied"} for key in keys & self.refused],
        }


class OneDuty:
    """Its steps do nothing, or raise what `raises` has for them. Its reports have `found`."""

    params = DutyParams
    needs_queue = False
    small_first = False

    def __init__(self):
        self.raises, self.found = {}, {}
        self.own_blobs = S3BlobStore(S3Settings(), "own")
        self.own = self.own_blobs.__dict__["client"] = OwnBucket()

    def step(self, step):
        def run(_context):
            if error := self.raises.get(step):
                raise error
            return {"status": "done", **self.found} if step == "report" else {}

        return run

    @property
    def logic(self):
        return SimpleNamespace(bulky=frozenset())


@pytest.fixture
def settings(tmp_path):
    return load_settings({"MAILSLICE_ARTIFACTS": str(tmp_path / "a")}, state_file=tmp_path / "none")


@pytest.fixture
def runs():
    return Runs()


@pytest.fixture
def duty(monkeypatch, runs):
    found = OneDuty()
    own = SimpleNamespace(runs=runs)

    @contextmanager
    def opened(settings):
        yield SimpleNamespace(
            settings=settings,
            own=own,
            records=own,
            existing_runs=lambda: runs,
            prune_records=lambda: 0,
            cassandra=SimpleNamespace(require_clock=lambda *_: None),
            management=SimpleNamespace(mail_queues=list, dead_letter_queues=list),
            own_blobs=found.own_blobs,
        )

    monkeypatch.setattr(runner, "load", lambda _: found)
    monkeypatch.setattr(runner, "step_of", lambda _, step: found.step(step))
    monkeypatch.setattr(runner, "partial_report", lambda *_: {})
    monkeypatch.setattr(runner, "open_stores", opened)
    return found


@pytest.fixture
def take(settings, duty):
    """Takes steps, later by a minute each; an error of a step is given back."""
    now = [datetime(2026, 11, 21, 12, tzinfo=UTC)]

    def steps(*names, **raises):
        duty.raises = raises
        last = None
        for name in names:
            now[0] += timedelta(minutes=1)
            try:
                last = runner.run_step(name, REQUEST, settings, clock=lambda: now[0])
            except (PlanRefused, StoreUnavailable) as error:
                last = error
        return last

    return steps


def ledger(runs):
    [row] = runs.list()
    return row.status, json.loads(row.report)["message"]


def failure(settings):
    return RunFolder(artifacts(settings), "queue_size", QUEUE, "r1").read_json(runner.FAILURE)


def test_a_report_that_failed_once_is_good_once_it_gets_through(take, runs, settings):
    take("plan", "check", "apply", "verify", "report", report=StoreUnavailable("S3 is away"))
    assert ledger(runs) == ("failed", "report: S3 is away")
    report = take("report")
    assert report["status"] == "done"
    assert ledger(runs) == ("done", "")
    assert failure(settings) is None


def test_a_step_that_raised_stays_the_last_word_also_after_a_report_that_failed(take, runs):
    take("plan", "check", "apply", apply=PlanRefused("the plan was edited"))
    assert ledger(runs) == ("refused", "apply: the plan was edited")
    take("report", report=StoreUnavailable("S3 is away"))
    assert take("report")["status"] == "refused"
    assert ledger(runs) == ("refused", "apply: the plan was edited")


def test_a_retry_of_the_step_that_raised_takes_its_word_back(take, runs, settings):
    take("plan", "check", "apply", apply=StoreUnavailable("Cassandra is away"))
    assert failure(settings)["step"] == "apply"
    assert take("apply", "verify", "report")["status"] == "done"
    assert (ledger(runs), failure(settings)) == (("done", ""), None)


def test_an_s3_that_does_not_answer_while_rows_are_written_is_tried_again(take, runs):
    away = OSError("When initiating an upload: AWS Error NETWORK_CONNECTION during CreateUpload")
    assert isinstance(take("plan", plan=away), StoreUnavailable)
    assert ledger(runs) == ("failed", f"plan: artifacts: {away}")


def test_of_an_error_that_is_not_ours_the_ledger_has_no_stack(take, runs):
    error = RuntimeError("Job aborted\n" + "\tat java.x\n" * 100 + "Caused by: y\n\t... 1 more")
    with pytest.raises(RuntimeError):
        take("plan", plan=error)
    assert ledger(runs) == ("failed", "plan: RuntimeError: Job aborted ... Caused by: y")


def test_a_retry_that_is_killed_does_not_leave_the_reason_of_the_try_before(take, settings, duty):
    take("plan", "check", "apply", apply=StoreUnavailable("Cassandra is away"))

    duty.raises = {"apply": Killed()}
    with pytest.raises(Killed):
        runner.run_step("apply", REQUEST, settings)
    assert failure(settings) is None


@pytest.mark.parametrize(("dag_run", "time_limit"), [(None, "1h"), ("scheduled__1", None)])
def test_a_person_goes_on_with_the_params_of_a_plan_whoever_made_it(
    duty, settings, dag_run, time_limit
):
    params = {"intensity": 0.5, "time_limit": "1h"}
    asked = replace(REQUEST, dag_run=dag_run, who="alice", params=params)
    duty.raises = {"plan": StoreUnavailable("Cassandra is away")}
    with pytest.raises(StoreUnavailable):
        runner.run_step("plan", asked, settings)
    assert folder_of(asked, settings).read_json(REQUEST_FILE) == {
        "params": {**params, "time_limit": time_limit},
        "who": "alice",
    }


@pytest.fixture
def small(settings, duty, monkeypatch):
    """A duty whose small plans are done in the process; gives the plan step's summary."""
    duty.small_first = True
    duty.ran = []

    def run(step, function):
        def counted(context):
            duty.ran.append(step)
            return function(context)

        return counted

    plain = duty.step
    monkeypatch.setattr(duty, "step", lambda step: run(step, plain(step)))

    def steps(clear="", **raises):
        duty.raises = raises
        return runner.run_small(REQUEST, settings, clear=clear)

    return steps


def test_after_a_small_plan_every_step_is_done_in_its_process_and_taken_once(small, duty, settings):
    assert small()["engine"] == "process"
    assert duty.ran == ["plan", "check", "apply", "verify", "report"]
    assert runner.is_small(REQUEST, settings)
    for step in ("check", "apply", "verify"):
        assert runner.small_run_summary(step, REQUEST, settings)["step"] == step
        assert runner.small_run_summary(step, REQUEST, settings) is None
    assert runner.small_run_summary("report", REQUEST, settings)["status"] == "done"


def test_a_step_that_fails_after_a_small_plan_is_left_to_its_own_task(small, duty, settings, take):
    small(apply=PlanRefused("the plan is too old"))
    assert duty.ran == ["plan", "check", "apply"]
    assert runner.small_run_summary("check", REQUEST, settings)
    assert runner.small_run_summary("apply", REQUEST, settings) is None
    assert str(take("apply", apply=PlanRefused("the plan is too old"))) == "the plan is too old"


def test_a_plan_that_is_made_anew_forgets_what_was_done_after_the_one_before(small, settings, take):
    small()
    take("plan")
    assert runner.small_run_summary("check", REQUEST, settings) is None


@pytest.mark.parametrize("step", ["check", "apply", "verify", "report"])
def test_a_small_run_that_is_killed_goes_on_with_its_plan_and_a_cleared_one_plans_anew(
    small, duty, settings, step
):
    with pytest.raises(Killed):
        small(**{step: Killed()})
    assert small()["engine"] == "process"
    assert [duty.ran.count(each) for each in ("plan", step)] == [1, 2]
    assert len(duty.ran) == 6
    assert runner.small_run_summary("report", REQUEST, settings)["status"] == "done"
    small()
    assert duty.ran.count("plan") == 2


def test_a_small_run_that_is_killed_once_it_has_ended_is_not_planned_anew(small, duty, settings):
    """Airflow tries the task again when it never heard that it ended."""
    small()
    assert small()["engine"] == "process"
    assert duty.ran == ["plan", "check", "apply", "verify", "report"]
    assert runner.small_run_summary("report", REQUEST, settings)["status"] == "done"


@pytest.mark.parametrize("step", ["check", "apply", "verify", "report"])
def test_a_small_run_whose_step_raised_goes_on_until_a_task_has_come(small, duty, settings, step):
    """Planned anew, it would not know what it had applied, and would verify none of it."""
    small(**{step: StoreUnavailable("Cassandra is away")})
    assert small()["engine"] == "process"
    assert [duty.ran.count(each) for each in ("plan", step)] == [1, 2]
    assert len(duty.ran) == 6
    assert runner.small_run_summary("check", REQUEST, settings)
    small()
    assert duty.ran.count("plan") == 2


def test_a_small_run_that_is_cleared_before_its_tasks_came_is_planned_anew(small, duty, settings):
    """It was marked as failed, or timed out, once its plan's task had done all of it."""
    small(clear="0/3")
    assert small(clear="1/4")["engine"] == "process"
    assert duty.ran == ["plan", "check", "apply", "verify", "report"] * 2
    small(clear="1/4")
    assert len(duty.ran) == 10
    assert runner.small_run_summary("report", REQUEST, settings)["status"] == "done"


@pytest.mark.parametrize("step", ["check", "apply", "verify", "report"])
def test_a_small_run_that_is_killed_and_then_cleared_is_planned_anew(small, duty, settings, step):
    """A person may have corrected a setting by which the plan goes."""

    with pytest.raises(Killed):
        small(clear="0/3", **{step: Killed()})
    with pytest.raises(Killed):
        small(clear="1/4", **{step: Killed()})
    small(clear="1/4")
    assert [duty.ran.count(each) for each in ("plan", step)] == [2, 3]
    assert runner.small_run_summary("report", REQUEST, settings)["status"] == "done"


def test_all_steps_of_a_small_run_share_the_time_of_its_task(duty, small, settings, monkeypatch):
    """Apply began its time anew after a long plan, and Airflow killed it half done."""
    over, plain = {}, duty.step

    def step(name):
        def run(context):
            over[name] = context.out_of_time()
            if name == "plan":
                time.sleep(0.1)
            return plain(name)(context)

        return run

    monkeypatch.setattr(duty, "step", step)
    request = replace(REQUEST, params={"time_limit": "0.1s"})
    runner.run_small(request, settings)
    assert (over["plan"], over["apply"]) == (False, True)
    runner.run_step("apply", request, settings)
    assert not over["apply"]


def test_a_folder_that_cannot_be_pruned_fails_no_run(take, settings, runs, caplog):
    location = artifacts(settings)
    location.write("deleted", b"a file, which no note can be in")
    assert take("plan", "check", "apply", "verify", "report")["status"] == "done"
    assert ledger(runs) == ("done", "")
    assert "deleted mails that are over were not pruned: artifacts" in caplog.text


OVER = [f"deleted/20260101T000000Z/spool/run-{number:06}.mails" for number in range(2500)]


def test_a_duty_that_may_not_delete_leaves_kept_mails_to_the_next_run_and_says_so(
    take, duty, settings, runs, caplog
):
    """It took the turn of the hour, and no run of another duty deleted them."""
    own, location = duty.own, artifacts(settings)
    own.keys, own.refused = OVER, set(OVER)
    assert take("plan", "check", "apply", "verify", "report")["status"] == "done"
    assert ledger(runs) == ("done", "")
    (line,) = (one.getMessage() for one in caplog.records)
    assert line.startswith("deleted mails that are over were not pruned: S3 at ")
    assert line.endswith(
        " refuses the key of MAILSLICE_S3_ACCESS_KEY and MAILSLICE_S3_SECRET_KEY "
        "(None, MAILSLICE_S3_REGION='us-east-1'): AccessDenied, bucket 'own'"
    )
    assert own.asked == ["list", "delete"], "a thousand of them say it of the rest"
    assert not location.exists("deleted/pruned.txt")
    own.refused = set()
    take("report")
    assert (own.keys, location.exists("deleted/pruned.txt")) == ([], True)
    own.keys = OVER
    take("report")
    assert own.keys == OVER, "within the hour"


def test_kept_mails_that_cannot_be_deleted_keep_no_other(take, duty, settings, caplog):
    own = duty.own
    own.keys, own.refused = OVER, {OVER[7]}
    take("plan", "check", "apply", "verify", "report")
    assert own.keys == [OVER[7]]
    assert f"not pruned: 1 objects are left, such as {OVER[7]}: S3 would not" in caplog.text
    assert not artifacts(settings).exists("deleted/pruned.txt")


def test_a_deployment_without_an_own_bucket_has_nothing_to_prune(take, duty, caplog):
    duty.own.exists = False
    assert take("plan", "check", "apply", "verify", "report")["status"] == "done"
    assert not caplog.records


def test_data_docs_that_cannot_be_pruned_keep_neither_runs_nor_kept_mails(take, settings, runs):
    location = artifacts(settings)
    location.write("data_docs", b"a file, which no note can be in")
    location.write("runs/queue_size/spool/old/plan.json", b"{}")
    os.utime(location.path("runs/queue_size/spool/old/plan.json"), (0, 0))
    assert take("plan", "check", "apply", "verify", "report")["status"] == "done"
    assert not location.exists("runs/queue_size/spool/old/plan.json")
    assert location.exists("deleted/pruned.txt")


def test_runs_that_cannot_be_pruned_do_not_keep_data_docs(take, settings, runs):
    location = artifacts(settings)
    location.write("runs/queue_size/spool/pruned.txt/file", b"where the note would be")
    assert take("plan", "check", "apply", "verify", "report")["status"] == "done"
    assert location.exists("data_docs/pruned.txt")


def test_a_plan_that_needs_spark_is_no_failure(small, runs, settings):
    with pytest.raises(TooLarge):
        small(plan=TooLarge("large"))
    assert not runs.list()
    assert failure(settings) is None


def test_a_refusal_before_apply_is_the_last_word_and_in_the_ledger(take, settings, runs):
    take("plan", "check")
    refusal = PlanRefused("not approved, nothing was applied: rejected by alice")
    runner.record_refusal("approve", refusal, REQUEST, settings)
    said = ("refused", "approve: not approved, nothing was applied: rejected by alice")
    assert ledger(runs) == said
    report = take("report")
    assert (report["status"], report["message"]) == said


def test_a_run_that_fails_reports_what_was_alarming_before_it(take, duty, settings, runs):
    """The overview has it by the newest report, whether that failed or not."""
    at = datetime(2026, 11, 21, 11, 55, tzinfo=UTC)
    duty.raises = {"plan": StoreUnavailable("Cassandra is away")}
    with pytest.raises(StoreUnavailable):
        runner.run_step("plan", replace(REQUEST, run="r0"), settings, clock=lambda: at)
    take("plan", plan=PlanRefused("it was edited"))
    report = json.loads(runs.get("r1").report)
    assert [one["name"] for one in report["alerts"]] == ["gate"]
    assert [(one["name"], one["until"]) for one in report["pastAlerts"]] == [
        ("failed", "2026-11-21T11:55:00Z")
    ]


def test_an_alert_is_not_over_where_the_run_after_it_failed(duty, settings, runs):
    noon = datetime(2026, 11, 21, 12, tzinfo=UTC)
    duty.found = {"deadLetters": 50}
    for number, raises in enumerate(({}, {"plan": StoreUnavailable("away")}, {})):
        duty.raises = raises
        request, at = replace(REQUEST, run=f"r{number}"), noon + timedelta(minutes=15 * number)
        with suppress(StoreUnavailable):
            runner.run_step("plan", request, settings, clock=lambda at=at: at)
            duty.found = {"deadLetters": 0} if number else duty.found
            runner.run_step("report", request, settings, clock=lambda at=at: at)
    failed, last = (json.loads(runs.get(run).report) for run in ("r1", "r2"))
    assert [one["name"] for one in failed["alerts"]] == ["failed", "dead_letters"]
    assert failed["pastAlerts"] == []
    assert (last["alerts"], [one["name"] for one in last["pastAlerts"]]) == (
        [],
        ["failed", "dead_letters"],
    )


def test_a_dry_run_ends_no_alert(duty, settings, runs):
    noon = datetime(2026, 11, 21, 12, tzinfo=UTC)
    for number, raises in enumerate(({"plan": StoreUnavailable("away")}, {}, {"plan": KeyError()})):
        duty.raises = raises
        request = replace(REQUEST, run=f"r{number}", params={"dry_run": number == 1})
        at = noon + timedelta(minutes=15 * number)
        with suppress(StoreUnavailable, KeyError):
            runner.run_step("plan", request, settings, clock=lambda at=at: at)
            runner.run_step("report", request, settings, clock=lambda at=at: at)
    last = json.loads(runs.get("r2").report)
    assert [(one["name"], one["since"]) for one in last["alerts"]] == [
        ("failed", "2026-11-21T12:00:00Z")
    ]
    assert last["pastAlerts"] == []


def test_an_apply_that_is_killed_has_a_row_in_the_ledger(take, runs):
    take("plan", "check")
    with pytest.raises(Killed):
        take("apply", apply=Killed())
    assert ledger(runs) == ("running", "apply has begun and has not ended")
    assert take("apply", "verify", "report")["status"] == "done"
    assert ledger(runs) == ("done", "")


def test_of_runs_that_were_killed_the_newest_is_in_the_ledger_beside_those_that_ended(
    duty, settings, runs
):
    noon = datetime(2026, 11, 21, 12, tzinfo=UTC)
    for number, dies in enumerate((False, True, True, True)):
        request, at = replace(REQUEST, run=f"r{number}"), noon + timedelta(minutes=15 * number)
        duty.raises = {"apply": Killed()} if dies else {}
        with suppress(Killed):
            for step in ("plan", "check", "apply", "verify", "report"):
                runner.run_step(step, request, settings, clock=lambda at=at: at)
    assert [(row.run, row.status) for row in runs.list()] == [
        ("r3", "running"),
        ("r2", "running"),
        ("r0", "done"),
    ]


def test_a_run_reads_few_of_the_reports_before_it(take, runs):
    for number in range(300):
        before = datetime(2026, 11, 21, tzinfo=UTC) - timedelta(minutes=15 * number)
        row = RunRow(f"old{number}", "queue_size", QUEUE, before, "done", finished=before)
        runs.save(replace(row, report='{"run": "old", "finished": null}'), None)
    take("plan", "check", "apply", "verify", "report")
    assert len(runs.rows) == 301
    assert runs.given <= 4 * 20 + 25


def test_runs_that_fail_in_between_make_no_alert_new(duty, settings, runs):
    noon = datetime(2026, 11, 21, 12, tzinfo=UTC)
    duty.found = {"deadLetters": 50}
    for number, raises in enumerate(({}, *[{"plan": StoreUnavailable("away")}] * 6, {})):
        duty.raises = raises
        request = replace(REQUEST, run=f"r{number}", tells=True)
        at = noon + timedelta(minutes=15 * number)
        with suppress(StoreUnavailable):
            runner.run_step("plan", request, settings, clock=lambda at=at: at)
            runner.run_step("report", request, settings, clock=lambda at=at: at)
    (alert,) = json.loads(runs.get("r7").report)["alerts"]
    assert (alert["since"], alert["told"]) == ("2026-11-21T12:00:00Z", "2026-11-21T12:00:00Z")


def test_a_run_that_tells_nobody_leaves_its_alert_for_the_next_that_does(duty, settings):
    noon = datetime(2026, 11, 21, 12, tzinfo=UTC)
    duty.found = {"deadLetters": 50}
    times = []
    for number, tells in enumerate((False, True, False, True)):
        request = replace(REQUEST, run=f"r{number}", tells=tells)
        at = noon + timedelta(minutes=15 * number)
        runner.run_step("plan", request, settings, clock=lambda at=at: at)
        (alert,) = runner.run_step("report", request, settings, clock=lambda at=at: at)["alerts"]
        times.append(alert["told"])
        assert alert["since"] == "2026-11-21T12:00:00Z"
    assert times == [None, *["2026-11-21T12:15:00Z"] * 3]


def test_an_alert_that_no_channel_took_is_sent_by_the_next_run(duty, settings, runs):
    noon = datetime(2026, 11, 21, 12, tzinfo=UTC)
    duty.found = {"deadLetters": 50}
    sent = []
    for number, fails in enumerate((True, True, False, False)):
        request = replace(REQUEST, run=f"r{number}", tells=True)
        at = noon + timedelta(minutes=15 * number)
        runner.run_step("plan", request, settings, clock=lambda at=at: at)
        report = runner.run_step("report", request, settings, clock=lambda at=at: at)
        sent.append(len(new_alerts(report)))
        if fails:
            runner.record_unsent_alerts(report, settings)
        (alert,) = json.loads(runs.get(f"r{number}").report)["alerts"]
        assert (alert["since"], alert["told"] is None) == (iso(noon), fails)
    assert sent == [1, 1, 1, 0]


def test_a_run_whose_clock_was_a_year_ahead_neither_silences_alerts_nor_repeats_them(
    duty, settings
):
    """Its row stays the first of the ledger for the retention."""
    noon, ahead = datetime(2026, 11, 21, 12, tzinfo=UTC), timedelta(days=365)
    duty.found = {"deadLetters": 50}
    sent = []
    for number, minutes in enumerate((0, 15, 30)):
        at = noon + timedelta(minutes=minutes) + ahead * (number == 0)
        request = replace(REQUEST, run=f"r{number}", tells=True)
        runner.run_step("plan", request, settings, clock=lambda at=at: at)
        report = runner.run_step("report", request, settings, clock=lambda at=at: at)
        sent.append(len(new_alerts(report)))
    assert sent == [1, 1, 0]


def test_a_dry_run_says_nothing_to_prometheus_of_the_run_that_failed_before_it(
    take, duty, settings
):
    take("plan", plan=StoreUnavailable("Cassandra is away"))
    files, file = artifacts(settings), "metrics/duty-queue_size-spool.prom"
    before = files.read(file)
    dry = replace(REQUEST, run="r2", params={"dry_run": True})
    duty.raises = {"check": PlanRefused("the gate did not pass it")}
    runner.run_step("plan", dry, settings)
    with pytest.raises(PlanRefused):
        runner.run_step("check", dry, settings)
    assert files.read(file) == before
    duty.raises, duty.found = {}, {"status": "dry run"}
    runner.run_step("check", dry, settings)
    assert runner.run_step("report", dry, settings)["status"] == "dry run"
    assert files.read(file) == before


def test_a_run_that_ends_as_the_ledger_is_away_has_its_file_and_its_metrics(take, settings, runs):
    def away(*_):
        raise StoreUnavailable("Cassandra is away")

    runs.list = away
    take("plan", plan=StoreUnavailable("Cassandra is away"))
    folder = RunFolder(artifacts(settings), "queue_size", QUEUE, "r1")
    report = folder.read_json("report.json")
    assert (report["status"], [one["name"] for one in report["alerts"]]) == ("failed", ["failed"])
    metrics = folder.artifacts.read("metrics/duty-queue_size-spool.prom")
    assert b'mailslice_duty_succeeded{duty="queue_size",queue="spool"} 0.0' in metrics


def test_a_report_whose_file_cannot_be_written_is_in_the_ledger_with_its_alerts(
    duty, settings, runs
):
    """As on a full disk. Else the ledger would say for ever that the run goes on."""
    duty.found, request = {"deadLetters": 50}, replace(REQUEST, tells=True)
    for step in ("plan", "apply"):
        runner.run_step(step, request, settings)
    assert runs.get("r1").status == "running"
    Path(folder_of(request, settings).uri, "report.json").mkdir()
    with pytest.raises(BadSetting, match="MAILSLICE_ARTIFACTS must be a folder"):
        runner.run_step("report", request, settings)
    row = runs.get("r1")
    alerts = [(alert["name"], alert["told"]) for alert in json.loads(row.report)["alerts"]]
    assert (row.status, alerts) == ("done", [("dead_letters", None)])


def fail_once(runs):
    """The next list of the ledger fails."""
    read = runs.list

    def fail(*_):
        runs.list = read
        raise StoreUnavailable("Cassandra is away")

    runs.list = fail


def test_a_report_that_could_not_read_the_ledger_once_ends_no_alert(duty, settings, runs, take):
    duty.found = {"census": {}, "verdicts": {"lost": 3}}
    before = datetime(2026, 11, 21, 11, tzinfo=UTC)
    for step in ("plan", "report"):
        runner.run_step(step, replace(REQUEST, run="r0"), settings, clock=lambda: before)
    duty.found = {}
    take("plan")
    fail_once(runs)
    assert isinstance(take("report"), StoreUnavailable)
    assert take("report")["status"] == "done"
    report = json.loads(runs.get("r1").report)
    assert [(one["name"], one["since"]) for one in report["alerts"]] == [
        ("lost", "2026-11-21T11:00:00Z")
    ]
    assert report["pastAlerts"] == []


def test_a_step_that_fails_as_the_ledger_cannot_be_read_once_ends_no_alert(
    duty, settings, runs, take
):
    duty.found = {"census": {}, "verdicts": {"lost": 3}}
    before = datetime(2026, 11, 21, 11, tzinfo=UTC)
    for step in ("plan", "report"):
        runner.run_step(step, replace(REQUEST, run="r0"), settings, clock=lambda: before)
    duty.found = {}
    fail_once(runs)
    take("plan", plan=StoreUnavailable("Cassandra is away"))
    folder = RunFolder(artifacts(settings), "queue_size", QUEUE, "r1")
    assert folder.read_json("report.json")["status"] == "failed"
    assert [row.run for row in runs.list()] == ["r0"]
    take("plan", "report")
    report = json.loads(runs.get("r1").report)
    assert [(one["name"], one["since"]) for one in report["alerts"]] == [
        ("lost", "2026-11-21T11:00:00Z")
    ]


def test_an_alert_fires_in_the_metrics_also_after_a_run_that_cannot_read_the_ledger(
    duty, settings, runs, take
):
    duty.found = {"census": {}, "verdicts": {"lost": 3}}
    for step in ("plan", "report"):
        runner.run_step(step, replace(REQUEST, run="r0"), settings)
    duty.found = {}

    def away(*_):
        raise StoreUnavailable("Cassandra is away")

    runs.list = away
    for _ in range(2):
        take("plan", plan=StoreUnavailable("Cassandra is away"))
        text = artifacts(settings).read("metrics/duty-queue_size-spool.prom")
        firing = {
            name: b'mailslice_alert{alert="%b",duty="queue_size",queue="spool"} 1.0' % name in text
            for name in (b"lost", b"failed", b"gate", b"bare")
        }
        assert firing == {b"lost": True, b"failed": True, b"gate": False, b"bare": False}
    del runs.list
    duty.found = {"verdicts": {"lost": 0}}
    take("plan", "report")
    text = artifacts(settings).read("metrics/duty-queue_size-spool.prom")
    assert b'mailslice_alert{alert="lost",duty="queue_size",queue="spool"} 0.0' in text


def test_audits_that_cannot_tell_repeat_the_last_one_that_could(duty, settings, runs, monkeypatch):
    now = datetime(2026, 11, 21, 12, tzinfo=UTC)

    def audited(number, verdicts, error=None, **params):
        duty.found = {"verdicts": verdicts} if error is None else {}
        duty.raises = {"check": error} if error else {}
        run = replace(REQUEST, duty="queue_audit", run=f"r{number}", params=params)
        clock = lambda: now + timedelta(hours=number)
        for step in ("plan", "check", "report"):
            with suppress(StoreUnavailable):
                runner.run_step(step, run, settings, clock=clock)
        return json.loads(runs.list()[0].report)

    assert "lossProof" not in audited(0, {"unknown": 2})
    assert "lossProof" not in audited(1, {"lost": 3})
    for number in range(2, 32):  # more than a ledger's list has
        report = audited(number, {"lost": 0, "unknown": 3})
        assert (report["lossProof"]["run"], report["lossProof"]["verdicts"]) == ("r1", {"lost": 3})
    for number, error in ((32, StoreUnavailable("S3 is away")), (33, None)):
        report = audited(number, {"lost": 0, "unknown": 3}, error)
        assert report["lossProof"]["finished"] == "2026-11-21T13:00:00Z"
    dry = audited(34, {"lost": 0, "unknown": 0}, dry_run=True)
    assert (dry["status"], "lossProof" in dry) == ("done", False)
    assert audited(35, {"unknown": 1})["lossProof"]["run"] == "r34"
