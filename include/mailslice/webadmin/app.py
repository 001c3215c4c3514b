"""The routes: paths, parameters, statuses and JSON as James' webadmin has them."""

import logging
import time
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any
from uuid import uuid4

import anyio
from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from mailslice.cockpit.rights import Guards, Right
from mailslice.model.clock import system_clock
from mailslice.model.errors import BadInput, MailsliceError, Refused, TryAgain, UnknownQueue
from mailslice.webadmin import query_params
from mailslice.webadmin.answers import (
    ARGUMENTS,
    INVALID,
    NOT_FOUND,
    SERVER_ERROR,
    UNEXPECTED,
    ErrorJson,
    Halt,
    MailJson,
    QueueJson,
    TaskIdJson,
    TaskJson,
    instant,
    invalid,
)
from mailslice.webadmin.queues import Queues
from mailslice.webadmin.tasks import Status, Task, TaskRequest, Tasks, TaskType, dag_name

log = logging.getLogger(__name__)
REPUBLISH, BROWSE_START = "RepublishNotProcessedMails", "updateBrowseStart"
COUNTERS = "RecomputeMailboxCounters"
_MAX_BODY = 64 * 1024
_BLOOM = (1_000_000, 0.01, 1000)
"""James' defaults for its Bloom filter. mailslice needs no filter: it compares exactly."""
Text = Annotated[str | None, Query(max_length=2000)]
_ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"model": ErrorJson} for code in (400, 401, 403, 404, 503)
}


def webadmin(
    queues: Queues,
    tasks: Tasks,
    guards: Guards,
    *,
    reason_required: Callable[[], bool] = bool,
    startable: Callable[..., frozenset[TaskType]] = lambda: frozenset(TaskType),
) -> FastAPI:
    """The app. The guards set `request.state.who`, the name of who acts; by default `webadmin`.

    `reason_required`: whether a change needs the parameter `reason`, which James does not have.
    `startable`: a dependency that gives the types of the tasks that a request with the right to act
    may start, or cancel; by default all.
    """
    act, types = Depends(guards[Right.ACT]), Depends(startable)

    # `Annotated` cannot name a local variable of this function.
    def may_act(request: Request, _: Any = act, startable: Any = types) -> None:
        request.state.startable = startable

    guards = {**guards, Right.ACT: may_act}
    app = FastAPI(title="mailslice webadmin", docs_url=None, redoc_url=None, openapi_url=None)
    routes = Routes(queues, tasks, reason_required)
    for method, path, right, name, status in ROUTES:
        app.add_api_route(
            path,
            getattr(routes, name),
            methods=[method],
            status_code=status,
            dependencies=[Depends(guards[right])],
            response_model=None if status == 204 else _MODELS[name],
            response_model_exclude_unset=True,
            responses=_ERRORS | ({408: {"model": ErrorJson}} if name == "await_task" else {}),
        )
    app.add_api_route(
        "/openapi.json",
        lambda: get_openapi(title=app.title, version="1", routes=app.routes),
        dependencies=[Depends(guards[Right.LOOK])],
        include_in_schema=False,
    )
    for kind in (Halt, HTTPException, RequestValidationError, MailsliceError, Exception):
        app.add_exception_handler(kind, _answer)
    return app


ROUTES: tuple[tuple[str, str, Right, str, int], ...] = (
    ("GET", "/mailQueues", Right.LOOK, "names", 200),
    ("GET", "/mailQueues/{queue}", Right.LOOK, "size", 200),
    ("GET", "/mailQueues/{queue}/mails", Right.LOOK, "mails", 200),
    ("DELETE", "/mailQueues/{queue}/mails", Right.ACT, "delete", 201),
    ("PATCH", "/mailQueues/{queue}", Right.ACT, "flush", 204),
    ("PATCH", "/mailQueues/{queue}/mails", Right.ACT, "flush", 204),
    ("POST", "/mailQueues/{queue}", Right.ACT, "act", 201),
    ("DELETE", "/blobs", Right.ACT, "collect_blobs", 201),
    ("POST", "/mailboxes", Right.ACT, "recompute_counters", 201),
    ("GET", "/tasks", Right.LOOK, "list_tasks", 200),
    ("GET", "/tasks/{task}", Right.LOOK, "task", 200),
    ("GET", "/tasks/{task}/await", Right.LOOK, "await_task", 200),
    ("DELETE", "/tasks/{task}", Right.ACT, "cancel", 204),
)
"""Method, path, right, the method of Routes that answers, and its status. James' documents say to
flush by PATCH /mailQueues/{queue}, its code by .../mails: both are routes.
"""
_MODELS: dict[str, Any] = {
    "names": list[str],
    "size": QueueJson,
    "mails": list[MailJson],
    "list_tasks": list[TaskJson],
    **dict.fromkeys(("task", "await_task"), TaskJson),
    **dict.fromkeys(("delete", "act", "collect_blobs", "recompute_counters"), TaskIdJson),
}


class Routes:
    """The handlers of the routes."""

    def __init__(self, queues: Queues, tasks: Tasks, reason_required: Callable[[], bool]) -> None:
        self._queues, self._tasks, self._reason_required = queues, tasks, reason_required

    def names(self) -> JSONResponse:
        """The names of all queues."""
        return JSONResponse(self._queues.names())

    def size(self, queue: str) -> JSONResponse:
        """One queue. A large one is not counted now: `Mailslice-Measured-At` says when it was."""
        size = self._queues.size(queue)
        headers = {"Mailslice-Measured-At": instant(size.at)} if size.measured else {}
        return JSONResponse({"name": queue, "size": size.mails}, headers=headers)

    def mails(self, queue: str, limit: Text = None, delayed: Text = None) -> JSONResponse:
        """The oldest 10,000, or as many as 10 s find. `Mailslice-Truncated`: there may be more."""
        max_mails = query_params.limit(limit)
        listing = self._queues.mails(queue, max_mails, query_params.is_true(delayed))
        headers = {"Mailslice-Truncated": str(max_mails)} if listing.truncated else {}
        return JSONResponse(listing.mails, headers=headers)

    async def delete(
        self,
        *,
        request: Request,
        queue: str,
        sender: Text = None,
        name: Text = None,
        recipient: Text = None,
        reason: Text = None,
    ) -> JSONResponse:
        """Delete by one of sender, name and recipient; all mails without one.

        Anything else that looks like a filter is refused: James would ignore it and clear.
        """
        _allow_only(request, "sender", "name", "recipient", "reason")
        if await _body(request):
            raise invalid(ARGUMENTS, "a DELETE has no body: filters are query parameters")
        filters = {
            "sender": query_params.address(sender, "sender"),
            "name": name,
            "recipient": query_params.address(recipient, "recipient"),
        }
        if sum(value is not None for value in filters.values()) > 1:
            raise invalid(
                "You should provide only one of the query parameters 'sender', 'name', "
                "'recipient' for deleting mails by condition or no parameter for deleting all "
                "mails in the mail queue."
            )
        if all(value is None for value in filters.values()):
            return await self._start(request, TaskType.CLEAR, queue, {}, reason)
        return await self._start(request, TaskType.DELETE, queue, filters, reason)

    async def flush(
        self, request: Request, queue: str, delayed: Text = None, reason: Text = None
    ) -> Response:
        """Deliver delayed mails now."""
        query_params.require_flush(delayed, await _body(request))
        await run_in_threadpool(self._check_reason, reason)
        await run_in_threadpool(self._queues.flush, queue, _who(request), reason)
        return Response(status_code=204)

    async def act(
        self,
        *,
        request: Request,
        queue: str,
        action: Text = None,
        olderThan: Text = None,  # noqa: N803 - the name in the address
        acceptDuplicates: Text = None,  # noqa: N803
        reason: Text = None,
    ) -> JSONResponse:
        """Republish lost mails, or clean up and move browseStart."""
        if _one_of("action", action, REPUBLISH, BROWSE_START) == BROWSE_START:
            return await self._start(request, TaskType.BROWSE_START, queue, {}, reason)
        await run_in_threadpool(self._queues.require, queue)  # James checks the queue first
        age = query_params.older_than(olderThan)
        params = {
            "olderThan": f"{age.total_seconds():.0f}s",
            "before": instant(system_clock() - age),
            "acceptDuplicates": query_params.strict_boolean(acceptDuplicates, "acceptDuplicates"),
        }
        return await self._start(request, TaskType.REPUBLISH, queue, params, reason)

    async def collect_blobs(
        self,
        *,
        request: Request,
        scope: Text = None,
        expectedBlobCount: Text = None,  # noqa: N803
        associatedProbability: Text = None,  # noqa: N803
        deletionWindowSize: Text = None,  # noqa: N803
        reason: Text = None,
    ) -> JSONResponse:
        """Run blob_gc. The filter's parameters are checked and repeated, and change nothing."""
        if scope != "unreferenced":
            raise invalid(ARGUMENTS, "'scope' is missing or must be 'unreferenced'")
        count, probability, window = _BLOOM
        params = {
            "bloomFilterExpectedBlobCount": query_params.positive(
                expectedBlobCount, "expectedBlobCount", count
            ),
            "bloomFilterAssociatedProbability": query_params.probability(
                associatedProbability, "associatedProbability", probability
            ),
            "deletionWindowSize": query_params.positive(
                deletionWindowSize, "deletionWindowSize", window
            ),
        }
        return await self._start(request, TaskType.BLOB_GC, None, params, reason)

    async def recompute_counters(
        self,
        *,
        request: Request,
        task: Text = None,
        action: Text = None,
        trustMessageProjection: Text = None,  # noqa: N803
        reason: Text = None,
    ) -> JSONResponse:
        """Run counter_repair on all mailboxes."""
        _one_of("task", action if task is None else task, COUNTERS)
        trusted = query_params.strict_boolean(trustMessageProjection, "trustMessageProjection")
        params = {"trustMessageProjection": trusted}
        return await self._start(request, TaskType.COUNTERS, None, params, reason)

    def list_tasks(
        self,
        *,
        request: Request,
        status: Text = None,
        type: Text = None,  # noqa: A002 - the name in the address
        offset: Text = None,
        limit: Text = None,
        submittedBefore: Text = None,  # noqa: N803
        submittedAfter: Text = None,  # noqa: N803
        startedBefore: Text = None,  # noqa: N803
        startedAfter: Text = None,  # noqa: N803
        completedBefore: Text = None,  # noqa: N803
        completedAfter: Text = None,  # noqa: N803
        failedBefore: Text = None,  # noqa: N803
        failedAfter: Text = None,  # noqa: N803
    ) -> JSONResponse:
        """The last thousand tasks, the newest first."""
        chosen = _status(status)
        del submittedBefore, submittedAfter, startedBefore, startedAfter  # for `_time_filter`
        del completedBefore, completedAfter, failedBefore, failedAfter
        in_time = _time_filter(request)
        start = 0 if offset is None else query_params.whole_filter(offset, "offset")
        count = 1000 if limit is None else query_params.whole_filter(limit, "limit")
        matching = [
            task
            for task in self._tasks.newest()
            if chosen in {None, task.status} and type in {None, task.type.value} and in_time(task)
        ]
        return JSONResponse([task.as_json() for task in matching[start : start + count]])

    def task(self, task: str) -> JSONResponse:
        """One task."""
        task_id = query_params.task_id(task)
        known = self._tasks.get(task_id)
        if known is None:
            raise Halt(404, NOT_FOUND, f"{task_id} can not be found")
        return JSONResponse(known.as_json())

    async def await_task(
        self,
        request: Request,
        task: str,
        timeout: Text = None,  # noqa: ASYNC109 - the name in the address
    ) -> JSONResponse:
        """One task, as soon as it has ended. 408 when the timeout ends before that."""
        task_id, longest = query_params.task_id(task), query_params.await_timeout(timeout)
        until = time.monotonic() + longest.total_seconds()
        while True:
            known = await run_in_threadpool(self._tasks.get, task_id)
            if known is None:
                raise Halt(404, SERVER_ERROR, "The taskId is not found")
            if known.status.is_final:
                return JSONResponse(known.as_json())
            if (remaining := until - time.monotonic()) <= 0:
                raise Halt(408, SERVER_ERROR, "The timeout has been reached")
            # Behind Starlette's middleware `is_disconnected` never says that the client has left.
            with anyio.move_on_after(min(self._tasks.poll_seconds, remaining)):
                while (await request.receive())["type"] != "http.disconnect":
                    pass
                until = 0.0

    def cancel(self, request: Request, task: str) -> Response:
        """Cancel a task: it ends before its next change. An unknown id is no error."""
        task_id = query_params.task_id(task)
        if (known := self._tasks.get(task_id)) is not None:
            _require_startable(request, known.type)
            self._tasks.cancel(task_id)
        return Response(status_code=204)

    async def _start(
        self,
        request: Request,
        type_: TaskType,
        queue: str | None,
        params: dict[str, Any],
        reason: str | None,
    ) -> JSONResponse:
        _require_startable(request, type_)
        await run_in_threadpool(self._check_reason, reason)
        if queue is not None:
            await run_in_threadpool(self._queues.require, queue)
        task = TaskRequest(uuid4(), type_, queue, _who(request), system_clock(), params, reason)
        await run_in_threadpool(self._tasks.submit, task)
        path = f"{request.scope.get('root_path', '')}/tasks/{task.id}"
        return JSONResponse({"taskId": str(task.id)}, 201, headers={"Location": path})

    def _check_reason(self, reason: str | None) -> None:
        if self._reason_required() and not (reason or "").strip():
            raise invalid(
                ARGUMENTS, "'reason' is missing: MAILSLICE_ADMIN_REASON_REQUIRED asks for one"
            )


def _who(request: Request) -> str:
    return str(getattr(request.state, "who", "webadmin"))


def _require_startable(request: Request, type_: TaskType) -> None:
    if type_ not in request.state.startable:
        needs = f"the right to trigger the DAG {dag_name(type_)}"
        raise Halt(403, INVALID, f"a task {type_.value} needs {needs}")


async def _body(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BODY:
            raise invalid(ARGUMENTS, f"a body has at most {_MAX_BODY} bytes")
    return body


def _allow_only(request: Request, *names: str) -> None:
    parameters = [name for name, _ in request.query_params.multi_items()]
    for name in parameters:
        if name not in names:
            raise invalid(ARGUMENTS, f"unknown query parameter {name[:60]!r}: {', '.join(names)}")
        if parameters.count(name) > 1:
            raise invalid(ARGUMENTS, f"'{name}' is given more than once")


def _one_of(name: str, value: str | None, *supported: str) -> str:
    hint = f"Supported values are [{', '.join(supported)}]"
    if value is None:
        raise invalid(ARGUMENTS, f"'{name}' query parameter is compulsory. {hint}")
    if not value.strip():
        raise invalid(ARGUMENTS, f"'{name}' query parameter cannot be empty or blank. {hint}")
    if value not in supported:
        problem = f"Invalid value supplied for query parameter '{name}': {value[:60]}. {hint}"
        raise invalid(ARGUMENTS, problem)
    return value


def _status(text: str | None) -> Status | None:
    """James' documents write `cancelled`, its code `canceled`."""
    if text is None:
        return None
    spelled = {status.value.lower(): status for status in Status} | {"cancelled": Status.CANCELED}
    if text.lower() not in spelled:
        raise query_params.no_filter(f"Unknown status value '{text[:60]}'")
    return spelled[text.lower()]


_TIMES: dict[str, Callable[[Task], datetime | None]] = {
    "submitted": lambda task: task.submitted,
    "started": lambda task: task.started,
    "completed": lambda task: task.ended_as(Status.COMPLETED),
    "failed": lambda task: task.ended_as(Status.FAILED),
}


def _time_filter(request: Request) -> Callable[[Task], bool]:
    bounds = [
        (at, side, query_params.moment(text))
        for name, at in _TIMES.items()
        for side in ("Before", "After")
        if (text := request.query_params.get(name + side)) is not None
    ]
    return lambda task: all(
        (moment := at(task)) is not None
        and (moment < bound if side == "Before" else moment > bound)
        for at, side, bound in bounds
    )


def _answer(request: Request, error: Exception) -> JSONResponse:
    """The error as James has it; Starlette and the guards raise HTTPException."""
    where, headers = f"{request.method} {request.url.path}", getattr(error, "headers", None)
    match error:
        case Halt():
            halt = error
        case HTTPException(status_code=404 | 405):
            halt = Halt(404, NOT_FOUND, f"{where} can not be found")
        case HTTPException():
            halt = Halt(error.status_code, INVALID, str(error.detail))
        case RequestValidationError():
            problems = (f"{problem['loc'][-1]}: {problem['msg']}" for problem in error.errors())
            halt = invalid(ARGUMENTS, "; ".join(problems))
        case UnknownQueue():
            halt = Halt(404, NOT_FOUND, str(error))
        case BadInput() if type(error) is BadInput:  # a BadSetting is no fault of the request
            halt = invalid(ARGUMENTS, str(error))
        case TryAgain() | Refused():
            halt = Halt(503, SERVER_ERROR, str(error))
        case MailsliceError():
            halt = Halt(500, SERVER_ERROR, UNEXPECTED, str(error))
        case _:
            log.error("%s", where, exc_info=error)
            halt = Halt(500, SERVER_ERROR, UNEXPECTED)
    return JSONResponse(halt.as_json(), halt.status, headers=headers)
