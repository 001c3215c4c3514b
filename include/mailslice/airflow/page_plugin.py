"""The page "Mail queues" in Airflow: queues, measurements, cleanups, Data Docs, and a button that
starts a run.

Airflow mounts a plugin's app without any authentication, so every route here asks for an Airflow
user who may read the DAG `queue_cleanup`. The app only reads. The button posts to Airflow's own
REST API with the user's session, so that Airflow decides who may, and keeps who did.
"""

from pathlib import Path
from typing import Any, ClassVar

from airflow.api_fastapi.core_api.security import requires_access_dag
from airflow.plugins_manager import AirflowPlugin
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, Response
from starlette.middleware.base import RequestResponseEndpoint

from mailslice.airflow.dag_settings import load_dag_settings
from mailslice.airflow.deployments import deployments
from mailslice.airflow.queue_page import QueuePage
from mailslice.maintenance.registry import names
from mailslice.model.errors import MailsliceError, TryAgain

STATIC = Path(__file__).parent / "static"
KINDS = {"page.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8"}
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
# Data Docs are HTML that a gate wrote: styles and pictures of their own, but no script ever runs in
# them.
DOCS_POLICY = (
    "sandbox allow-same-origin; default-src 'none'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:; frame-ancestors 'self'"
)

DEPLOYMENT = deployments()[0]
"""The page shows one deployment, the first of MAILSLICE_CONNECTION."""
PREFIX = load_dag_settings().prefix + DEPLOYMENT.prefix
may_read = requires_access_dag("GET", param_dag_id=f"{PREFIX}queue_cleanup")
app = FastAPI(
    title="mailslice",
    docs_url=None,
    redoc_url=None,
    openapi_url=None,
    dependencies=[Depends(may_read)],
)
page = QueuePage(load=DEPLOYMENT.settings)


@app.middleware("http")
async def careful(request: Request, call_next: RequestResponseEndpoint) -> Response:
    """Headers of every answer; a request that would write is refused unless it comes from this
    site, as JSON.
    """
    if request.method not in ("GET", "HEAD") and not (
        _same_site(request)
        and request.headers.get("content-type", "").split(";")[0] == "application/json"
    ):
        return JSONResponse(
            {"detail": "writes need an Origin of this site and the content type application/json"},
            403,
        )
    answer = await call_next(request)
    answer.headers.setdefault("Content-Security-Policy", PAGE_POLICY)
    answer.headers["X-Content-Type-Options"] = "nosniff"
    answer.headers["Referrer-Policy"] = "same-origin"
    answer.headers.setdefault("Cache-Control", "no-store")
    return answer


def _same_site(request: Request) -> bool:
    origin = request.headers.get("origin", "")
    return origin.partition("://")[2] == request.headers.get("host", "")


@app.exception_handler(MailsliceError)
def explain(_request: Request, error: MailsliceError) -> JSONResponse:
    """The error as an answer; 503 when a later attempt may succeed."""
    return JSONResponse({"detail": str(error)}, 503 if isinstance(error, TryAgain) else 400)


@app.get("/")
def index() -> Response:
    """The page."""
    return Response((STATIC / "index.html").read_bytes(), media_type="text/html; charset=utf-8")


@app.get("/static/{name}")
def static(name: str) -> Response:
    """Its style and script."""
    if name not in KINDS:
        raise HTTPException(404, f"{name} is no file of this page")
    return Response((STATIC / name).read_bytes(), media_type=KINDS[name])


@app.get("/api/queues")
def queues() -> dict[str, Any]:
    """Every queue with its newest measurement and cleanups."""
    return page.queues()


@app.get("/api/dags")
def dags() -> dict[str, str]:
    """The id of the DAG of each duty. Asks no store."""
    return {duty: f"{PREFIX}{duty}" for duty in names()}


@app.get("/api/size")
def size(queue: str) -> dict[str, Any]:
    """The exact size, now."""
    return page.size(queue)


@app.get("/api/reports")
def reports(duty: str, dag_run: str) -> list[dict[str, Any]]:
    """The reports of one Airflow run."""
    return page.reports(duty, dag_run)


@app.get("/plot")
def plot(queue: str, run: str) -> Response:
    """The slices of one measurement."""
    picture = page.picture(queue, run)
    if picture is None:
        raise HTTPException(404, f"run {run} of queue_size has no picture")
    return Response(
        picture,
        media_type="image/svg+xml",
        headers={
            "Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'"
        },
    )


@app.get("/docs/{path:path}")
def docs(path: str) -> Response:
    """A file of Data Docs."""
    page_file = page.docs(path)
    if page_file is None:
        raise HTTPException(404, "no such page of Data Docs")
    return Response(
        page_file[0], media_type=page_file[1], headers={"Content-Security-Policy": DOCS_POLICY}
    )


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
