"""The road every duty takes: plan -> check -> apply -> verify -> report. Command line, jobs and DAG tasks all come through here."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mailslice.duty import alerts, metrics
from mailslice.duty import report as reports
from mailslice.duty.artifacts import RunFolder, artifacts, iso
from mailslice.duty.context import FILES, StepContext
from mailslice.duty.engine import PROCESS, Engine, TooLarge
from mailslice.duty.ledger import Ledger
from mailslice.duty.params import DutyParams
from mailslice.duty.registry import DutyEntry, load
from mailslice.duty.request import STEPS, RunRequest
from mailslice.duty.retention import prune_sometimes
from mailslice.model.clock import Clock, system_clock
from mailslice.model.errors import MailsliceError, Refused
from mailslice.model.settings import Settings
from mailslice.queue.sharing import agree
from mailslice.stores import Stores, open_stores

OnStep = Callable[[str, dict[str, Any]], None]
"""Called with a step's name and summary as soon as it ended."""
CHANGING = ("apply", "verify")
"""The steps that a dry run leaves out."""
AHEAD = "ahead.json"
"""In the run's folder: the steps that a small plan's process has done, and whose tasks have not come yet; whether it ended."""
FAILURE = "failure.json"
"""In the run's folder while the last step that was tried, of those before the report, has raised."""


def run_step(
    step: str, request: RunRequest, settings: Settings, *, clock: Clock = system_clock
) -> dict[str, Any]:
    """Run one step and give its summary, which is also in the run's folder, there with its long lists.

    A step that raises leaves a ledger row first (`refused` or `failed`, with the message). Raises what the step raises: GateFailed,
    PlanRefused, ClockSkew, StoreUnavailable and the other errors of `model.errors`.
    """
    duty = load(request.duty)
    params = duty.params.parse(request.params)
    with open_stores(settings) as stores:
        return _step(_Run(duty, request, params, settings, stores, clock), step)


def run_all(
    request: RunRequest,
    settings: Settings,
    on_step: OnStep | None = None,
    *,
    clock: Clock = system_clock,
) -> dict[str, Any]:
    """Run the steps of one run, in order, in this process; the report. A dry run leaves out apply and verify. Raises as `run_step`."""
    duty = load(request.duty)
    params = duty.params.parse(request.params)
    summary: dict[str, Any] = {}
    with open_stores(settings) as stores:
        run = _Run(duty, request, params, settings, stores, clock)
        for step in steps_of(params):
            summary = _step(run, step)
            if on_step is not None:
                on_step(step, summary)
    return summary


def run_small(
    request: RunRequest, settings: Settings, *, clock: Clock = system_clock
) -> dict[str, Any]:
    """The plan, and, where it is small, all steps after it, in this process; the plan's summary.

    A step after it that raises ends this: whoever comes for that step does it again, and says why.
    A try after one that was killed goes on with its plan: a new one would not know what that did.
    Raises TooLarge where the plan needs Spark, else what the plan raises.
    """
    duty = load(request.duty)
    params = duty.params.parse(request.params)
    with open_stores(settings) as stores:
        run = _Run(duty, request, params, settings, stores, clock, in_process=True)
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
    left = [each for each in steps if each != step]
    folder.write_json(AHEAD, {"steps": left, "ended": True})
    return summary


def is_small(request: RunRequest, settings: Settings) -> bool:
    """Whether the plan of this run was made without Spark."""
    folder = RunFolder(artifacts(settings), request.duty, request.queue, request.run)
    return (folder.read_json(FILES["plan"]) or {}).get("engine") == PROCESS


def steps_of(params: DutyParams) -> tuple[str, ...]:
    """The steps that a run with these params takes."""
    return tuple(step for step in STEPS if not (params.dry_run and step in CHANGING))


@dataclass(frozen=True)
class _Run:
    duty: DutyEntry
    request: RunRequest
    params: DutyParams
    settings: Settings
    stores: Stores
    clock: Clock
    in_process: bool = False

    @property
    def folder(self) -> RunFolder:
        return RunFolder(
            artifacts(self.settings), self.request.duty, self.request.queue, self.request.run
        )

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.stores, self.settings)


def _step(run: _Run, step: str) -> dict[str, Any]:
    function = run.duty.step(step)
    started, began = run.clock(), time.perf_counter()
    try:
        if step != "report":
            # What an earlier try of this run met is not why this one ends, should it be killed without a word.
            run.folder.artifacts.remove(run.folder.file(FAILURE))
        # A report is written of a run that was refused for this, too.
        agreed = agree(run.stores) if run.duty.needs_queue and step != "report" else run.settings
        if step == "plan":
            run.folder.artifacts.remove(run.folder.file(AHEAD))
        engine = _engine(run, step)
        found = function(
            StepContext(run.request, run.params, agreed, run.stores, run.folder, run.clock, engine)
        )
        if step == "plan" and run.duty.small_first:
            found["engine"] = engine.used
    except TooLarge:
        raise  # nothing is wrong: the step is done elsewhere
    except Exception as error:
        _record_failure(
            run,
            step,
            error,
            {"started": iso(started), "seconds": round(time.perf_counter() - began, 3)},
        )
        raise
    times = {"started": iso(started), "seconds": round(time.perf_counter() - began, 3)}
    if step == "report":
        return _finish(run, found, times)
    queue = run.request.reported_queue
    summary: dict[str, Any] = {
        "run": run.request.run,
        "duty": run.request.duty,
        "queue": queue,
        "step": step,
        **found,
        **times,
    }
    run.folder.write_json(FILES[step], summary)
    if step in CHANGING:
        # A person may run one step at a time: what was changed is in the ledger even when the report step never comes.
        run.ledger.write(
            _so_far(
                run,
                times,
                {"status": reports.RUNNING, "message": f"{step} is done, report has not run yet"},
            )
        )
    bulky = run.duty.bulky(step)
    return {name: value for name, value in summary.items() if name not in bulky}


def _engine(run: _Run, step: str) -> Engine:
    small_rows = run.settings.duty.small_rows if run.duty.small_first else 0
    plan = None if step == "plan" else run.folder.read_json(FILES["plan"]) or {}
    name = f"mailslice {run.request.duty} {run.request.queue}"
    return Engine(run.settings, name, small_rows, plan, run.in_process)


def _finish(run: _Run, found: dict[str, Any], times: dict[str, Any]) -> dict[str, Any]:
    base = reports.base_report(run.request, run.params, run.folder)
    report = reports.with_steps(
        {**base, "started": times["started"], **found},
        reports.read_summaries(run.folder, STEPS[:4]),
    )
    report["seconds"]["report"] = times["seconds"]
    failure = run.folder.read_json(FAILURE)
    if failure and failure["step"] == "report":
        run.folder.artifacts.remove(
            run.folder.file(FAILURE)
        )  # of an earlier version, which kept what failed in a report that got through now
    elif failure:
        # Airflow runs the report whatever happened: a step that raised stays the last word, until a retry of it got through.
        report |= {"status": failure["status"], "message": failure["message"]}
    before = next(
        (
            each
            for each in run.ledger.list(run.request.duty, run.request.queue, 5)
            if each["run"] != run.request.run and each["finished"]
        ),
        {},
    )
    _end(run, report, before.get("alerts") or ())
    run.folder.write_json(FILES["report"], report)
    run.ledger.write(report)
    prune_sometimes(
        run.folder.artifacts,
        run.request.duty,
        run.request.queue,
        run.clock(),
        run.settings.duty.retention,
    )
    return report


def _end(run: _Run, report: dict[str, Any], earlier: Sequence[Mapping[str, Any]] = ()) -> None:
    """Put the end into the report, and what a person must hear of (`earlier`: the alerts of the report before); publish both for Prometheus."""
    now = run.clock()
    found = alerts.readings(report, run.settings.alert, now)
    report |= {
        "finished": iso(now),
        "alerts": alerts.alerts(found, earlier, now, run.settings.alert.repeat),
    }
    with suppress(MailsliceError, OSError):
        run.folder.artifacts.write(
            metrics.file_of(run.request.duty, report["queue"]),
            metrics.prometheus_text(report, found),
        )


def _record_failure(run: _Run, step: str, error: Exception, times: dict[str, Any]) -> None:
    """A ledger row for a run that ends here. The stores may be what failed: then the row and the file are left out, and the error still goes up."""
    # A gate that fails before apply refused the run; one that fails after it found something wrong in what is there now.
    status = reports.REFUSED if isinstance(error, Refused) and step != "verify" else reports.FAILED
    text = str(error) if isinstance(error, MailsliceError) else f"{type(error).__name__}: {error}"
    with suppress(Exception):
        if (
            step != "report"
        ):  # a report that failed says nothing of the run: the next try of it has the last word, beside a step that raised
            run.folder.write_json(
                FAILURE, {"step": step, "status": status, "message": f"{step}: {text}"}
            )
    with suppress(Exception):
        report = _so_far(run, times, {"status": status, "message": f"{step}: {text}"})
        _end(run, report)
        report["seconds"] = {**report["seconds"], step: times["seconds"]}
        with suppress(Exception):
            run.folder.write_json(FILES["report"], report)
        run.ledger.write(report)


def _so_far(run: _Run, times: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """A report made of the files of the steps that are done."""
    base = {**reports.base_report(run.request, run.params, run.folder), "started": times["started"]}
    return reports.with_steps(
        {**base, **run.duty.partial_report(run.folder), **more},
        reports.read_summaries(run.folder, STEPS[:4]),
    )
