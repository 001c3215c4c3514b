"""Artifacts on one machine are refused where tasks run on several."""

import pytest
from airflow.sdk.exceptions import AirflowFailException

from mailslice.airflow import task_chain
from mailslice.airflow.dag_duty import DagDuty, executor_of, require_common_artifacts
from mailslice.airflow.spark_operator import SparkStep
from mailslice.model.errors import BadSetting
from mailslice.model.settings import load_settings
from tests.dags.test_steps import context

S3 = {
    "MAILSLICE_ARTIFACTS": "s3a://bucket/mailslice",
    "MAILSLICE_S3_ENDPOINT": "http://127.0.0.1:1",
    "MAILSLICE_S3_ACCESS_KEY": "a",
    "MAILSLICE_S3_SECRET_KEY": "b",
}


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("LocalExecutor", "LocalExecutor"),
        ("CeleryExecutor,LocalExecutor", "CeleryExecutor"),
        ("airflow.providers.celery.executors.celery_executor.CeleryExecutor", "CeleryExecutor"),
        ("mine:my.module.KubernetesExecutor", "KubernetesExecutor"),
        (" LocalExecutor , CeleryExecutor", "LocalExecutor"),
    ],
)
def test_the_first_executor_runs_the_tasks(setting, name):
    assert executor_of(setting) == name


@pytest.mark.parametrize("executor", ["CeleryExecutor", "KubernetesExecutor", "x.y.EdgeExecutor"])
def test_a_folder_of_one_machine_is_refused_in_one_sentence_that_says_what_to_set(
    tmp_path, executor
):
    local = load_settings({"MAILSLICE_ARTIFACTS": str(tmp_path)}, tmp_path / "none")
    with pytest.raises(
        BadSetting,
        match=rf"{tmp_path} of one machine.*{executor.rpartition('.')[2]} runs tasks on several: "
        r"set MAILSLICE_ARTIFACTS=s3a://BUCKET/PREFIX .*shared_artifacts: true",
    ):
        require_common_artifacts(local, False, executor)
    require_common_artifacts(local, True, executor)
    require_common_artifacts(local, False, "LocalExecutor")
    require_common_artifacts(load_settings(S3, tmp_path / "none"), False, executor)


@pytest.fixture
def celery(monkeypatch, tmp_path):
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    local = load_settings({"MAILSLICE_ARTIFACTS": str(tmp_path)}, tmp_path / "none")
    return DagDuty(duty="queue_cleanup", load=lambda: local)


def test_each_first_task_refuses(celery, monkeypatch):
    asked = context(queues=["spool"], dry_run=False)
    with pytest.raises(AirflowFailException, match="set MAILSLICE_ARTIFACTS=s3a://"):
        task_chain.queues_of(celery, asked)
    step = SparkStep(task_id="p", step="plan", mail_queue="spool", dag_duty=celery)
    with pytest.raises(AirflowFailException, match="set MAILSLICE_ARTIFACTS=s3a://"):
        step.execute(asked)
    monkeypatch.setattr(task_chain, "get_current_context", lambda: asked)
    with pytest.raises(AirflowFailException, match="set MAILSLICE_ARTIFACTS=s3a://"):
        task_chain.run_in_process(celery, "check", "spool")
