"""The tasks of the DAG that acts on mails, with a context as Airflow gives it."""

from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import AirflowSkipException

from mailslice.airflow import action_dag
from mailslice.airflow.dag_duty import DagDuty
from mailslice.model.errors import BadInput, Refused
from mailslice.model.settings import load_settings

CLEAR = {"queue": "spool", "action": "clear", "ids": [], "sender": None}


@pytest.fixture
def duty(tmp_path):
    settings = load_settings({"MAILSLICE_ARTIFACTS": str(tmp_path)}, tmp_path / "none")
    return DagDuty(duty="mail_actions", load=lambda: settings)


def context(**params):
    run = SimpleNamespace(run_id="manual__1", run_type="manual", triggering_user_name="ada")
    return {"dag_run": run, "params": {**CLEAR, **params}}


def test_a_run_of_a_digest_that_nobody_previewed_is_refused(duty):
    with pytest.raises(Refused, match="no preview has the digest 'ffff"):
        action_dag.select(duty, context(digest="f" * 64))


def test_a_run_without_a_digest_changes_nothing(duty):
    with pytest.raises(AirflowSkipException, match="run again with its digest"):
        action_dag.act(duty, context())


def test_a_run_without_its_selection_is_refused(duty):
    with pytest.raises(BadInput, match="begin with the task select"):
        action_dag.act(duty, context(digest="any"))


def test_every_try_of_a_run_has_one_selection(duty, tmp_path):
    asked = context(digest="any", reason="flood")
    for _ in range(2):
        assert action_dag.select(duty, asked) == {"digest": "any", "act": True}
    (file,) = tmp_path.rglob("selection.json")
    assert "runs/mail_actions/spool/mail_actions.spool.manual__1" in str(file)
