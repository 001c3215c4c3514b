"""The routes of the cockpit. Each depends on a right; ROUTES is the table of both.

Addresses are relative and one level deep, so that the pages work below any path.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import Body, Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from mailslice.actions.request import MAIL_ACTIONS
from mailslice.cockpit import views
from mailslice.cockpit.actions import Actions, Start
from mailslice.cockpit.data_docs import KINDS, data_docs
from mailslice.cockpit.facts import FRESH, Facts, Snapshot
from mailslice.cockpit.mails import MailsFilter, export, mails
from mailslice.cockpit.renderer import Renderer
from mailslice.cockpit.rights import Guards, Right, Rights, every_right, guard_writes
from mailslice.cockpit.views import TABS
from mailslice.maintenance.decision_files import save_decision
from mailslice.maintenance.overview import QueueOverview
from mailslice.maintenance.registry import load, names
from mailslice.model.errors import BadSetting, ContentMissing, MailsliceError, TryAgain
from mailslice.model.mail import parse_enqueue_id
from mailslice.model.verdicts import Verdict

STATIC = Path(__file__).parent / "static"
STATIC_KINDS = KINDS | {".js": "text/javascript; charset=utf-8"}
# Data Docs are HTML that a gate wrote: their own styles and pictures may load, a script never runs.
DOCS_POLICY = (
    "sandbox allow-same-origin; default-src 'none'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:; frame-ancestors 'self'"
)
ROUTES = {
    "/": (Right.LOOK, "index"),
    "/queue": (Right.LOOK, "queue"),
    "/mail": (Right.LOOK, "mail"),
    "/content": (Right.CONTENT, "content"),
    "/trace": (Right.LOOK, "trace"),
    "/export": (Right.PREVIEW, "export"),
    "/count": (Right.LOOK, "count"),
    "/spark": (Right.LOOK, "spark"),
    "/maintenance": (Right.LOOK, "maintenance"),
    "/form": (Right.PREVIEW, "form"),
    "/preview": (Right.PREVIEW, "preview"),
    "/act": (Right.ACT, "act"),
    "/result": (Right.LOOK, "result"),
    "/docs/{path:path}": (Right.LOOK, "docs"),
    "/static/{name}": (Right.LOOK, "static"),
    "/api/queues": (Right.LOOK, "queues"),
    "/api/dags": (Right.LOOK, "dags"),
}
"""The right that each route asks for, and the method of Pages that answers."""
POSTS = frozenset({"/preview", "/act"})
"""Routes that are asked by POST; the others by GET."""
BUTTONS = frozenset({"/", "/queue", "/mail", "/maintenance", "/preview", "/result"})
"""Routes whose pages show buttons by right: they get all rights of the user."""
MAX_ROUNDS = 30
"""Pages without a mail that a list loads by itself, one after the other: about 20 s."""
_MAX_COUNTED = 100_000
"""Rows that `count now` reads at most: a second or two."""
_STATUSES = {TryAgain: 503, BadSetting: 500, ContentMissing: 404, RequestValidationError: 422}
Text = Annotated[str, Query(max_length=320)]
RequestBody = Annotated[dict[str, Any], Body()]


def filters_of(query: Annotated[MailsFilter, Query()]) -> MailsFilter:
    """The form above the mails. FastAPI reads a model's fields only where it is the only query."""
    return query


MailsQuery = Annotated[MailsFilter, Depends(filters_of)]


@dataclass(frozen=True, slots=True)
class PlanQuestion:
    """A plan that waits for a person. `path`: of Airflow's page that takes the answer."""

    text: str
    since: datetime
    path: str


@dataclass(frozen=True, slots=True)
class Schedule:
    """Airflow's facts about a DAG."""

    summary: str | None
    paused: bool
    next: datetime | None
    questions: tuple[PlanQuestion, ...] = ()


Schedules = Callable[[], Mapping[str, Schedule]]
"""DAG id -> what Airflow says of it."""


def cockpit(
    facts: Facts,
    guards: Guards,
    *,
    dag_of: Callable[[str], str] = str,
    schedules: Schedules = dict,
    start: Start | None = None,
    rights: Rights = every_right,
    deployments: Mapping[str, str] | None = None,
    deployment: str = "",
) -> FastAPI:
    """The app. `dag_of`: duty -> id of its DAG. The guards set `request.state.who`, the user.

    `start` starts runs that act on mails; with None nobody can. `rights` decides which buttons are
    shown, the guards which requests pass. `deployments`: name -> address of its page; this page is
    that of `deployment`.
    """

    # `Annotated` cannot name a local variable of this function.
    def note_rights(request: Request, all_rights: Any = Depends(rights)) -> None:  # noqa: B008
        request.state.rights = all_rights

    app = FastAPI(title="mailslice", docs_url=None, redoc_url=None, openapi_url=None)
    pages = Pages(facts, dag_of, schedules, start)
    pages.render.use(deployments=deployments or {}, deployment=deployment)
    for path, (right, method) in ROUTES.items():
        app.add_api_route(
            path,
            getattr(pages, method),
            methods=["POST" if path in POSTS else "GET"],
            dependencies=[
                Depends(guards[right]),
                *([Depends(note_rights)] if path in BUTTONS else []),
            ],
            response_class=HTMLResponse,
        )
    for kind in (MailsliceError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, pages.explain)
    guard_writes(app, lambda _, reason: {"detail": reason})
    return app


class Pages:
    """The handlers of the routes."""

    def __init__(
        self, facts: Facts, dag_of: Callable[[str], str], schedules: Schedules, start: Start | None
    ) -> None:
        self._facts = facts
        self._expire = lru_cache(1000)(lambda *_result: facts.expire())  # once a result
        self._actions = Actions(facts, start)
        self._dag_of = dag_of
        self._schedules = schedules
        self.render = Renderer(dag_of, lambda: facts.now)

    def index(self, request: Request, dag: Text = "", run: Text = "") -> HTMLResponse:
        """Every queue; with `dag` and `run` the reports or results of one Airflow run."""
        if run:
            # Airflow 3.1 does not encode the plus of a run's id; ids have no blanks.
            return self._report(dag, run.replace(" ", "+"), request.state.rights)
        snapshot = self._facts.snapshot()
        alerts = views.alerts(snapshot.queues, self._facts.now - timedelta(days=1))
        return self.render("overview.html", view="overview", snapshot=snapshot, alerts=alerts)

    def queue(  # noqa: PLR0917 - the parameters of the address
        self,
        request: Request,
        filters: MailsQuery,
        name: Text,
        tab: Text = "mails",
        after: Text = "",
        rounds: Annotated[int, Query(ge=0)] = 0,
    ) -> HTMLResponse:
        """One queue: its figures, and one of TABS. `rounds`: pages without a mail before this."""
        one, snapshot = self._require(name)
        if tab not in TABS:
            raise HTTPException(404, f"tab {tab!r}; allowed: {', '.join(TABS)}")
        tab_values = _tab(self._facts, one, tab, filters, after)
        about, whom = filters.of_actions, "All that match" if filters.any else "All mails"
        if about is None:
            rows = tab_values["page"].rows if tab_values.get("page") else ()
            about, whom = {"ids": [str(row["id"]) for row in rows]}, "The mails of this page"
        return self.render(
            "queue.html",
            view="queue",
            may=request.state.rights,
            one=one,
            tab=tab,
            tabs=TABS,
            snapshot=snapshot,
            refresh=0 if tab in {"mails", "stuck"} else 10,
            fields=filters.model_dump(),
            verdicts=list(Verdict),
            about={"queue": one.queue, **about},
            whom=whom,
            next_round=rounds + 1 if rounds < MAX_ROUNDS else None,
            **tab_values,
        )

    def mail(self, request: Request, queue: Text, id: Text) -> HTMLResponse:  # noqa: A002
        """One mail: envelope, attributes, whether its content is there."""
        one, snapshot = self._require(queue)
        return self.render(
            "mail.html",
            view="mail",
            may=request.state.rights,
            queue=one.queue,
            id=id,
            mail=views.mail(self._facts, one, id),
            refresh=0,
            about={"queue": one.queue, "ids": [id]},
            whom="This mail",
            snapshot=snapshot,
        )

    def content(self, request: Request, queue: Text, id: Text) -> Response:  # noqa: A002
        """The bytes of one mail, as a download. Each look is recorded first."""
        one, _ = self._require(queue)
        pieces = views.content(self._facts, one.queue, id)
        if pieces is None:
            raise HTTPException(404, f"{queue} has no live mail {id}")
        who = getattr(request.state, "who", "unknown")
        access = {"who": who, "action": "mail content", "queue": one.queue, "mail": id}
        save_decision(self._facts.settings, self._facts.now, access)
        headers = {"Content-Disposition": f'attachment; filename="{parse_enqueue_id(id)}.eml"'}
        return StreamingResponse(pieces, media_type="application/octet-stream", headers=headers)

    def trace(self, queue: Text, id: Text) -> HTMLResponse:  # noqa: A002
        """The history of one mail, live or not, from every store and log that knows it."""
        one, _ = self._require(queue)
        return self.render("trace.html", entries=views.trace(self._facts, one.queue, id))

    def export(self, name: Text, filters: MailsQuery) -> Response:
        """The envelopes that match, as a file."""
        file = export(self._facts, self._require(name)[0], filters)
        headers = {"Content-Disposition": f'attachment; filename="{file.name}"'}
        return Response(file.text, media_type="text/csv; charset=utf-8", headers=headers)

    def count(self, name: Text) -> JSONResponse:
        """The exact size, now; null where more than 100,000 rows would have to be read."""
        size = views.count(self._facts, self._require(name)[0].queue, _MAX_COUNTED)
        return JSONResponse({"queue": name, "size": size})

    def spark(self, name: Text) -> HTMLResponse:
        """The line of the last day's sizes."""
        points = self._facts.trend(self._require(name)[0].queue)
        return self.render("spark.html", **views.spark(points))

    def maintenance(self, request: Request, duty: Text = "") -> HTMLResponse:
        """Every duty: schedule, last run, what it did; with `duty` its runs over time."""
        runs, schedules = self._facts.cached("runs", views.all_runs), self._schedules()
        listed = runs
        if duty:
            _require_duty(duty)
            listed = self._facts.cached(("runs", duty), lambda stores: views.runs_of(stores, duty))
        return self.render(
            "maintenance.html",
            view="maintenance",
            may=request.state.rights,
            duties=views.duties(self._dag_of, schedules, runs.value or []),
            questions=[one for schedule in schedules.values() for one in schedule.questions],
            runs=(listed.value or [])[: views.NEWEST * (10 if duty else 1)],
            last=listed,
            duty=duty,
        )

    def form(self, duty: Text) -> HTMLResponse:
        """The params of a duty as a form. Starting it is Airflow's business."""
        _require_duty(duty)
        return self.render("form.html", **views.form(load(duty)))

    def preview(self, request: Request, body: RequestBody) -> HTMLResponse:
        """The mails that an action would change, with the form that starts it."""
        may = request.state.rights
        return self.render("preview.html", may=may, **self._actions.preview(body))

    def act(self, request: Request, body: RequestBody) -> JSONResponse:
        """Start the run that does what was previewed, as the user."""
        run = self._actions.act(body, getattr(request.state, "who", "unknown"))
        return JSONResponse({"dag": self._dag_of(MAIL_ACTIONS), "run": run})

    def result(self, request: Request, queue: Text, run: Text) -> HTMLResponse:
        """The result of a run that acted on mails."""
        outcome = self._actions.result(queue, run)
        if outcome["result"]:
            self._expire(queue, run, outcome["result"]["failed"])
        return self.render("result.html", run=run, may=request.state.rights, **outcome)

    def queues(self) -> JSONResponse:
        """As `mailslice queue list --json`, with the time of the figures."""
        return JSONResponse(views.as_json(self._facts.snapshot()))

    def dags(self) -> JSONResponse:
        """The id of the DAG of each duty. Asks no store."""
        return JSONResponse({duty: self._dag_of(duty) for duty in names()})

    def static(self, name: str) -> Response:
        kind = STATIC_KINDS.get(Path(name).suffix)
        if kind is None or name not in {file.name for file in STATIC.iterdir()}:
            raise HTTPException(404, f"{name} is no file of this page")
        headers = {"Cache-Control": "no-cache"}
        return Response((STATIC / name).read_bytes(), media_type=kind, headers=headers)

    def docs(self, path: str) -> Response:
        """A file of Data Docs."""
        file = data_docs(self._facts.settings, path)
        if file is None:
            raise HTTPException(404, "no such page of Data Docs")
        headers = {"Content-Security-Policy": DOCS_POLICY}
        return Response(file[0], media_type=file[1], headers=headers)

    def _report(self, dag: str, run: str, may: frozenset[Right]) -> HTMLResponse:
        if dag == self._dag_of(MAIL_ACTIONS):
            queues = (one.queue for one in self._facts.snapshot().queues)
            with ThreadPoolExecutor(views.AT_ONCE) as pool:
                results = pool.map(lambda queue: self._actions.result(queue, run), queues)
                acted = [result for result in results if result["result"]]
            return self.render("report.html", view="report", may=may, run=run, acted=acted)
        duty = next((name for name in names() if self._dag_of(name) == dag), None)
        runs = []
        if duty is not None:
            with self._facts.stores() as stores:
                runs = views.runs_of(stores, duty, run)
        return self.render("report.html", view="report", ours=duty is not None, runs=runs)

    def explain(self, request: Request, error: Exception) -> Response:
        """The error as a page for people, JSON for scripts; 503 when a retry may succeed."""
        status = next((code for kind, code in _STATUSES.items() if isinstance(error, kind)), 400)
        detail, headers = str(error), None
        if isinstance(error, HTTPException):
            status, detail, headers = error.status_code, error.detail, error.headers
        if isinstance(error, RequestValidationError):
            detail = "; ".join(f"{one['loc'][-1]}: {one['msg']}" for one in error.errors())
        if "text/html" not in request.headers.get("accept", ""):
            return JSONResponse({"detail": detail}, status, headers)
        page = self.render("error.html", status=status, detail=detail)
        return HTMLResponse(page.body, status, headers)

    def _require(self, name: str) -> tuple[QueueOverview, Snapshot]:
        one, snapshot = self._facts.queue(name)
        if one is None:
            raise HTTPException(404, f"RabbitMQ has no mail queue {name!r}")
        return one, snapshot


def _require_duty(name: str) -> None:
    if name not in names():
        raise HTTPException(404, f"duty {name!r}; known: {', '.join(names())}")


def _tab(
    facts: Facts, one: QueueOverview, tab: str, filters: MailsFilter, after: str
) -> dict[str, Any]:
    if tab == "mails":
        page, problem = None, None
        try:
            page = mails(facts, one, filters, after or None)
        except MailsliceError as error:
            problem = str(error)
        return {"page": page, "filters": filters, "error": problem, "after": after}
    if tab == "domains":
        return views.domains(one)
    if tab == "slices":
        cleanups = facts.cached(
            ("cleanups", one.queue), lambda stores: views.cleanups(stores, one.queue), FRESH
        )
        return {**views.slices(one, cleanups.value or ()), "cleanups": cleanups}
    readers = {"workers": views.workers, "stuck": views.stuck, "history": views.history}
    last = facts.cached((tab, one.queue), lambda stores: readers[tab](stores, one.queue))
    empty: dict[str, Any] = {"runs": [], "workers": [], "stuck": [], "more": 0, "letters": None}
    return {**empty, **(last.value or {}), "last": last}
