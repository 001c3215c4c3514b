"""The tasks of the DAG that acts on mails, with a context as Airflow gives it."""

from dataclasses import fields
from datetime import UTC, datetime
from types import SimpleNamespace
from uuid import uuid4

import pytest
from airflow.sdk.exceptions import AirflowSkipException

from mailslice.actions.request import ActionRequest, MailTexts
from mailslice.airflow import action_dag
from mailslice.airflow.dag_duty import DagDuty
from mailslice.airflow.dag_tasks import conf_of
from mailslice.model.errors import BadInput, Refused
from mailslice.model.settings import load_settings
from mailslice.webadmin.tasks import TaskRequest, TaskType

CLEAR = {"queue": "spool", "action": "clear", "ids": None, "sender": None}


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


def test_a_param_that_the_dag_does_not_have_is_refused(duty, tmp_path):
    """`recipients` for `recipient` would move the whole queue."""
    asked = context(action="move", to="other", digest="any", recipients="a@b.example")
    for step in (action_dag.select, action_dag.act):
        with pytest.raises(BadInput, match="recipients is not a param; allowed: accept_") as raised:
            step(duty, asked)
        assert all(name in str(raised.value) for name in action_dag.PARAMS)
    assert not list(tmp_path.rglob("selection.json"))


@pytest.mark.parametrize("digest", ["any", None])
def test_an_empty_list_of_ids_selects_nothing_and_is_refused(duty, tmp_path, digest):
    """A script whose search has no result would move the whole queue. A form that is left empty
    sends null, the default.
    """
    assert action_dag.PARAMS["ids"][0] is None
    asked = context(action="move", to="other", digest=digest, ids=[])
    for step in (action_dag.select, action_dag.act):
        with pytest.raises(BadInput, match="ids: allowed is a list of enqueue ids, not empty"):
            step(duty, asked)
    assert not list(tmp_path.rglob("selection.json"))


@pytest.mark.parametrize(
    ("type_", "params"),
    [
        (TaskType.CLEAR, {}),
        (TaskType.DELETE, {"sender": "a@b.example"}),
        (TaskType.REPUBLISH, {"olderThan": "1d", "acceptDuplicates": True}),
    ],
)
def test_james_routes_send_params_that_the_dag_has(type_, params):
    asked = TaskRequest(uuid4(), type_, "spool", "ada", datetime.now(UTC), params)
    name, conf = conf_of(asked)
    assert name == "mail_actions"
    assert conf.keys() <= action_dag.PARAMS.keys()


def test_all_of_a_request_are_params_and_so_is_all_that_its_run_is_given():
    """The cockpit sends no other."""
    of_request = {one.name for cls in (ActionRequest, MailTexts) for one in fields(cls)} - {"texts"}
    of_run = {"digest", "reason", "accept_duplicates"}
    assert set(action_dag.PARAMS) == of_request | of_run


def test_every_try_of_a_run_has_one_selection(duty, tmp_path):
    asked = context(digest="any", reason="flood")
    for _ in range(2):
        assert action_dag.select(duty, asked) == {"digest": "any", "act": True}
    (file,) = tmp_path.rglob("selection.json")
    assert "runs/mail_actions/spool/mail_actions.spool.manual__1" in str(file)
