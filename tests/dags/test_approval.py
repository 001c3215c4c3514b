"""A person between check and apply: who is asked, what is shown, what a no and no answer do."""

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import AirflowFailException

from mailslice.airflow import approval
from mailslice.airflow.approval import (
    ApproveStep,
    figures,
    note_question,
    question,
    require_approval,
)
from mailslice.airflow.dag_duty import DagDuty
from mailslice.airflow.dag_settings import OneDag
from mailslice.airflow.run_request import is_dry, request_of
from mailslice.airflow.spark_operator import SparkStep
from mailslice.maintenance import runner
from mailslice.maintenance.artifacts import folder_of
from mailslice.model.errors import Refused
from mailslice.model.settings import load_settings
from tests.dags.test_steps import context

ASKED = {"dry_run": False, "approve": True}
PLAN = {"planDigest": "abc", "planned": 3, "message": "3 rows can go", "decided": {}}


@pytest.fixture
def settings(tmp_path):
    return load_settings({"MAILSLICE_ARTIFACTS": str(tmp_path)}, tmp_path / "none")


@pytest.fixture
def duty(settings):
    return DagDuty(duty="queue_cleanup", load=lambda: settings, wait=timedelta(hours=2))


@pytest.fixture
def folder(settings, monkeypatch):
    """The run's folder with a plan that has work."""
    found = folder_of(request_of(context(**ASKED), "queue_cleanup", "spool"), settings)
    found.write_json("plan.json", PLAN)
    monkeypatch.setattr(approval, "plan_with_work", lambda *_: found.read_json("plan.json"))
    return found


@pytest.mark.parametrize(
    ("run_type", "params", "always", "asks"),
    [
        ("manual", {"dry_run": False, "approve": True}, False, True),
        ("manual", {"dry_run": False, "approve": False}, False, False),
        ("manual", {"dry_run": False}, False, False),
        ("manual", {"dry_run": True, "approve": True}, True, False),
        ("manual", {"dry_run": False, "approve": False}, True, True),
        ("scheduled", {"dry_run": True, "approve": False}, True, True),
        ("scheduled", {"dry_run": True, "approve": False}, False, False),
    ],
)
def test_a_person_is_asked_by_the_param_or_the_setting_but_never_about_a_dry_run(
    run_type, params, always, asks
):
    duty = DagDuty(duty="queue_cleanup", settings=OneDag(approve=always))
    assert duty.asks(context(run_type, **params)) is asks
    reads = DagDuty(duty="queue_size", settings=OneDag(approve=always), reads_only=True)
    assert reads.asks(context(run_type, **params)) is False


@pytest.mark.parametrize(
    ("run_type", "conf", "dry"),
    [
        ("manual", {}, True),
        ("operator_triggered", {}, True),
        ("asset_materialization", {}, True),
        ("scheduled", {}, False),
        ("backfill", {}, False),
        ("asset_triggered", {}, False),
        ("backfill", {"dry_run": True}, True),
    ],
)
def test_the_dry_default_of_the_form_is_no_word_of_runs_that_airflow_starts(run_type, conf, dry):
    told = context(run_type, dry_run=True)
    told["dag_run"].conf = conf
    assert is_dry(told) is dry


def test_the_question_has_the_sentence_and_the_figures_and_no_text_of_mails():
    summary = {
        "run": "r",
        "message": "3 rows can go",
        "planned": 3,
        "planDigest": "abc",
        "before": {"live": 1, "dead": 3, "browseStart": "2026-11-01T00:00:00Z"},
        "decided": {
            "partitions": {"file": "plan/p.arrow", "rows": 2, "digest": "x"},
            "senders": ["alice@example.com"],
            "sender": "alice@example.com",
            "ranged": False,
            "grace": 900.0,
            "strays": 0,
            "rows": {"count": 3, "total": 59524, "xor": 59524},
        },
        "seconds": 1.5,
    }
    assert dict(figures(summary)) == {
        "partitions": 2,
        "senders": 1,
        "rows.count": 3,
        "planned": 3,
        "before.live": 1,
        "before.dead": 3,
    }
    text = question(summary, timedelta(hours=12))
    assert text.startswith("3 rows can go\n")
    assert "| before.dead | 3 |" in text
    assert "no answer within 12h: nothing is applied" in text
    assert "alice" not in text


def answered(step, chosen, by="alice"):
    user = {"id": "1", "name": by} if by else None
    event = {"chosen_options": [chosen], "params_input": {}, "responded_by_user": user}
    event["responded_at"] = datetime(2026, 11, 1, tzinfo=UTC)
    return step.execute_complete(context(**ASKED), event)


@pytest.fixture
def refusals(monkeypatch):
    """Step and exit code of each refusal that is recorded."""
    refusals = []
    monkeypatch.setattr(
        runner, "record_refusal", lambda name, error, *_: refusals.append((name, error.exit_code))
    )
    return refusals


@pytest.fixture
def step(duty):
    return ApproveStep(task_id="approve", dag_duty=duty, mail_queue="spool")


def test_a_yes_is_kept_with_the_plan_that_was_shown(step, folder, settings):
    request = request_of(context(**ASKED), "queue_cleanup", "spool")
    note_question(folder, PLAN)
    with pytest.raises(Refused, match="nobody approved the plan"):
        require_approval(request, settings)
    assert answered(step, "Approve") == "alice"
    assert folder.read_json("approval.json")["by"] == "alice"
    require_approval(request, settings)
    folder.write_json("plan.json", {**PLAN, "planDigest": "another"})
    with pytest.raises(Refused, match=r"nobody approved the plan of run .*: start a new run"):
        require_approval(request, settings)


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_yes_is_not_for_a_plan_that_was_made_after_the_question(
    step, folder, settings, monkeypatch, is_kept
):
    """Somebody cleared the plan's task and the check's while a person was asked."""
    monkeypatch.setattr(ApproveStep.__base__, "execute", lambda *_: None)
    step.execute(context(**ASKED))
    folder.write_json("plan.json", {**PLAN, "planDigest": "another"})
    if not is_kept:
        folder.artifacts.remove(folder.file("approval.json"))
    assert answered(step, "Approve") == "alice"
    with pytest.raises(Refused, match="nobody approved the plan"):
        require_approval(request_of(context(**ASKED), "queue_cleanup", "spool"), settings)


@pytest.fixture
def shown(monkeypatch):
    """The digests about which Airflow was asked to ask."""
    shown = []
    monkeypatch.setattr(ApproveStep.__base__, "execute", lambda step, _: shown.append(step.body))
    return shown


def test_a_plan_that_is_made_anew_in_the_same_run_is_not_asked_about(
    step, folder, settings, shown, refusals
):
    """Airflow goes on to show the question about the first: subject, figures and time."""
    step.execute(context(**ASKED))
    step.execute(context(**ASKED))
    assert len(shown) == 2, "another try, of the same plan"
    folder.write_json("plan.json", {**PLAN, "planDigest": "another", "planned": 9})
    with pytest.raises(AirflowFailException, match="an earlier plan of this run: start a new run"):
        step.execute(context(**ASKED))
    assert len(shown) == 2
    assert refusals == [("approve", 3)]
    with pytest.raises(Refused, match="nobody approved the plan"):
        require_approval(request_of(context(**ASKED), "queue_cleanup", "spool"), settings)


@pytest.mark.parametrize(("max_tries", "asks"), [(3, True), (4, False)])
def test_a_task_that_was_cleared_asks_about_no_plan_of_which_it_has_not_asked(
    duty, folder, shown, refusals, max_tries, asks
):
    """Its question may be about another queue: a new one has moved the map indexes."""
    step = ApproveStep(task_id="approve", dag_duty=duty, mail_queue="spool", retries=3)
    told = context(**ASKED) | {"ti": SimpleNamespace(max_tries=max_tries)}
    with nullcontext() if asks else pytest.raises(AirflowFailException, match="start a new run"):
        step.execute(told)
    assert (len(shown), len(refusals)) == ((1, 0) if asks else (0, 1))
    note_question(folder, PLAN)
    step.execute(told)
    assert len(shown) == (2 if asks else 1)


@pytest.mark.parametrize(
    ("chosen", "by", "why"),
    [
        ("Reject", "alice", "rejected by alice"),
        ("Reject", "", "no answer in 2h"),
        ("Approve", "", "no answer in 2h"),
    ],
)
def test_a_no_and_no_answer_end_the_run_as_refused(step, folder, refusals, chosen, by, why):
    with pytest.raises(AirflowFailException, match=f"not approved, nothing was applied: {why}"):
        answered(step, chosen, by)
    assert refusals == [("approve", 3)]
    assert folder.read_json("approval.json") is None


def test_nobody_is_asked_about_a_plan_that_changes_nothing(step, monkeypatch):
    monkeypatch.setattr(approval, "plan_with_work", lambda *_: None)
    assert step.execute(context(**ASKED)) is None
    assert step.execute(context(dry_run=True, approve=True)) is None


def test_a_small_plan_runs_as_far_as_check_where_somebody_is_asked(duty, folder, monkeypatch):
    done = []
    monkeypatch.setattr(runner, "run_small", lambda *given, **_: done.append(given[2]))
    plan = SparkStep(task_id="p", step="plan", mail_queue="spool", dag_duty=duty)
    plan.execute(context(**ASKED))
    plan.execute(context(dry_run=False))
    assert done == ["check", "report"]
    apply = SparkStep(task_id="a", step="apply", mail_queue="spool", dag_duty=duty)
    with pytest.raises(AirflowFailException, match="nobody approved the plan"):
        apply.execute(context(**ASKED))
