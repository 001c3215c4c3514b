"""What the runner does in each step of a duty: files, digest, gate, lock, progress and status."""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from mailslice.checks.expectations import Frame
from mailslice.maintenance.artifacts import APPROVAL, FILES, PLAN_FOLDER, REQUEST, RunFolder
from mailslice.maintenance.duty import AnyDuty, ReportDuty
from mailslice.maintenance.gates import gate_summary
from mailslice.maintenance.lock import LockHeld
from mailslice.maintenance.plan import Plan, load_checked_plan, load_plan
from mailslice.maintenance.progress import Progress
from mailslice.maintenance.report import FAILED
from mailslice.maintenance.result import Result, Summaries
from mailslice.maintenance.run import Run
from mailslice.model import crash
from mailslice.model.errors import TryAgain

_HOUR = timedelta(hours=1)


def step_of(duty: AnyDuty, step: str) -> Callable[[Run], dict[str, Any]]:
    """One of the five steps of the duty: a function that gives the step's summary."""
    return lambda run: _STEPS[step](
        duty,
        replace(
            run, lock_names=duty.locks(run.request), lock_patience=duty.lock_patience, fields={}
        ),
    )


def partial_report(duty: AnyDuty, folder: RunFolder) -> dict[str, Any]:
    """The report's fields of all steps so far, also of an apply that did not end."""
    steps = Summaries.load(folder, duty.kinds)
    return {**steps.fields(duty.bulky), **duty.report_fields(steps)}


def _plan(duty: AnyDuty, run: Run) -> dict[str, Any]:
    _remove_files(run.folder, run.folder.name, {REQUEST, APPROVAL, *duty.retained(run)})
    files = run.folder.file(PLAN_FOLDER)
    run.folder.artifacts.folder(files)
    try:
        plan: Plan = duty.plan(run)
    except Exception:
        with suppress(Exception):  # the disk may be full
            _remove_files(run.folder, files, duty.retained(run))
        raise
    # A Spark task that was retried has left the file of its first try.
    needed = {*plan.files(), *duty.retained(run)}
    _remove_files(run.folder, files, needed)
    return {
        "decided": plan.as_json(),
        "planDigest": plan.digest,
        "planned": plan.planned,
        **run.fields,
    }


def _check(duty: AnyDuty, run: Run) -> dict[str, Any]:
    plan = load_plan(run, duty.plan_type)
    _remove_summaries(run, "check")
    frames = list(duty.check(run, plan))
    if frames:
        frames.append(_age(run, plan, duty.plan_max_age))
    elif plan.planned:
        raise RuntimeError(f"{run.request.duty} judges nothing of {plan.planned} planned items")
    gate = gate_summary(run, "check", frames)
    return {**gate, "planDigest": plan.digest, "planned": plan.planned, **run.fields}


def _apply(duty: AnyDuty, run: Run) -> dict[str, Any]:
    plan = load_checked_plan(run, duty.plan_type, duty.plan_max_age)
    if isinstance(duty, ReportDuty):
        _remove_summaries(run, "apply", "verify")
        duty.publish(run, plan)
        return {"planDigest": plan.digest, "planned": plan.planned, **run.fields}
    if not plan.has_work:
        return Result(plan.digest, kinds=dict.fromkeys(duty.kinds, 0)).as_json()
    duty.before_lock(run, plan)
    with run.locked() as locked:
        crash.point("apply:locked")
        _remove_summaries(locked, "apply", "verify")
        with Progress(locked, plan, duty.kinds) as progress:
            duty.apply(locked, plan, progress)
    return progress.result().as_json()


def _verify(duty: AnyDuty, run: Run) -> dict[str, Any]:
    plan = load_plan(run, duty.plan_type)
    result = Result.from_json(run.need("apply"), duty.kinds)
    _remove_summaries(run, "verify")
    try:
        frames = list(duty.verify(run, plan, result))
    except LockHeld as error:
        raise TryAgain(str(error)) from error
    if not frames and result.applied:
        raise RuntimeError(f"{run.request.duty} verifies nothing of what it did")
    return {**gate_summary(run, "verify", frames), **run.fields}


def _report(duty: AnyDuty, run: Run) -> dict[str, Any]:
    steps = Summaries.load(run.folder, duty.kinds)
    if not steps.plan:
        ended = {"status": FAILED, "message": "plan did not end: it changes nothing"}
        return {**partial_report(duty, run.folder), **ended}
    duty.conclude(run, steps)
    status, message = duty.outcome(run, steps)
    fields = partial_report(duty, run.folder)
    return {**fields, **run.fields, "status": status, "message": message}


_STEPS: Mapping[str, Callable[[AnyDuty, Run], dict[str, Any]]] = {
    "plan": _plan,
    "check": _check,
    "apply": _apply,
    "verify": _verify,
    "report": _report,
}


def _age(run: Run, plan: Plan, max_age: timedelta) -> Frame:
    """One row: the plan's age in hours; down to -1, as the clocks of machines differ."""
    age, limit = (run.clock() - plan.made_at) / _HOUR, max_age / _HOUR
    sentence = f"The plan is not older than {limit:g} hours."
    return Frame.facts("plan", age_hours=(age, -1, limit, sentence))


def _remove_summaries(run: Run, *steps: str) -> None:
    """Remove summaries of an earlier try of these steps: they must not count for this one."""
    for step in steps:
        run.folder.artifacts.remove(run.folder.file(FILES[step]))


def _remove_files(folder: RunFolder, below: str, keep: Collection[str]) -> None:
    for file in folder.artifacts.files(below):
        if file.removeprefix(f"{folder.name}/") not in keep:
            folder.artifacts.remove(file)
