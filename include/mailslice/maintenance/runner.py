"""Runs the steps of every duty: plan -> check -> apply -> verify -> report.

It opens the stores, and writes summaries, failures, ledger rows, alerts and metrics.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from mailslice.checks.gate import Evaluator
from mailslice.engine.errors import translated_errors
from mailslice.engine.frames import Session
from mailslice.maintenance import alerts, metrics
from mailslice.maintenance import report as reports
from mailslice.maintenance.artifacts import FILES, REQUEST, folder_of, iso
from mailslice.maintenance.duty import AnyDuty
from mailslice.maintenance.engine import PROCESS, Engine, TooLarge
from mailslice.maintenance.ledger import Ledger
from mailslice.maintenance.params import DutyParams
from mailslice.maintenance.registry import DutyEntry, load
from mailslice.maintenance.retention import expire_sometimes, prune_metrics, prune_sometimes
from mailslice.maintenance.run import Run
from mailslice.maintenance.run_request import STEPS, RunRequest
from mailslice.maintenance.steps import partial_report, step_of
from mailslice.model.clock import Clock, system_clock
from mailslice.model.errors import BadInput, MailsliceError, Refused, line_of
from mailslice.model.mail import QueueName
from mailslice.model.settings import Settings
from mailslice.stores import Stores, open_stores
from mailslice.view.sharing import agree

log = logging.getLogger(__name__)
OnStep = Callable[[str, dict[str, Any]], None]
"""Called with a step's name and summary as soon as it ended."""
CHANGING = ("apply", "verify")
"""The steps that a dry run leaves out."""
_SKEW = timedelta(hours=1)
"""A report that ended later than this from now came from a clock that was ahead: it is ignored."""
AHEAD = "ahead.json"
"""State of `run_small`: the steps that no task has taken, whether a task took one, `clear`."""
FAILURE = "failure.json"
"""File in the run's folder: the error of the last step (not the report), if it raised."""


def run_step(
    step: str,
    request: RunRequest,
    settings: Settings,
    *,
    clock: Clock = system_clock,
    tools: Tools | None = None,
) -> dict[str, Any]:
    """Run one step; returns its summary. The run's folder has it, too, with its long lists.

    A step that raises first writes a ledger row (`refused` or `failed`, with the message). Raises
    what the step raises: GateFailed, PlanRefused, ClockSkew, StoreUnavailable and the other errors
    of `model.errors`.
    """
    if step not in STEPS:
        raise BadInput(f"step {step!r}: allowed are {', '.join(STEPS)}")
    with _opened(request, settings, clock, tools) as job:
        return _step(job, step)


def run_all(
    request: RunRequest,
    settings: Settings,
    on_step: OnStep | None = None,
    *,
    clock: Clock = system_clock,
    tools: Tools | None = None,
) -> dict[str, Any]:
    """Run all steps (`steps_of`) in this process; returns the report. Raises as `run_step`."""
    summary: dict[str, Any] = {}
    with _opened(request, settings, clock, tools) as job:
        for step in steps_of(job.run.duty_params):
            summary = _step(job, step)
            if on_step is not None:
                on_step(step, summary)
    return summary


def run_small(
    request: RunRequest,
    settings: Settings,
    until: str = "report",
    tools: Tools | None = None,
    *,
    clear: str = "",
) -> dict[str, Any]:
    """Run the plan and, when it is small, the steps after it up to `until`, in this process.

    Returns the plan's summary. A later step that raises ends this: the task of that step runs it
    again and reports the error.
    A retry continues with this plan until a task has taken a step (`small_run_summary`).
    `clear` differs after a person cleared the task: then the run is planned again.
    Raises TooLarge when the plan needs Spark, else what the plan raises.
    """
    with _opened(request, settings, tools=tools, in_process=True) as job:
        run = job.run
        ahead = run.folder.read_json(AHEAD) or {"taken": True}
        goes_on = not ahead.get("taken") and ahead.get("clear", "") == clear
        summary = (goes_on and run.folder.read_json(FILES["plan"])) or _step(job, "plan")
        done: list[str] = ahead["steps"] if goes_on else []
        with suppress(Exception):
            for step in steps_of(run.duty_params)[1:]:
                if step not in done and STEPS.index(step) <= STEPS.index(until):
                    run.folder.write_json(AHEAD, {"steps": done, "clear": clear})
                    _step(job, step)
                    done.append(step)
        run.folder.write_json(AHEAD, {"steps": done, "clear": clear})
    return summary


def record_refusal(step: str, error: Refused, request: RunRequest, settings: Settings) -> None:
    """Record that `error` ends the run before apply. The message begins with `step`."""
    with _opened(request, settings) as job:
        times = {"started": iso(job.run.clock()), "seconds": 0.0}
        _record_failure(job.logic, job.run, step, error, times)


def record_unsent_alerts(report: dict[str, Any], settings: Settings) -> None:
    """Write the report's row with its new alerts as not sent: the next run sends them."""
    new = alerts.new_alerts(report)
    report["alerts"] = [{**one, "told": None} if one in new else one for one in report["alerts"]]
    with open_stores(settings) as stores:
        Ledger(stores, settings).write(report)


def small_run_summary(step: str, request: RunRequest, settings: Settings) -> dict[str, Any] | None:
    """The summary of a step that `run_small` did, at the first call; None: run the step."""
    folder = folder_of(request, settings)
    ahead = folder.read_json(AHEAD) or {"steps": []}
    if step not in ahead["steps"]:
        return None
    summary = folder.read_json(FILES[step])
    remaining = [name for name in ahead["steps"] if name != step]
    folder.write_json(AHEAD, {**ahead, "steps": remaining, "taken": True})
    return summary


def is_small(request: RunRequest, settings: Settings) -> bool:
    """Whether the plan of this run was made without Spark."""
    return (folder_of(request, settings).read_json(FILES["plan"]) or {}).get("engine") == PROCESS


def steps_of(params: DutyParams) -> tuple[str, ...]:
    """The steps that a run with these params takes."""
    return tuple(step for step in STEPS if not (params.dry_run and step in CHANGING))


@dataclass(frozen=True)
class Tools:
    """What a run works with besides its stores. Only tests replace the defaults."""

    evaluator: Evaluator | None = None
    """How gates are evaluated; None: by Great Expectations."""
    session: Session | None = None
    """Where frames are computed; None: the session of the step's `Engine`."""
    logic: AnyDuty | None = None
    """Replaces the logic of the duty."""
    agree: Callable[[Stores, QueueName], Settings] = agree


@dataclass(frozen=True)
class _Job:
    """A run without an engine: each step gets one of its own."""

    duty: DutyEntry
    run: Run
    tools: Tools
    in_process: bool

    @property
    def logic(self) -> AnyDuty:
        return self.tools.logic or self.duty.logic


@contextmanager
def _opened(
    request: RunRequest,
    settings: Settings,
    clock: Clock = system_clock,
    tools: Tools | None = None,
    *,
    in_process: bool = False,
) -> Iterator[_Job]:
    duty = load(request.duty)
    params = duty.params.parse(request.params)
    with open_stores(settings) as stores:
        run = Run(request, params, settings, stores, folder_of(request, settings), clock)
        yield _Job(duty, run, tools or Tools(), in_process)


def _step(job: _Job, step: str) -> dict[str, Any]:
    run = job.run
    started, began = run.clock(), time.perf_counter()

    def times() -> dict[str, Any]:
        return {"started": iso(started), "seconds": round(time.perf_counter() - began, 3)}

    try:
        if step == "apply":  # after a kill, only this row shows it
            _record_running(job, times()["started"], "apply has begun and has not ended")
        summary = _execute(job, step)
    except TooLarge:
        raise  # nothing is wrong: the step is done elsewhere
    except Exception as error:
        _record_failure(job.logic, run, step, error, times())
        raise
    if step == "report":
        return _finish(run, summary, times())
    request = run.request
    about = {"run": request.run, "duty": request.duty, "queue": request.reported_queue}
    summary = {**about, "step": step, **summary, **times()}
    run.folder.write_json(FILES[step], summary)
    if step in CHANGING:
        # A person may run one step at a time: what was changed is in the ledger even when the
        # report step never comes.
        _record_running(job, summary["started"], f"{step} is done, report has not run yet")
    bulky = job.logic.bulky | {"decided"}
    return {name: value for name, value in summary.items() if name not in bulky}


def _record_running(job: _Job, started: str, message: str) -> None:
    report = _interim(job.logic, job.run, started, {"status": reports.RUNNING, "message": message})
    Ledger(job.run.stores, job.run.settings).write(report)


def _execute(job: _Job, step: str) -> dict[str, Any]:
    """Run the step; returns its summary. A run that did not `agree` gets a report, too."""
    duty, run, tools = job.duty, job.run, job.tools
    folder, agreed = run.folder, run.settings
    if step == "plan":
        folder.artifacts.remove(folder.file(AHEAD))
        # Airflow's time limit is for its task, not for a step that a person runs later.
        limit = {"time_limit": None} if run.request.dag_run else {}
        asked = {"params": {**run.request.params, **limit}, "who": run.request.who}
        folder.write_json(REQUEST, asked)
    if step != "report":
        # If this try is killed, an earlier try's failure must not be reported as the reason.
        folder.artifacts.remove(folder.file(FAILURE))
        agreed = tools.agree(run.stores, run.queue) if duty.needs_queue else agreed
    engine = Engine(
        run.settings,
        f"mailslice {run.request.duty} {run.request.queue}",
        run.settings.duty.small_rows if duty.small_first else 0,
        None if step == "plan" else folder.read_json(FILES["plan"]) or {},
        job.in_process,
        tools.session,
    )
    began = run.began if job.in_process else time.monotonic()
    own = replace(run, settings=agreed, engine=engine, evaluator=tools.evaluator, began=began)
    with translated_errors():
        summary = step_of(job.logic, step)(own)
    if step == "plan" and duty.small_first:
        summary["engine"] = engine.used
    return summary


def _finish(run: Run, fields: dict[str, Any], times: dict[str, Any]) -> dict[str, Any]:
    folder, request = run.folder, run.request
    report = _report_of(run, times["started"], fields)
    report["seconds"]["report"] = times["seconds"]
    failure = folder.read_json(FAILURE)
    if failure:
        # Airflow runs the report after any outcome: a step that raised decides the status, until
        # a retry of that step succeeds.
        report |= {"status": failure["status"], "message": failure["message"]}
    _end(run, report, Ledger(run.stores, run.settings).list(request.duty, request.queue))
    try:
        folder.write_json(FILES["report"], report)
    except MailsliceError:  # a full disk: else the ledger would show the run as running
        record_unsent_alerts(report, run.settings)
        raise
    Ledger(run.stores, run.settings).write(report)
    files, clock = folder.artifacts, run.clock
    prune_arguments = (request.duty, request.queue, clock(), run.settings.duty.retention)
    for pruned, prune in (
        ("old runs", lambda: prune_sometimes(files, *prune_arguments)),
        ("old rows", run.stores.prune_records),
        ("figures of queues", lambda: prune_metrics(files, run.stores, clock())),
        ("deleted mails that are over", lambda: expire_sometimes(files, run.stores, clock)),
    ):
        try:
            prune()
        except MailsliceError as error:  # the report is written, and the next run prunes, too
            log.warning("%s were not pruned: %s", pruned, error)
    return report


def _end(run: Run, report: dict[str, Any], ledger: Iterable[dict[str, Any]] | None) -> None:
    """Put the end and the alerts into the report, and publish both for Prometheus.

    `ledger` None: it cannot be read. For Prometheus the alerts of the last run then go on.
    """
    now, request, limits, is_dry = run.clock(), run.request, run.settings.alert, reports.is_dry
    ended = (one for one in ledger or () if one["run"] != request.run and one["finished"])
    earlier = [one for one in ended if datetime.fromisoformat(one["finished"]) - now < _SKEW]
    before = next((one for one in earlier if is_dry(report) or not is_dry(one)), {})
    readings = alerts.readings(report, limits, now)
    new = alerts.alerts(readings, before.get("alerts") or (), now, limits, tells=request.tells)
    past = alerts.past_alerts(before, new, now)
    report |= {"finished": iso(now), "alerts": new, "pastAlerts": past}
    if (proof := reports.loss_proof([report, *earlier])) and proof is not report:
        report["lossProof"] = {n: proof[n] for n in ("run", "finished", "verdicts", "params")}
    if is_dry(report):
        return  # the metrics stay those of the last real run
    files, file = run.folder.artifacts, metrics.file_of(request.duty, report["queue"])
    with suppress(MailsliceError, OSError, ValueError):  # a damaged file stays
        if ledger is None:
            known = metrics.samples_in(files.read(file) or b"", "mailslice_alert")
            new = [{"name": labels["alert"]} for labels, fires in known if fires]
        files.write(file, metrics.exposition(metrics.duty_samples(report, readings, new)))


def _record_failure(
    duty: AnyDuty, run: Run, step: str, error: Exception, times: dict[str, Any]
) -> None:
    """Write a ledger row for a run that ends here, unless the stores themselves failed."""
    # A gate before apply refused the run; one after it found something wrong in the stores.
    status = reports.REFUSED if isinstance(error, Refused) and step != "verify" else reports.FAILED
    outcome = {"status": status, "message": f"{step}: {line_of(error)}"}
    if step != "report":  # the report's own retry decides the status anew
        with suppress(Exception):
            run.folder.write_json(FAILURE, {"step": step, **outcome})
    with suppress(Exception):
        report = _interim(duty, run, times["started"], outcome)
        ledger, newest = Ledger(run.stores, run.settings), None
        with suppress(MailsliceError):
            newest = ledger.list(run.request.duty, run.request.queue)
        _end(run, report, newest)
        report["seconds"] = {**report["seconds"], step: times["seconds"]}
        with suppress(Exception):
            run.folder.write_json(FILES["report"], report)
        if newest is not None:  # else this row would end alerts that are still true
            ledger.write(report)


def _interim(duty: AnyDuty, run: Run, started: str, outcome: dict[str, Any]) -> dict[str, Any]:
    """A report made of the files of the steps that are done."""
    return _report_of(run, started, {**partial_report(duty, run.folder), **outcome})


def _report_of(run: Run, started: str, fields: dict[str, Any]) -> dict[str, Any]:
    base = reports.base_report(run.request, run.duty_params, run.folder)
    return reports.with_steps({**base, "started": started, **fields}, run.folder)
