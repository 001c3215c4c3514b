"""The five steps of a duty that is a class; each gives a summary, which `duty.road` writes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

from mailslice.duty.artifacts import RunFolder
from mailslice.duty.context import FILES, StepContext
from mailslice.duty.duty import Duty, ReportDuty
from mailslice.duty.gates import judged
from mailslice.duty.lock import LockHeld
from mailslice.duty.plan import PLAN_FOLDER, Plan, load_checked_plan, load_plan
from mailslice.duty.progress import Progress
from mailslice.duty.result import Result, Summaries
from mailslice.duty.run import Run
from mailslice.model import crash
from mailslice.model.errors import TryAgain
from mailslice.quality.expectations import Expectation, Frame

AnyDuty: TypeAlias = "Duty[Any] | ReportDuty[Any]"
_REQUEST = "request.json"
"""What `mailslice duty plan` was asked for: its later steps go by that. It is there before the plan."""
_HOUR = timedelta(hours=1)


def step_of(duty: AnyDuty, step: str) -> Callable[[StepContext], dict[str, Any]]:
    """One of the five steps of the duty, as `duty.road` calls it."""
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
    said = _judged(run, "check", frames)
    return {**said, "planDigest": plan.digest, "planned": plan.planned, **run.fields}


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
    return {**_judged(run, "verify", frames), **run.fields}


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


def _judged(run: Run, gate: str, frames: list[Frame]) -> dict[str, Any]:
    """What the gate says; a step that has nothing to judge takes none of the seconds that a gate takes."""
    if not frames:
        return {"success": True, "expectations": [], "dataDocs": None}
    return judged(run, gate, frames)


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
