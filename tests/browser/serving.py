"""Serves the cockpit by uvicorn for a browser, with one path for each role."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request

from mailslice.actions.request import MAIL_ACTIONS, ActionRequest
from mailslice.actions.run import ActionRun
from mailslice.cockpit.app import Schedule, cockpit
from mailslice.cockpit.facts import Facts
from mailslice.cockpit.rights import Guards, Right, Rights
from mailslice.model.settings import Settings

ROLES = {
    "viewer": Right.LOOK,
    "user": Right.PREVIEW,
    "op": Right.ACT,
    "admin": Right.CONTENT,
}
"""Role -> its highest right, which includes all lower rights."""
_ORDER = list(Right)


def guards_of(role: str) -> Guards:
    """Guards that answer 403 if the role lacks the right, as Airflow's guards do."""
    most = _ORDER.index(ROLES[role])

    def guard(right: Right) -> Callable[[], None]:
        def ask(request: Request) -> None:
            request.state.who = role
            if _ORDER.index(right) > most:
                raise HTTPException(403, f"the role {role} may not {right}")

        return ask

    return {right: guard(right) for right in Right}


def rights_of(role: str) -> Rights:
    """The rights of the role."""
    rights = frozenset(_ORDER[: _ORDER.index(ROLES[role]) + 1])
    return lambda: rights


class Runs:
    """The double of Airflow: executes a run of mail_actions when it is started."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._states: dict[str, str] = {}

    def start(self, dag: str, conf: Mapping[str, Any], who: str) -> str:
        """Executes the run; returns its id."""
        assert dag == MAIL_ACTIONS
        name = f"manual__{len(self._states) + 1}"
        context = {"who": who, "reason": conf.get("reason")}
        context["accept_duplicates"] = bool(conf.get("accept_duplicates"))
        run = ActionRun.of_dag(ActionRequest.of(conf), name, conf.get("digest") or "", **context)
        run.select(self._settings)
        self._states[name] = "failed" if run.act(self._settings)["failed"] else "success"
        return name

    def state(self, dag: str, run: str) -> dict[str, str]:
        """The state of a run as Airflow's API returns it."""
        return {"dag_id": dag, "dag_run_id": run, "state": self._states[run]}


def site(
    facts: Facts,
    schedules: Callable[[], Mapping[str, Schedule]] = dict,
    runs: Runs | None = None,
) -> FastAPI:
    """The cockpit of each role at /far/away/ROLE/mailslice/. Without `runs` no button acts."""
    outer = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    for role in ROLES:
        app = cockpit(
            facts,
            guards_of(role),
            schedules=schedules,
            start=runs and runs.start,
            rights=rights_of(role),
        )
        outer.mount(f"/far/away/{role}/mailslice", app)
    if runs is not None:
        outer.add_api_route("/far/away/{role}/api/v2/dags/{dag}/dagRuns/{run}", runs.state)
    return outer


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """Serves the app on a free port; gives its address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off", ws="none"))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive(), "uvicorn did not start"
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/far/away"
        finally:
            server.should_exit = True
            server.force_exit = True
            thread.join(20)
