"""The cockpit in Airflow: queues, mails, maintenance, and the reports of a run.

Airflow mounts a plugin's app without any authentication, so every route asks for a right. The app
only reads. Its buttons post to Airflow's own REST API with the user's session, so that Airflow
decides who may, and keeps who did.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from airflow.plugins_manager import AirflowPlugin

from mailslice.airflow.dag_settings import load_dag_settings
from mailslice.airflow.deployments import deployments
from mailslice.airflow.page_rights import guards_of
from mailslice.cockpit.app import Schedule, cockpit
from mailslice.cockpit.facts import Facts
from mailslice.maintenance.registry import names

DEPLOYMENT = deployments()[0]
"""The page shows one deployment, the first of MAILSLICE_CONNECTION."""
PREFIX = load_dag_settings().prefix + DEPLOYMENT.prefix


def dag_of(duty: str) -> str:
    """The id of the DAG of a duty."""
    return f"{PREFIX}{duty}"


def schedules() -> Mapping[str, Schedule]:
    """What Airflow knows of our DAGs, by id."""
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    ids = [dag_of(duty) for duty in names()]
    with create_session() as session:
        found = session.scalars(select(DagModel).where(DagModel.dag_id.in_(ids)))
        return {
            dag.dag_id: Schedule(
                # Airflow's word for a DAG without a schedule is the text None.
                None if dag.timetable_summary == "None" else dag.timetable_summary,
                bool(dag.is_paused),
                dag.next_dagrun_create_after,
            )
            for dag in found
        }


guards = guards_of(dag_of("queue_cleanup"))
facts = Facts(load=DEPLOYMENT.settings)
app = cockpit(facts, guards, dag_of=dag_of, schedules=schedules)


class MailslicePlugin(AirflowPlugin):
    """Puts the page into Airflow's side bar, and the reports of a run onto its page."""

    name = "mailslice"
    fastapi_apps: ClassVar = [{"app": app, "url_prefix": "/mailslice", "name": "mailslice"}]
    # Relative, with the slash at the end: Airflow may live below a path of its own.
    external_views: ClassVar = [
        {
            "name": "Mail queues",
            "href": "mailslice/",
            "destination": "nav",
            "url_route": "mail-queues",
            "nav_top_level": True,
        },
        {
            "name": "Queue report",
            "href": "mailslice/?dag={DAG_ID}&run={RUN_ID}",
            "destination": "dag_run",
            "url_route": "queue-report",
        },
    ]
