"""The code behind the tasks, with a context as Airflow gives it: requests, Spark steps, failures,
notifiers.
"""

import json
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from mailslice.airflow import notifier, spark_operator, task_chain
from mailslice.airflow.assets import duty_asset, queues_alias
from mailslice.airflow.dag_duty import DagDuty
from mailslice.airflow.notifier import DutyNotifier, message_of
from mailslice.airflow.run_request import duty_params, request_of, who
from mailslice.airflow.spark_operator import SparkStep
from mailslice.maintenance import runner as duty_runner
from mailslice.maintenance.artifacts import RunFolder, artifacts
from mailslice.maintenance.engine import TooLarge
from mailslice.maintenance.notify import Webhook, channels, message_of_alerts
from mailslice.model.errors import BadInput, BadSetting, GateFailed, PlanRefused, StoreUnavailable
from mailslice.model.settings import DutySettings, load_settings
from tests.webhook import webhook

CLEANUP = DagDuty(duty="queue_cleanup")


def context(run_type="manual", user="alice", **params):
    dag_run = SimpleNamespace(
        run_id="manual__1",
        run_type=SimpleNamespace(value=run_type),
        triggering_user_name=user,
        data_interval_start=datetime(2026, 11, 1, 2, 15, tzinfo=UTC),
        data_interval_end=datetime(2026, 11, 2, 2, 15, tzinfo=UTC),
    )
    return {"dag_run": dag_run, "params": params}


def test_every_task_and_every_retry_of_a_dag_run_is_the_same_run():
    one, again = (request_of(context(queues=["spool"]), "queue_cleanup", "spool") for _ in range(2))
    assert one == again
    assert one.dag_run == "manual__1"
    assert request_of(context(), "queue_cleanup", "outgoing").run != one.run
    assert request_of(context(), "queue_size", "spool").run != one.run


def test_a_step_stops_by_itself_before_airflow_would_kill_it():
    task = SimpleNamespace(execution_timeout=timedelta(hours=1))
    assert request_of(context() | {"task": task}, "queue_cleanup", "spool").params == {
        "time_limit": "2880s"
    }
    assert request_of(
        context(time_limit="9s") | {"task": task}, "queue_cleanup", "spool"
    ).params == {"time_limit": "9s"}


@pytest.mark.parametrize(
    ("began", "limit"),
    [
        (timedelta(), "8640s"),
        (timedelta(hours=2), "8640s"),
        (timedelta(hours=4), "5760s"),
        (timedelta(hours=5, minutes=20), "1920s"),
        (timedelta(hours=5, minutes=30), "0s"),
        (timedelta(hours=7), "0s"),
    ],
)
def test_a_step_of_the_last_queue_stops_before_the_whole_run_is_killed(began, limit):
    """What is too late for a report is left to the next run."""
    now = datetime(2026, 11, 27, 12, tzinfo=UTC)
    told = context() | {
        "task": SimpleNamespace(execution_timeout=timedelta(hours=3)),
        "dag": SimpleNamespace(dagrun_timeout=timedelta(hours=6)),
    }
    told["dag_run"].start_date = now - began
    asked = request_of(told, "queue_cleanup", "spool", clock=lambda: now)
    assert asked.params == {"time_limit": limit}
    told["dag_run"].start_date = None
    assert request_of(told, "queue_cleanup", "spool").params == {"time_limit": "8640s"}


def test_params_that_were_left_empty_are_left_to_the_duty_and_queues_are_not_its_business():
    assert duty_params(
        context(queues=["a"], dry_run=False, grace="", reason=None, max_share=0)
    ) == {"dry_run": False, "max_share": 0}


@pytest.mark.parametrize(
    "duty", ["queue_size", "stuck_mails", "dead_letters", "blob_gc", "counter_repair"]
)
def test_a_duty_without_a_time_of_its_own_refuses_a_backfill(duty):
    with pytest.raises(
        BadInput, match=f"{duty} works on what is there now: there is nothing to backfill"
    ):
        request_of(context("backfill"), duty, "spool")
    step = SparkStep(task_id="plan", dag_duty=DagDuty(duty=duty), step="plan", mail_queue="spool")
    with pytest.raises(AirflowFailException, match="nothing to backfill"):
        step.execute(context("backfill"))


def test_an_audit_is_held_to_the_slices_of_a_backfill_as_a_cleanup_is():
    for duty in ("queue_audit", "queue_cleanup"):
        assert "slices_before" in request_of(context("backfill"), duty, "spool").params


def test_only_a_backfill_is_held_to_the_slices_of_its_interval():
    assert duty_params(context("backfill")) == {
        "slices_from": "2026-11-01T02:15:00+00:00",
        "slices_before": "2026-11-02T02:15:00+00:00",
    }
    for run_type in ("manual", "scheduled", "asset_triggered"):
        assert duty_params(context(run_type)) == {}


def test_the_scheduled_cleanup_of_a_sunday_sweeps_too():
    for day, sweeps in (
        (1, {"sweep": True}),
        (2, {}),
        (7, {}),
        (8, {"sweep": True}),
    ):  # 1 November 2026 is a Sunday
        told = context("scheduled")
        told["dag_run"].data_interval_end = datetime(2026, 11, day, 2, 15, tzinfo=UTC)
        assert request_of(told, "queue_cleanup", "spool").params == sweeps
        assert request_of(told, "queue_size", "spool").params == {}
    for run_type in ("manual", "backfill"):
        told = context(run_type)
        told["dag_run"].data_interval_end = datetime(2026, 11, 1, 2, 15, tzinfo=UTC)
        assert "sweep" not in request_of(told, "queue_cleanup", "spool").params


@pytest.mark.parametrize(
    ("day", "succeeded", "sweeps", "run_type"),
    [
        (2, (10, 31), True, "scheduled"),
        (2, (11, 1), False, "scheduled"),
        (7, (10, 31), True, "scheduled"),
        (7, (11, 3), False, "scheduled"),
        (7, (10, 24), True, "scheduled"),
        (8, (11, 7), True, "scheduled"),
        (8, (11, 8), False, "scheduled"),
        (8, (11, 8), True, "manual"),
        (8, None, True, "scheduled"),
        (2, None, False, "scheduled"),
        (2, (11, 1), True, "backfill"),
        (3, (11, 2), True, "manual"),
    ],
)
def test_a_sunday_without_a_success_is_made_up_for_by_the_next_scheduled_run(
    day, succeeded, sweeps, run_type, caplog
):
    """1 November 2026 is a Sunday; `succeeded` is the day of the last run that did. A backfill of
    it, a dry run and one of one queue have not swept. Of several runs of a Sunday one sweeps.
    """
    told = context("scheduled")
    told["dag_run"].data_interval_end = datetime(2026, 11, day, 2, 15, tzinfo=UTC)
    last = context(run_type)["dag_run"] if succeeded else None
    if last:
        last.data_interval_end = datetime(2026, *succeeded, 2, 15, tzinfo=UTC)
    told["ti"] = SimpleNamespace(get_previous_dagrun=lambda state: last, max_tries=0)
    assert ("sweep" in request_of(told, "queue_cleanup", "spool").params) is sweeps
    assert ("no scheduled run of queue_cleanup has succeeded" in caplog.text) is (
        sweeps and day != 8
    )
    assert request_of(told, "queue_size", "spool").params == {}


def test_who_asked_is_the_user_or_the_kind_of_run():
    assert who(context(user="alice")) == "alice"
    assert who(context("scheduled", user=None)) == "scheduled"


@pytest.fixture
def step(monkeypatch):
    """The step; Spark's connection names a local master."""
    monkeypatch.setenv("MAILSLICE_DUTY_SMALL_ROWS", "0")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[2]"}')
    return SparkStep(task_id="apply_cleanup", dag_duty=CLEANUP, step="apply", mail_queue="spool")


@pytest.fixture
def small_step(monkeypatch, step):
    """The step where small work may be done here; gives what was done, in its order."""
    monkeypatch.setenv("MAILSLICE_DUTY_SMALL_ROWS", "50")
    told = []
    monkeypatch.setattr(
        spark_operator.SparkSubmitOperator,
        "execute",
        lambda _self, _context: told.append("submitted"),
    )
    for name in ("run_small", "run_step"):
        monkeypatch.setattr(
            duty_runner, name, lambda *_, name=name, **_more: told.append(name) or {"run": "r"}
        )
    monkeypatch.setattr(duty_runner, "small_run_summary", lambda *_: None)
    monkeypatch.setattr(duty_runner, "is_small", lambda *_: True)
    return step, told


def test_a_small_plan_is_made_here_and_a_large_one_is_submitted(monkeypatch, small_step):
    step, told = small_step
    step.step = "plan"
    step.execute(context())
    assert told == ["run_small"]

    def large(*_, **_more):
        raise TooLarge("large")

    monkeypatch.setattr(duty_runner, "run_small", large)
    step.execute(context())
    assert told == ["run_small", "submitted"]


def test_all_tries_of_a_small_plan_are_of_one_clear_until_a_person_clears_it(
    monkeypatch, small_step
):
    step, _ = small_step
    step.step = "plan"
    clears = []
    monkeypatch.setattr(duty_runner, "run_small", lambda *_, clear: clears.append(clear))
    # Tries 1 and 2, then cleared in a run that has ended, then in one that had not.
    for clear_number, max_tries, tries in ((0, 3, 1), (0, 3, 2), (1, 5, 3), (1, 6, 4)):
        told = context() | {"ti": SimpleNamespace(max_tries=max_tries, try_number=tries)}
        told["dag_run"].clear_number = clear_number
        step.execute(told)
    assert [clears[0] == other for other in clears] == [True, True, False, False]
    assert len(set(clears)) == 3


def test_an_apply_that_was_done_with_its_plan_is_not_done_again_unless_it_is_cleared(
    monkeypatch, small_step
):
    step, told = small_step
    monkeypatch.setattr(duty_runner, "small_run_summary", lambda *_: {"step": "apply"})
    step.execute(context())
    assert told == []
    monkeypatch.setattr(duty_runner, "small_run_summary", lambda *_: None)
    step.execute(context())
    assert told == ["run_step"]
    monkeypatch.setattr(duty_runner, "is_small", lambda *_: False)
    step.execute(context())
    assert told == ["run_step", "submitted"]


def test_a_small_plan_that_is_refused_is_final_and_a_store_that_is_away_is_tried_again(
    monkeypatch, small_step
):
    step, _ = small_step
    step.step = "plan"
    for error, raised in (
        (PlanRefused("no"), AirflowFailException),
        (StoreUnavailable("away"), StoreUnavailable),
    ):

        def fails(*_, error=error, **_more):
            raise error

        monkeypatch.setattr(duty_runner, "run_small", fails)
        with pytest.raises(raised, match=str(error)):
            step.execute(context())


def test_a_dry_run_skips_apply_and_nothing_else(monkeypatch, step):
    monkeypatch.setattr(spark_operator.SparkSubmitOperator, "execute", lambda _self, _context: None)
    with pytest.raises(AirflowSkipException, match="dry run"):
        step.execute(context(dry_run=True))
    SparkStep(task_id="plan_cleanup", dag_duty=CLEANUP, step="plan", mail_queue="spool").execute(
        context(dry_run=True)
    )


@pytest.mark.parametrize("given", [[""], ["", " "]])
def test_queues_that_are_all_blank_are_not_all_queues(given):
    with pytest.raises(
        AirflowFailException,
        match=(
            r"queues=\['.*\] names no queue: allowed are names, or nothing at all for every "
            r"queue"
        ),
    ):
        task_chain.queues_of(CLEANUP, {"params": {"queues": given}})


def test_the_queues_of_the_form_are_taken_once_each_and_as_they_are_called():
    given = {"params": {"queues": ["b", " a ", "b", "", "c,d"]}}
    assert task_chain.queues_of(CLEANUP, given) == ["b", " a ", "c,d"]


@pytest.mark.parametrize(
    ("raised", "seen"),
    [
        (GateFailed("not true: 'No mail...'"), AirflowFailException),
        (StoreUnavailable("Cassandra at x"), StoreUnavailable),
    ],
)
def test_a_gate_that_fails_is_final_and_a_store_that_is_away_is_not(monkeypatch, raised, seen):
    def run_step(*_):
        raise raised

    monkeypatch.setattr("mailslice.maintenance.runner.run_step", run_step)
    monkeypatch.setattr(task_chain, "get_current_context", context)
    with pytest.raises(seen, match=str(raised)[:12]):
        task_chain.run_in_process(CLEANUP, "check", "spool")


class States:
    """A task instance whose run has these states."""

    dag_id, run_id, map_index = "queue_cleanup", "r", 1

    def __init__(self, states):
        self.states = states

    def get_task_states(self, **_):
        return {"r": self.states}


def test_failed_steps_are_those_of_this_queue_by_name():
    before = ["plan_cleanup", "check_plan", "apply_cleanup", "verify"]
    states = {
        "plan_cleanup_1": "success",
        "check_plan_1": "failed",
        "apply_cleanup_1": "upstream_failed",
        "verify_1": "upstream_failed",
    }
    assert task_chain.failed_steps({"ti": States(states)}, before) == ["check_plan"]
    assert task_chain.failed_steps({"ti": States(dict.fromkeys(states, "skipped"))}, before) == []


@pytest.mark.parametrize(("raised", "wanted"), [(True, "apply: no such table"), (False, None)])
def test_the_row_of_a_try_before_the_tasks_were_cleared_is_not_why_a_step_was_killed(
    monkeypatch, tmp_path, raised, wanted
):
    """Only a step that raised has left its word; of a killed one the row is of the try before."""
    settings = load_settings({"MAILSLICE_ARTIFACTS": str(tmp_path)}, tmp_path / "none")
    run = request_of(context(), "queue_cleanup", "spool").run
    if raised:
        RunFolder(artifacts(settings), "queue_cleanup", "spool", run).write_json(
            "failure.json", {"step": "apply"}
        )
    row = SimpleNamespace(
        report=json.dumps({"run": run, "status": "failed", "message": "apply: no such table"})
    )

    def newest(duty, queue, _limit):
        assert (duty, queue) == ("queue_cleanup", "spool"), "one partition is read, not the table"
        return [SimpleNamespace(report='{"run": "another", "status": "failed"}'), row]

    stores = SimpleNamespace(existing_runs=lambda: SimpleNamespace(list=newest))
    monkeypatch.setattr("mailslice.airflow.task_chain.open_stores", lambda _: nullcontext(stores))
    duty = DagDuty(duty="queue_cleanup", load=lambda: settings)
    found = task_chain._recorded(context(), duty, "spool")
    assert (found["message"] if found else None) == wanted


def test_what_a_task_keeps_is_small():
    assert task_chain._xcom_of(
        {"run": "r", "slices": [1] * 1000, "seconds": 1.5, "oldest": None, "shape": {}}
    ) == {"run": "r", "seconds": 1.5, "oldest": None}


def failure():
    run = SimpleNamespace(dag_id="queue_cleanup", run_id="scheduled__1")
    return {
        "dag_run": run,
        "ti": SimpleNamespace(task_id="check_plan"),
        "exception": ValueError("<b>no</b>"),
    }


def test_a_message_names_dag_run_task_and_reason():
    assert message_of(failure()) == {
        "dag": "queue_cleanup",
        "run": "scheduled__1",
        "task": "check_plan",
        "reason": "<b>no</b>",
        "text": "queue_cleanup run scheduled__1, task check_plan: <b>no</b>",
    }


def test_the_little_that_a_missed_deadline_tells_is_enough():
    told = message_of(
        {"dag_run": {"dag_id": "queue_cleanup", "dag_run_id": "s1"}, "deadline": {"id": 1}}
    )
    assert told["text"] == "queue_cleanup run s1: deadline missed"


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        (
            {"MAILSLICE_DUTY_NOTIFY": "log,pager"},
            "'pager' is no notifier; allowed: log, email, webhook",
        ),
        ({"MAILSLICE_DUTY_NOTIFY": "email"}, "MAILSLICE_DUTY_NOTIFY_EMAIL is empty"),
        ({"MAILSLICE_DUTY_NOTIFY": "webhook"}, "MAILSLICE_DUTY_NOTIFY_WEBHOOK is empty"),
        (
            {"MAILSLICE_DUTY_NOTIFY_WEBHOOK": "file:///etc/passwd"},
            "allowed: a URL of http or https",
        ),
    ],
)
def test_a_channel_that_cannot_work_is_named(environment, says, tmp_path):
    with pytest.raises(BadSetting, match=says):
        channels(load_settings(environment, tmp_path / "none").duty)


def test_the_webhook_url_is_a_secret():
    settings = load_settings({"MAILSLICE_DUTY_NOTIFY_WEBHOOK": "https://hooks.example/T0KEN"})
    assert "T0KEN" not in repr(settings)


def test_settings_that_cannot_be_read_silence_no_connection(monkeypatch, caplog):
    """The failure that they cause is told, too."""
    monkeypatch.setenv("MAILSLICE_TYPO", "1")
    with webhook() as (posted, url):
        hook = Connection(conn_id="mailslice_webhook", conn_type="http", host=url)
        monkeypatch.setattr(notifier, "connection_of", {"mailslice_webhook": hook}.get)
        DutyNotifier().notify(failure())
        DutyNotifier("nowhere").notify(failure())
    assert [message["task"] for message in posted] == ["check_plan"] * 2
    assert "MAILSLICE_TYPO (in the environment) is not a setting of mailslice" in caplog.text
    assert "task check_plan: <b>no</b>" in caplog.text


@pytest.mark.usefixtures("no_connection")
def test_the_webhook_gets_one_json_object_and_a_broken_channel_stops_no_other(monkeypatch, caplog):
    monkeypatch.setitem(notifier._CHANNELS, "email", lambda *_: 1 / 0)
    with webhook() as (posted, url):
        settings = DutySettings(
            notify="email,webhook,log", notify_email="ops@example.org", notify_webhook=url
        )
        monkeypatch.setattr(
            "mailslice.airflow.notifier.load_settings", lambda: SimpleNamespace(duty=settings)
        )
        DutyNotifier().notify(failure())
    assert [message["task"] for message in posted] == ["check_plan"]
    assert [record.message for record in caplog.records if record.name == notifier.__name__] == [
        "notifier email could not send: ZeroDivisionError",
        "queue_cleanup run scheduled__1, task check_plan: <b>no</b>",
    ]


@pytest.mark.usefixtures("no_connection")
def test_the_log_shows_no_password_of_a_webhook(monkeypatch, caplog):
    monkeypatch.setenv("MAILSLICE_DUTY_NOTIFY", "webhook")
    url = "https://user:pa55w0rd@hooks.example/x"
    monkeypatch.setenv("MAILSLICE_DUTY_NOTIFY_WEBHOOK", url)
    DutyNotifier().notify(failure())
    assert caplog.messages == ["notifier webhook could not send: InvalidURL"]
    assert "pa55w0rd" not in caplog.text


@pytest.fixture
def no_connection(monkeypatch):
    monkeypatch.setattr(notifier, "connection_of", lambda _: None)


@pytest.mark.parametrize(
    ("given", "url", "headers"),
    [
        (
            {"host": "hooks.example", "extra": '{"path": "/services/T"}'},
            "https://hooks.example/services/T",
            {},
        ),
        (
            {"host": "hooks.example", "schema": "http", "port": 8080, "password": "TOKEN"},
            "http://hooks.example:8080",
            {"Authorization": "Bearer TOKEN"},
        ),
        (
            {"host": "https://hooks.example/x", "extra": '{"headers": {"X-Room": "7"}}'},
            "https://hooks.example/x",
            {"X-Room": "7"},
        ),
    ],
)
def test_a_connection_is_spoken_to_whatever_the_settings_name(
    given, url, headers, monkeypatch, caplog
):
    """Nobody names a channel: the connections that exist are channels."""
    connection = Connection(conn_id="mailslice_webhook", conn_type="http", **given)
    posted, mailed = [], []
    email = Connection(
        conn_id="mailslice_email", conn_type="smtp", extra='{"to": "a@b.example, c@d.example"}'
    )
    monkeypatch.setattr(
        notifier, "connection_of", {"mailslice_webhook": connection, "mailslice_email": email}.get
    )
    monkeypatch.setattr(
        notifier, "post", lambda message, hook: posted.append((message["dag"], hook))
    )
    monkeypatch.setattr(notifier, "send_email", lambda _, to, **more: mailed.append((to, more)))
    monkeypatch.setattr(
        "mailslice.airflow.notifier.load_settings",
        lambda: SimpleNamespace(duty=DutySettings(notify="")),
    )
    DutyNotifier().notify(failure())
    assert posted == [("queue_cleanup", Webhook(url, headers))]
    assert mailed == [(["a@b.example", "c@d.example"], {"smtp_conn_id": "mailslice_email"})]
    assert "TOKEN" not in repr(posted) + caplog.text
    assert [record for record in caplog.records if record.name == notifier.__name__] == []


@pytest.mark.parametrize(
    ("connections", "says"),
    [
        ({"mailslice_webhook": {"conn_type": "http"}}, "mailslice_webhook has no host"),
        (
            {"mailslice_webhook": {"conn_type": "http", "host": "ftp://x"}},
            "mailslice_webhook is not of http or https",
        ),
        ({"mailslice_email": {"conn_type": "smtp"}}, "mailslice_email has no recipients"),
    ],
)
def test_a_connection_that_cannot_work_is_named_and_stops_no_other_channel(
    connections, says, monkeypatch, caplog
):
    monkeypatch.setattr(
        notifier,
        "connection_of",
        {name: Connection(conn_id=name, **given) for name, given in connections.items()}.get,
    )
    monkeypatch.setattr(
        "mailslice.airflow.notifier.load_settings",
        lambda: SimpleNamespace(duty=DutySettings()),
    )
    DutyNotifier().notify(failure())
    assert says in caplog.text
    assert "task check_plan: <b>no</b>" in caplog.text


def report_with_alerts(**more):
    alert = {
        "name": "dead_letters",
        "value": 50,
        "limit": 10,
        "text": "50 messages are in the dead letter queue, more than 10",
    }
    new = {**alert, "since": "2026-11-21T12:00:00Z", "told": "2026-11-21T12:00:00Z"}
    old = {
        **alert,
        "name": "consumers",
        "since": "2026-11-20T12:00:00Z",
        "told": "2026-11-21T02:00:00Z",
    }
    report = {
        "run": "r1",
        "dagRun": "scheduled__1",
        "duty": "queue_size",
        "queue": "spool",
        "finished": "2026-11-21T12:00:00Z",
    }
    return {**report, "status": "done", "alerts": [new, old], **more}


@pytest.mark.usefixtures("no_connection")
def test_new_alerts_of_a_report_are_told_and_those_that_go_on_are_not(monkeypatch, caplog):
    monkeypatch.setattr(
        "mailslice.airflow.notifier.load_settings",
        lambda: SimpleNamespace(duty=DutySettings()),
    )
    notifier.notify_alerts(report_with_alerts())
    notifier.notify_alerts(report_with_alerts(finished="2026-11-21T12:15:00Z"))
    notifier.notify_alerts({"run": "r", "duty": "queue_size", "status": "done"})
    said = [record.message for record in caplog.records if record.name == notifier.__name__]
    assert said == [
        "queue_size, queue spool: 50 messages are in the dead letter queue, more than 10 (run r1)"
    ]


def test_the_message_of_alerts_has_them_as_data_and_a_subject_of_their_names(monkeypatch):
    report = report_with_alerts(queue=None)
    message = message_of_alerts(report, report["alerts"])
    assert (message["dag"], message["run"], message["queue"]) == (
        "queue_size",
        "scheduled__1",
        None,
    )
    assert [each["name"] for each in message["alerts"]] == ["dead_letters", "consumers"]
    assert message["text"].startswith("queue_size: 50 messages")
    sent = []

    class Hook:
        def __enter__(self):
            return SimpleNamespace(send_email_smtp=lambda **mail: sent.append(mail))

        def __exit__(self, *_):
            return None

    monkeypatch.setattr("airflow.providers.smtp.hooks.smtp.SmtpHook", Hook)
    settings = DutySettings(notify="email", notify_email="ops@example.org")
    late = message_of({"dag_run": {"dag_id": "queue_cleanup"}, "deadline": {"id": 1}})
    for told in (message, message_of(failure()), late):
        notifier.send_email(told, settings.notify_email)
    assert [mail["subject"] for mail in sent] == [
        "mailslice: queue_size: dead_letters, consumers",
        "mailslice: queue_cleanup failed",
        "mailslice: queue_cleanup: deadline missed",
    ]


def test_the_report_task_tells_the_alerts(monkeypatch):
    told, events = [], QueueEvents()
    asset, alias = duty_asset("queue_size"), queues_alias("queue_size")
    monkeypatch.setattr(task_chain, "notify_alerts", lambda report, _: not told.append(report))
    monkeypatch.setattr(
        task_chain,
        "get_current_context",
        lambda: {"outlet_events": {asset: SimpleNamespace(extra=None), alias: events}},
    )
    monkeypatch.setattr(task_chain, "failed_steps", lambda *_: [])
    monkeypatch.setattr(task_chain, "run_in_process", lambda *_: report_with_alerts())
    task = task_chain._report(DagDuty(duty="queue_size"), before=[])
    task.function("a/b")
    assert told == [report_with_alerts()]
    (told_of,) = events.added
    assert told_of.uri == "mailslice://queue/size/queue/a%2Fb"
    monkeypatch.setattr(
        task_chain, "run_in_process", lambda *_: report_with_alerts(status="dry run")
    )
    task.function("spool")
    assert events.added == [told_of], "a dry run is no news for other DAGs"


def test_an_alert_names_the_dag_of_its_deployment(monkeypatch, caplog):
    duty = DagDuty(duty="queue_size", prefix="eu_")
    asset, alias = duty_asset("queue_size", "eu_"), queues_alias("queue_size", "eu_")
    events = {asset: SimpleNamespace(extra=None), alias: QueueEvents()}
    monkeypatch.setattr(task_chain, "get_current_context", lambda: {"outlet_events": events})
    monkeypatch.setattr(task_chain, "failed_steps", lambda *_: [])
    monkeypatch.setattr(task_chain, "run_in_process", lambda *_: report_with_alerts())
    monkeypatch.setenv("MAILSLICE_DUTY_NOTIFY", "log,webhook")
    with webhook() as (posted, url):
        monkeypatch.setenv("MAILSLICE_DUTY_NOTIFY_WEBHOOK", url)
        monkeypatch.setattr(notifier, "connection_of", lambda _: None)
        task_chain._report(duty, before=[]).function("spool")
    assert [(one["dag"], one["queue"]) for one in posted] == [("eu_queue_size", "spool")]
    (said,) = [record.message for record in caplog.records if record.name == notifier.__name__]
    assert said.startswith("eu_queue_size, queue spool: 50 messages")


@pytest.mark.parametrize(("path", "told"), [("/refused", None), ("", "2026-11-21T12:00:00Z")])
def test_an_alert_that_no_channel_took_is_not_told(monkeypatch, tmp_path, path, told):
    rows = []
    records = SimpleNamespace(
        runs=SimpleNamespace(list=lambda *_: [], save=lambda row, _: rows.append(row))
    )
    monkeypatch.setattr(
        duty_runner, "open_stores", lambda _: nullcontext(SimpleNamespace(records=records))
    )
    monkeypatch.setattr(notifier, "connection_of", lambda _: None)
    monkeypatch.setattr(task_chain, "failed_steps", lambda *_: [])
    finished = {"finished": "2026-11-21T12:00:00Z", "started": "2026-11-21T12:00:00Z"}
    about = dict.fromkeys(("dagRun", "who", "reason", "planDigest"), None)
    whole = report_with_alerts(**about, **finished)
    monkeypatch.setattr(task_chain, "run_in_process", lambda *_: whole)
    asset, alias = duty_asset("queue_size"), queues_alias("queue_size")
    events = {asset: SimpleNamespace(extra=None), alias: QueueEvents()}
    monkeypatch.setattr(task_chain, "get_current_context", lambda: {"outlet_events": events})
    monkeypatch.setenv("MAILSLICE_DUTY_NOTIFY", "log,webhook")
    with webhook() as (_, url):
        monkeypatch.setenv("MAILSLICE_DUTY_NOTIFY_WEBHOOK", url + path)
        task_chain._report(DagDuty(duty="queue_size"), before=[]).function("spool")
    stored = json.loads(rows[-1].report)["alerts"] if rows else whole["alerts"]
    assert [one["told"] for one in stored] == [told, "2026-11-21T02:00:00Z"]


@pytest.mark.parametrize(("run_type", "tells"), [("manual", False), ("scheduled", True)])
def test_a_dry_run_starts_no_dag_that_follows(monkeypatch, run_type, tells):
    """A run that an asset starts is not dry: it would act."""
    told = context(run_type, dry_run=True)
    monkeypatch.setattr(task_chain, "get_current_context", lambda: told)
    with nullcontext() if tells else pytest.raises(AirflowSkipException, match="dry run"):
        task_chain._all_queues(CLEANUP).function()


class QueueEvents:
    """The outlet events of the alias that stands for queues."""

    def __init__(self):
        self.added = []

    def add(self, asset, extra):
        assert extra["duty"] == "queue_size"
        self.added.append(asset)
