"""Runs the steps of every duty: plan -> check -> apply -> verify -> report.

Command line, jobs and DAG tasks all call this module. What is the same in every duty is done here:
files, digest, gate, lock, progress and status of its steps; failures, ledger, alerts and metrics of
its runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from mailslice.checks.expectations import Expectation, Frame
from mailslice.checks.gate import Evaluator
from mailslice.engine.frames import Session
from mailslice.maintenance import alerts, metrics
from mailslice.maintenance import report as reports
from mailslice.maintenance.artifacts import RunFolder, artifacts, iso
from mailslice.maintenance.context import FILES, StepContext
from mailslice.maintenance.duty import AnyDuty, ReportDuty
from mailslice.maintenance.engine import PROCESS, Engine, TooLarge
from mailslice.maintenance.gates import judged
from mailslice.maintenance.ledger import Ledger
from mailslice.maintenance.lock import LockHeld
from mailslice.maintenance.params import DutyParams
from mailslice.maintenance.plan import PLAN_FOLDER, Plan, load_checked_plan, load_plan
from mailslice.maintenance.progress import Progress
from mailslice.maintenance.registry import DutyEntry, load
from mailslice.maintenance.result import Result, Summaries
from mailslice.maintenance.retention import prune_sometimes
from mailslice.maintenance.run import Run
from mailslice.maintenance.run_request import STEPS, RunRequest
from mailslice.model import crash
from mailslice.model.clock import Clock, system_clock
from mailslice.model.errors import BadInput, MailsliceError, Refused, TryAgain
from mailslice.model.settings import Settings
from mailslice.stores import Stores, open_stores
from mailslice.view.sharing import agree

OnStep = Callable[[str, dict[str, Any]], None]
"""Called with a step's name and summary as soon as it ended."""
CHANGING = ("apply", "verify")
"""The steps that a dry run leaves out."""
AHEAD = "ahead.json"
"""The steps that a small run has done and whose tasks have not come yet; whether it ended."""
_REQUEST = "request.json"
"""What `mailslice duty plan` was asked for: it is there before the plan."""
FAILURE = "failure.json"
"""In the run's folder while the last step that was tried, before the report, has raised."""
_HOUR = timedelta(hours=1)


def run_step(
    step: str,
    request: RunRequest,
    settings: Settings,
    *,
    clock: Clock = system_clock,
    tools: Tools | None = None,
) -> dict[str, Any]:
    """Run one step; its summary, which is in the run's folder, too, there with its long lists.

    A step that raises leaves a ledger row first (`refused` or `failed`, with the message). Raises
    what the step raises: GateFailed, PlanRefused, ClockSkew, StoreUnavailable and the other errors
    of `model.errors`.
    """
    if step not in STEPS:
        raise BadInput(f"step {step!r}: allowed are {', '.join(STEPS)}")
    duty = load(request.duty)
    params = duty.params.parse(request.params)
    with open_stores(settings) as stores:
        run = _Run(duty, request, params, settings, stores, clock, tools=tools or Tools())
        return _step(run, step)


def run_all(
    request: RunRequest,
    settings: Settings,
    on_step: OnStep | None = None,
    *,
    clock: Clock = system_clock,
    tools: Tools | None = None,
) -> dict[str, Any]:
    """Run the steps of one run in this process; the report. A dry run has no apply and no verify.

    Raises as `run_step`.
    """
    duty = load(request.duty)
    params = duty.params.parse(request.params)
    summary: dict[str, Any] = {}
    with open_stores(settings) as stores:
        run = _Run(duty, request, params, settings, stores, clock, tools=tools or Tools())
        for step in steps_of(params):
            summary = _step(run, step)
            if on_step is not None:
                on_step(step, summary)
    return summary


def run_small(
    request: RunRequest,
    settings: Settings,
    *,
    clock: Clock = system_clock,
    tools: Tools | None = None,
) -> dict[str, Any]:
    """The plan, and, where it is small, all steps after it, in this process; the plan's summary.

    A step after it that raises ends this: whoever comes for that step does it again, and says why.
    A try after one that was killed goes on with its plan: a new one would not know what that did.
    Raises TooLarge where the plan needs Spark, else what the plan raises.
    """
    duty = load(request.duty)
    params = duty.params.parse(request.params)
    with open_stores(settings) as stores:
        tools = tools or Tools()
        run = _Run(duty, request, params, settings, stores, clock, in_process=True, tools=tools)
        killed = run.folder.read_json(AHEAD) or {}
        goes_on = killed.get("ended") is False
        summary = (run.folder.read_json(FILES["plan"]) if goes_on else None) or _step(run, "plan")
        done: list[str] = killed["steps"] if goes_on else []
        with suppress(Exception):
            for step in steps_of(params)[1:]:
                if step not in done:
                    run.folder.write_json(AHEAD, {"steps": done, "ended": False})
                    _step(run, step)
                    done.append(step)
        run.folder.write_json(AHEAD, {"steps": done, "ended": True})
    return summary


def done_ahead(step: str, request: RunRequest, settings: Settings) -> dict[str, Any] | None:
    """The summary of a step that `run_small` has done; None: it is still to be done.

    It is given once: whoever clears the task has the step done anew.
    """
    folder = RunFolder(artifacts(settings), request.duty, request.queue, request.run)
    steps = (folder.read_json(AHEAD) or {"steps": []})["steps"]
    if step not in steps:
        return None
    summary = folder.read_json(FILES[step])
    remaining = [one for one in steps if one != step]
    folder.write_json(AHEAD, {"steps": remaining, "ended": True})
    return summary


def is_small(request: RunRequest, settings: Settings) -> bool:
    """Whether the plan of this run was made without Spark."""
    folder = RunFolder(artifacts(settings), request.duty, request.queue, request.run)
    return (folder.read_json(FILES["plan"]) or {}).get("engine") == PROCESS


def steps_of(params: DutyParams) -> tuple[str, ...]:
    """The steps that a run with these params takes."""
    return tuple(step for step in STEPS if not (params.dry_run and step in CHANGING))


@dataclass(frozen=True)
class Tools:
    """What a run works with besides its stores. Other tools than these are for tests."""

    evaluator: Evaluator | None = None
    """How gates are evaluated; None: by Great Expectations."""
    session: Session | None = None
    """Where frames are computed; None: where the duty's engine says."""
    logic: AnyDuty | None = None
    """In place of the duty of that name."""
    agree: Callable[[Stores], Settings] = agree


@dataclass(frozen=True)
class _Run:
    duty: DutyEntry
    request: RunRequest
    params: DutyParams
    settings: Settings
    stores: Stores
    clock: Clock
    in_process: bool = False
    tools: Tools = field(default_factory=Tools)

    @property
    def logic(self) -> AnyDuty:
        return self.tools.logic or self.duty.logic

    @property
    def folder(self) -> RunFolder:
        return RunFolder(
            artifacts(self.settings), self.request.duty, self.request.queue, self.request.run
        )

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.stores, self.settings)


def _step(run: _Run, step: str) -> dict[str, Any]:
    started, began = run.clock(), time.perf_counter()

    def times() -> dict[str, Any]:
        return {"started": iso(started), "seconds": round(time.perf_counter() - began, 3)}

    try:
        summary = _taken(run, step)
    except TooLarge:
        raise  # nothing is wrong: the step is done elsewhere
    except Exception as error:
        _record_failure(run, step, error, times())
        raise
    if step == "report":
        return _finish(run, summary, times())
    request = run.request
    summary = {
        "run": request.run,
        "duty": request.duty,
        "queue": request.reported_queue,
        "step": step,
        **summary,
        **times(),
    }
    run.folder.write_json(FILES[step], summary)
    if step in CHANGING:
        # A person may run one step at a time: what was changed is in the ledger even when the
        # report step never comes.
        message = f"{step} is done, report has not run yet"
        status = {"status": reports.RUNNING, "message": message}
        run.ledger.write(_so_far(run, summary["started"], status))
    bulky = run.logic.bulky | {"decided"}
    return {name: value for name, value in summary.items() if name not in bulky}


def _taken(run: _Run, step: str) -> dict[str, Any]:
    """What the step gives. A report is written of a run that was refused, too."""
    folder, agreed = run.folder, run.settings
    if step != "report":
        # What an earlier try met is not why this one ends, should it be killed without a word.
        folder.artifacts.remove(folder.file(FAILURE))
        agreed = run.tools.agree(run.stores) if run.duty.needs_queue else agreed
    if step == "plan":
        folder.artifacts.remove(folder.file(AHEAD))
    engine = _engine(run, step)
    evaluator = run.tools.evaluator
    context = StepContext(
        run.request, run.params, agreed, run.stores, folder, run.clock, engine, evaluator
    )
    summary = step_of(run.logic, step)(context)
    if step == "plan" and run.duty.small_first:
        summary["engine"] = engine.used
    return summary


def _engine(run: _Run, step: str) -> Engine:
    small_rows = run.settings.duty.small_rows if run.duty.small_first else 0
    plan = None if step == "plan" else run.folder.read_json(FILES["plan"]) or {}
    name = f"mailslice {run.request.duty} {run.request.queue}"
    return Engine(run.settings, name, small_rows, plan, run.in_process, run.tools.session)


def _finish(run: _Run, fields: dict[str, Any], times: dict[str, Any]) -> dict[str, Any]:
    folder, request = run.folder, run.request
    report = _report_of(run, times["started"], fields)
    report["seconds"]["report"] = times["seconds"]
    failure = folder.read_json(FAILURE)
    if failure and failure["step"] == "report":
        # Of an earlier version, which kept what failed in a report that got through now.
        folder.artifacts.remove(folder.file(FAILURE))
    elif failure:
        # Airflow runs the report whatever happened: a step that raised has the last word, until a
        # retry of it got through.
        report |= {"status": failure["status"], "message": failure["message"]}
    earlier = (
        one
        for one in run.ledger.list(request.duty, request.queue, 5)
        if one["run"] != request.run and one["finished"]
    )
    _end(run, report, next(earlier, {}).get("alerts") or ())
    folder.write_json(FILES["report"], report)
    run.ledger.write(report)
    retention = run.settings.duty.retention
    prune_sometimes(folder.artifacts, request.duty, request.queue, run.clock(), retention)
    return report


def _end(run: _Run, report: dict[str, Any], earlier: Sequence[Mapping[str, Any]] = ()) -> None:
    """Put the end and the alerts into the report, and publish both for Prometheus.

    `earlier`: the alerts of the report before.
    """
    now = run.clock()
    readings = alerts.readings(report, run.settings.alert, now)
    new = alerts.alerts(readings, earlier, now, run.settings.alert.repeat)
    report |= {"finished": iso(now), "alerts": new}
    with suppress(MailsliceError, OSError):
        file = metrics.file_of(run.request.duty, report["queue"])
        run.folder.artifacts.write(file, metrics.prometheus_text(report, readings))


def _record_failure(run: _Run, step: str, error: Exception, times: dict[str, Any]) -> None:
    """A ledger row for a run that ends here.

    The stores may be what failed: then row and file are left out, and the error still goes up.
    """
    # A gate before apply refused the run; one after it found something wrong in the stores.
    status = reports.REFUSED if isinstance(error, Refused) and step != "verify" else reports.FAILED
    text = str(error) if isinstance(error, MailsliceError) else f"{type(error).__name__}: {error}"
    outcome = {"status": status, "message": f"{step}: {text}"}
    if step != "report":  # the next try of a report has the last word, beside a step that raised
        with suppress(Exception):
            run.folder.write_json(FAILURE, {"step": step, **outcome})
    with suppress(Exception):
        report = _so_far(run, times["started"], outcome)
        _end(run, report)
        report["seconds"] = {**report["seconds"], step: times["seconds"]}
        with suppress(Exception):
            run.folder.write_json(FILES["report"], report)
        run.ledger.write(report)


def _so_far(run: _Run, started: str, outcome: dict[str, Any]) -> dict[str, Any]:
    """A report made of the files of the steps that are done."""
    fields = partial_report(run.logic, run.folder)
    return _report_of(run, started, {**fields, **outcome})


def _report_of(run: _Run, started: str, fields: dict[str, Any]) -> dict[str, Any]:
    base = reports.base_report(run.request, run.params, run.folder)
    summaries = reports.read_summaries(run.folder, STEPS[:4])
    return reports.with_steps({**base, "started": started, **fields}, summaries)


def step_of(duty: AnyDuty, step: str) -> Callable[[StepContext], dict[str, Any]]:
    """One of the five steps of the duty: a function that gives the step's summary."""
    return partial(_STEPS[step], duty)


def partial_report(duty: AnyDuty, folder: RunFolder) -> dict[str, Any]:
    """The report's fields as far as the run came."""
    steps = Summaries.read(folder, duty.kinds)
    return {**steps.fields(duty.bulky), **duty.report_fields(steps)}


def _plan(duty: AnyDuty, context: StepContext) -> dict[str, Any]:
    run = _run(duty, context)
    _remove_files(run.folder, run.folder.name, {_REQUEST, *duty.retained(run)})
    run.folder.artifacts.folder(run.folder.file(PLAN_FOLDER))
    plan: Plan = duty.plan(run)
    # A Spark task that was tried again has left the file of its first try.
    needed = {*plan.files(), *duty.retained(run)}
    _remove_files(run.folder, run.folder.file(PLAN_FOLDER), needed)
    return {
        "decided": plan.decided(),
        "planDigest": plan.digest,
        "planned": plan.planned,
        **run.fields,
    }


def _check(duty: AnyDuty, context: StepContext) -> dict[str, Any]:
    run, plan = _run(duty, context), load_plan(context, duty.plan_type)
    _forget(run, "check")
    frames = list(duty.check(run, plan))
    if frames:
        frames.append(_age(run, plan, duty.plan_max_age))
    elif plan.planned:
        raise RuntimeError(f"{run.request.duty} judges nothing of {plan.planned} planned items")
    gate = judged(run, "check", frames)
    return {**gate, "planDigest": plan.digest, "planned": plan.planned, **run.fields}


def _apply(duty: AnyDuty, context: StepContext) -> dict[str, Any]:
    plan = load_checked_plan(context, duty.plan_type, duty.plan_max_age)
    run = _run(duty, context)
    if isinstance(duty, ReportDuty):
        _forget(run, "apply", "verify")
        duty.publish(run, plan)
        return {"planDigest": plan.digest, "planned": plan.planned, **run.fields}
    if not plan.has_work:
        return Result(plan.digest, kinds=dict.fromkeys(duty.kinds, 0)).as_json()
    duty.before_lock(run, plan)
    with run.locked() as run:
        crash.point("apply:locked")
        _forget(run, "apply", "verify")
        with Progress(run, plan, duty.kinds) as progress:
            duty.apply(run, plan, progress)
    return progress.result().as_json()


def _verify(duty: AnyDuty, context: StepContext) -> dict[str, Any]:
    run, plan = _run(duty, context), load_plan(context, duty.plan_type)
    result = Result.from_json(context.need("apply"), duty.kinds)
    _forget(run, "verify")
    try:
        frames = list(duty.verify(run, plan, result))
    except LockHeld as error:
        raise TryAgain(str(error)) from error
    if not frames and result.applied:
        raise RuntimeError(f"{run.request.duty} verifies nothing of what it did")
    return {**judged(run, "verify", frames), **run.fields}


def _report(duty: AnyDuty, context: StepContext) -> dict[str, Any]:
    context.need("plan")
    run, steps = _run(duty, context), Summaries.read(context.folder, duty.kinds)
    duty.conclude(run, steps)
    status, message = duty.outcome(run, steps)
    fields = partial_report(duty, run.folder)
    return {**fields, **run.fields, "status": status, "message": message}


_STEPS: Mapping[str, Callable[[AnyDuty, StepContext], dict[str, Any]]] = {
    "plan": _plan,
    "check": _check,
    "apply": _apply,
    "verify": _verify,
    "report": _report,
}


def _run(duty: AnyDuty, context: StepContext) -> Run:
    locks = duty.locks(context.request)
    return Run.of(context, lock_names=locks, lock_patience=duty.lock_patience)


def _age(run: Run, plan: Plan, max_age: timedelta) -> Frame:
    """One row: how old the plan is. An hour of another machine's clock is let pass."""
    age, most = (run.clock() - plan.made_at) / _HOUR, max_age / _HOUR
    sentence = f"The plan is not older than {most:g} hours."
    return Frame.facts("plan", (age, Expectation.between("age_hours", -1, most, sentence)))


def _forget(run: Run, *steps: str) -> None:
    """What an earlier try of these steps said is not said of this one, however it ends."""
    for step in steps:
        run.folder.artifacts.remove(run.folder.file(FILES[step]))


def _remove_files(folder: RunFolder, below: str, but: Collection[str]) -> None:
    for file in folder.artifacts.files(below):
        if file.removeprefix(f"{folder.name}/") not in but:
            folder.artifacts.remove(file)
