"""The cockpit in Airflow: queues, mails, maintenance, the reports of a run; and James' routes.

Airflow mounts a plugin's app without any authentication, so every route asks for a right. Duties
are started by Airflow's own REST API with the user's session; actions on mails, and James' tasks,
by runs that these apps start for the user. Airflow keeps who did what.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from airflow.plugins_manager import AirflowPlugin
from fastapi import Request, Response
from fastapi.responses import JSONResponse
from starlette.middleware.base import RequestResponseEndpoint

from mailslice.actions.run import MAIL_ACTIONS
from mailslice.airflow import runs
from mailslice.airflow.dag_settings import load_dag_settings
from mailslice.airflow.dag_tasks import DagQueues, DagTasks
from mailslice.airflow.deployments import deployments
from mailslice.airflow.page_rights import guards_of, rights_of
from mailslice.cockpit.app import Schedule, cockpit
from mailslice.cockpit.facts import Facts
from mailslice.cockpit.writes import refusal
from mailslice.maintenance.registry import names
from mailslice.webadmin.answers import INVALID, Halt
from mailslice.webadmin.app import webadmin

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


def start(name: str, conf: Mapping[str, Any], who: str) -> str:
    """Start a run of our DAG of that name."""
    return runs.start(dag_of(name), conf, who)


guards = guards_of(dag_of("queue_cleanup"), dag_of(MAIL_ACTIONS))
facts = Facts(load=DEPLOYMENT.settings)
app = cockpit(
    facts, guards, dag_of=dag_of, schedules=schedules, start=start, rights=rights_of(guards)
)
james = webadmin(
    DagQueues(facts, runs, dag_of),
    DagTasks(runs, facts, dag_of),
    guards,
    reason_required=lambda: facts.settings.admin.reason_required,
)


@james.middleware("http")
async def careful(request: Request, call_next: RequestResponseEndpoint) -> Response:
    """Refuses what another site has a browser send with the user's cookie."""
    if refused := refusal(request, bearer=True):
        return JSONResponse(Halt(refused[0], INVALID, refused[1]).as_json(), refused[0])
    answer = await call_next(request)
    answer.headers["X-Content-Type-Options"] = "nosniff"
    answer.headers.setdefault("Cache-Control", "no-store")
    return answer


class MailslicePlugin(AirflowPlugin):
    """Puts the page into Airflow's side bar, and the reports of a run onto its page."""

    name = "mailslice"
    # The first that a path begins with is asked.
    fastapi_apps: ClassVar = [
        {"app": james, "url_prefix": "/mailslice/webadmin", "name": "mailslice webadmin"},
        {"app": app, "url_prefix": "/mailslice", "name": "mailslice"},
    ]
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
