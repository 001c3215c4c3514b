"""The cockpit in Airflow: queues, mails, maintenance, the reports of a run; and James' routes.

Airflow mounts a plugin's app without any authentication, so every route requires a right. The page
starts duties by Airflow's own REST API with the user's session. For actions on mails, and for
James' tasks, these apps start the runs for the user. Airflow records who did what.
"""

from collections.abc import Mapping
from typing import ClassVar

from airflow.plugins_manager import AirflowPlugin
from fastapi import Request, Response
from fastapi.responses import RedirectResponse
from starlette.middleware.base import RequestResponseEndpoint

from mailslice.actions.request import MAIL_ACTIONS
from mailslice.airflow import runs
from mailslice.airflow.dag_settings import load_dag_settings
from mailslice.airflow.dag_tasks import DagQueues, DagTasks
from mailslice.airflow.deployments import Deployment, deployments
from mailslice.airflow.page_rights import guard_of_runs, guards_of, rights_of
from mailslice.cockpit.app import Schedule, cockpit
from mailslice.cockpit.facts import Facts
from mailslice.cockpit.rights import guard_writes
from mailslice.maintenance.registry import names
from mailslice.webadmin.answers import INVALID, Halt
from mailslice.webadmin.app import webadmin
from mailslice.webadmin.tasks import TaskType, dag_name


class DeploymentPage:
    """The cockpit and James' routes of one deployment.

    The first is at /mailslice, others at /mailslice-PREFIX: one level each, as all addresses of the
    page are relative.
    """

    def __init__(self, deployment: Deployment, addresses: Mapping[str, str]) -> None:
        self._prefix = load_dag_settings().prefix + deployment.prefix
        self.guards = guards_of(self.dag_of("queue_cleanup"), self.dag_of(MAIL_ACTIONS))
        facts = Facts(load=deployment.settings)
        self.app = cockpit(
            facts,
            self.guards,
            dag_of=self.dag_of,
            schedules=self.schedules,
            start=lambda name, conf, who: runs.start(self.dag_of(name), conf, who),
            deployments={name: f"../{path}/" for name, path in addresses.items()},
            deployment=deployment.prefix,
            rights=rights_of(self.guards),
        )
        self.james = webadmin(
            DagQueues(facts, runs, self.dag_of),
            DagTasks(runs, facts, self.dag_of),
            self.guards,
            reason_required=lambda: facts.settings.admin.reason_required,
            startable=rights_of(
                {one: guard_of_runs(self.dag_of(dag_name(one))) for one in TaskType}
            ),
        )
        guard_writes(self.james, lambda *why: Halt(why[0], INVALID, why[1]).as_json(), bounded=True)

    def dag_of(self, duty: str) -> str:
        """The id of the DAG of a duty."""
        return f"{self._prefix}{duty}"

    def schedules(self) -> Mapping[str, Schedule]:
        """The schedules of mailslice's DAGs in Airflow, by id."""
        from airflow.models.dag import DagModel
        from airflow.utils.session import create_session
        from sqlalchemy import select

        ids = [self.dag_of(duty) for duty in names()]
        with create_session() as session:
            dags = session.scalars(select(DagModel).where(DagModel.dag_id.in_(ids)))
            return {
                dag.dag_id: Schedule(
                    # For a DAG without a schedule Airflow has the text None.
                    None if dag.timetable_summary == "None" else dag.timetable_summary,
                    bool(dag.is_paused),
                    dag.next_dagrun_create_after,
                    tuple(runs.questions(dag.dag_id, session)),
                )
                for dag in dags
            }


ADDRESSES = {
    one.prefix: "mailslice" if at == 0 else f"mailslice-{one.prefix}"
    for at, one in enumerate(deployments())
}
"""Prefix of a deployment -> path of its page."""
PAGES = {one.prefix: DeploymentPage(one, ADDRESSES) for one in deployments()}
FIRST = next(iter(PAGES.values()))


@FIRST.app.middleware("http")
async def lead_to_report(request: Request, call_next: RequestResponseEndpoint) -> Response:
    """A run's tab always opens the first page: redirect to the page of the run's deployment."""
    dag = request.query_params.get("dag", "")
    for prefix, page in PAGES.items():
        if page is not FIRST and dag in {page.dag_of(one) for one in (*names(), MAIL_ACTIONS)}:
            return RedirectResponse(f"../{ADDRESSES[prefix]}/?{request.url.query}")
    return await call_next(request)


class MailslicePlugin(AirflowPlugin):
    """Puts the page into Airflow's side bar, and the reports of a run onto its page."""

    name = "mailslice"
    # Airflow takes the first app whose prefix fits: the longer prefix comes first.
    fastapi_apps: ClassVar = [
        {"app": app, "url_prefix": f"/{path}", "name": path}
        for address, page in zip(ADDRESSES.values(), PAGES.values(), strict=True)
        for path, app in ((f"{address}/webadmin", page.james), (address, page.app))
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
