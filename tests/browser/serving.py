"""The cockpit as a browser meets it: served by uvicorn, below a path of each role."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI, HTTPException

from mailslice.cockpit.app import Schedule, cockpit
from mailslice.cockpit.facts import Facts
from mailslice.cockpit.rights import Guards, Right, Rights

ROLES = {
    "viewer": Right.LOOK,
    "user": Right.PREVIEW,
    "op": Right.ACT,
    "admin": Right.CONTENT,
}
"""The most that each role may; it may what stands before it, too."""
_ORDER = list(Right)


def guards_of(role: str) -> Guards:
    """Refuses what the role may not, with 403, as Airflow's guards do."""
    most = _ORDER.index(ROLES[role])

    def guard(right: Right) -> Callable[[], None]:
        def ask() -> None:
            if _ORDER.index(right) > most:
                raise HTTPException(403, f"the role {role} may not {right}")

        return ask

    return {right: guard(right) for right in Right}


def rights_of(role: str) -> Rights:
    """Up to the most of the role."""
    rights = frozenset(_ORDER[: _ORDER.index(ROLES[role]) + 1])
    return lambda: rights


def site(facts: Facts, schedules: Callable[[], Mapping[str, Schedule]] = dict) -> FastAPI:
    """The cockpit of each role at /far/away/ROLE/mailslice/."""
    outer = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    for role in ROLES:
        app = cockpit(facts, guards_of(role), schedules=schedules, rights=rights_of(role))
        outer.mount(f"/far/away/{role}/mailslice", app)
    return outer


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """The address of the app, on a port of its own."""
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
