"""Runs of mail_actions in Airflow's own database: started for a user, found, ended."""

from uuid import uuid4

import pytest

from mailslice.model.errors import BadInput, Refused
from tests.dags.conftest import ROOT

pytestmark = pytest.mark.soak  # parsing and writing the DAG takes longer than all that is tested
CONF = {"queue": "spool", "action": "delete", "name": "x", "digest": "any", "reason": None}
DAGS = ["mail_actions"]
LIKE = "________-____-____-____-____________"


@pytest.fixture
def dag(plugin, simple_auth_manager):
    """The DAG as Airflow's processor writes it."""
    del plugin, simple_auth_manager
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.models.dag import DagModel
    from airflow.utils.db import synchronize_log_template
    from airflow.utils.session import create_session

    synchronize_log_template()
    DagBundlesManager().sync_bundles_to_db()
    bag = DagBag(ROOT / "dags" / "mail_actions.py")
    assert bag.import_errors == {}
    sync_bag_to_db(bag, "dags-folder", None)

    def pause(paused):
        with create_session() as session:
            session.get(DagModel, "mail_actions").is_paused = paused

    return pause


def begin(run, task):
    """As Airflow does when a worker takes the task."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    asked = select(TaskInstance).where(TaskInstance.run_id == run, TaskInstance.task_id == task)
    with create_session() as session:
        found = session.scalar(asked)
        found.try_number = 1
        found.set_state("running", session=session)


def test_a_run_is_started_as_the_user_found_and_ended_before_it_begins(dag):
    from mailslice.airflow import runs

    task = str(uuid4())
    assert runs.start("mail_actions", CONF, "ada", task) == task
    by_hand = runs.start("mail_actions", CONF, "bob")
    found = runs.find(DAGS, task)
    assert (found.state, found.conf, found.note, found.began) == ("queued", CONF, None, frozenset())
    assert [one.run for one in runs.newest(DAGS, LIKE, 10)] == [task]
    begin(task, "select")
    assert not runs.fail(found, "too late")
    found = runs.find(DAGS, task)
    assert found.began == {runs.TaskState("select", running=True)}
    assert runs.fail(found, "canceled")
    assert not runs.fail(found, "again")
    ended = runs.find(DAGS, task)
    assert (ended.state, ended.note) == ("failed", "canceled")
    assert ended.ended is not None
    assert runs.find(DAGS, by_hand).state == "queued"
    assert runs.find(["queue_size"], task) is None
    for changes in ({"action": "drop"}, {"digest": "zz"}, {"queue": None}):
        with pytest.raises(BadInput, match=f"param {next(iter(changes))}"):
            runs.start("mail_actions", {**CONF, **changes}, "ada")
    with pytest.raises(Refused, match="Airflow has no DAG nothing"):
        runs.start("nothing", CONF, "ada")
    dag(True)
    with pytest.raises(Refused, match=r"unpause it first\. .* last interval at once, not dry"):
        runs.start("mail_actions", CONF, "ada")
    dag(False)
