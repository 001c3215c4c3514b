"""`mailslice duty`: maintenance without Airflow, by the same code, gates and ledger."""

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mailslice.cli.arguments import DryRun, Reason, duration
from mailslice.cli.command import command, group
from mailslice.cli.door import open_queue, who
from mailslice.cli.output import Output
from mailslice.model.errors import BadInput, MailsliceError
from mailslice.model.mail import QueueName
from mailslice.model.names import queue_name

if TYPE_CHECKING:
    from mailslice.duty.artifacts import RunFolder
    from mailslice.duty.request import RunRequest
    from mailslice.model.settings import Settings

app = group("Duties: maintenance in five steps, plan -> check -> apply -> verify -> report.")

DutyName = Annotated[str, typer.Argument(metavar="DUTY", help="Name of a duty; duty list shows them.")]
QueueOption = Annotated[QueueName, typer.Option("--queue", parser=queue_name, metavar="QUEUE", help="Name of a mail queue.")]
Grace = Annotated[
    timedelta | None, typer.Option("--grace", parser=duration("--grace"), metavar="DURATION", help="Time after its end before a slice counts as closed.")
]
Param = Annotated[list[str] | None, typer.Option("--param", metavar="NAME=VALUE", help="Any param of the duty, by its name in duty list.")]
Run = Annotated[
    str | None, typer.Option("--run", metavar="RUN", help="Run id; when not given, the newest run of this duty and queue that waits for this step.")
]


@command(app, "list")
def list_(out: Output) -> None:
    """All duties, with their params."""
    from mailslice.duty import registry

    def lines() -> Iterator[dict[str, object]]:
        for name in registry.names():
            duty = registry.load(name)
            params = {field: {"default": info.default, "help": info.description} for field, info in duty.params.model_fields.items()}
            shown: object = params if out.as_json else {field: f"{info['help']} (default {info['default']})" for field, info in params.items()}
            yield {"duty": name, "summary": duty.summary, "params": shown}

    out.rows(lines(), ("duty", "summary", "params"))


@command(app, "run")
def run(out: Output, duty: DutyName, *, queue: QueueOption, grace: Grace = None, param: Param = None, reason: Reason = None, dry_run: DryRun = False) -> None:
    """All five steps of a duty on one queue, and the report. A failing gate stops before apply (exit 3)."""
    from mailslice.duty.road import run_all

    settings, request = _opened(duty, queue, _params(grace, param, reason, dry_run=dry_run), None)
    folder = _folder(settings, request)
    try:
        report = run_all(request, settings, lambda step, summary: _progress(out, step, summary))
    except MailsliceError:
        if (ended := folder.read_json("report.json")) is not None:
            out.one(ended)
        raise
    out.one(report)


def _step_command(step: str, what: str) -> None:
    def run_one(
        out: Output,
        duty: DutyName,
        *,
        queue: QueueOption,
        run: Run = None,
        grace: Grace = None,
        param: Param = None,
        reason: Reason = None,
        dry_run: DryRun = False,
    ) -> None:
        _run_step(out, step, duty=duty, queue=queue, params=_params(grace, param, reason, dry_run=dry_run), run=run)

    run_one.__doc__ = what
    command(app, step)(run_one)


for _step, _what in (
    ("plan", "Read, and write down what would be changed; changes nothing."),
    ("check", "The gate over the plan: exit 3 when an expectation does not hold."),
    ("apply", "Do what the plan lists, each item's proof checked again."),
    ("verify", "The gate over what is in the stores now."),
    ("report", "Write the run's report and ledger row."),
):
    _step_command(_step, _what)


def _run_step(out: Output, step: str, *, duty: str, queue: QueueName, params: dict[str, object], run: str | None) -> None:
    from mailslice.duty.road import run_step

    settings, request = _opened(duty, queue, params, run if step == "plan" else _pending(step, duty, queue, run))
    folder = _folder(settings, request)
    if step == "plan":
        folder.write_json("request.json", {"params": request.params, "who": request.who})
    else:
        request = _as_planned(request, folder)
    if step == "apply" and request.params.get("dry_run"):
        plan = folder.read_json("plan.json") or {}
        out.one({"run": request.run, "duty": duty, "queue": queue, "step": step, "dryRun": True, "planned": plan.get("planned"), "applied": 0})
        return
    out.one(run_step(step, request, settings))


def _opened(duty: str, queue: QueueName, params: dict[str, object], run: str | None) -> "tuple[Settings, RunRequest]":
    """The settings and the request; the duty, its params and the queue are checked before anything is started."""
    from mailslice.duty.registry import load
    from mailslice.duty.request import RunRequest, new_run
    from mailslice.model.clock import system_clock

    load(duty).params.parse(params, f"duty {duty}")
    with open_queue(queue) as opened:
        settings = opened.settings
    return settings, RunRequest(duty=duty, queue=queue_name(queue), run=run or new_run(system_clock), who=who(), params=params)


def _params(grace: timedelta | None, given: list[str] | None, reason: str | None, *, dry_run: bool) -> dict[str, object]:
    """The params as JSON values; only what was given, so that defaults stay the duty's own."""
    from mailslice.model.durations import format_duration

    params: dict[str, object] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise BadInput(f"--param {text[:80]!r}: allowed is NAME=VALUE")
        params[name.strip()] = _value(value)
    if grace is not None:
        params["grace"] = format_duration(grace)
    if reason is not None:
        params["reason"] = reason
    if dry_run:
        params["dry_run"] = True
    return params


def _value(text: str) -> object:
    """Numbers, true, false, null and lists as JSON; everything else is text."""
    import json

    try:
        return json.loads(text)
    except ValueError:
        return text


def _folder(settings: "Settings", request: "RunRequest") -> "RunFolder":
    from mailslice.duty.artifacts import RunFolder, artifacts

    return RunFolder(artifacts(settings), request.duty, request.queue, request.run)


def _as_planned(request: "RunRequest", folder: "RunFolder") -> "RunRequest":
    """The request with the params that the run was planned with; what is given now wins, and a dry run is one only when asked for now."""
    from dataclasses import replace

    planned: dict[str, Any] = (folder.read_json("request.json") or {}).get("params", {})
    return replace(request, params={**{name: value for name, value in planned.items() if name != "dry_run"}, **request.params})


def _pending(step: str, duty: str, queue: str, run: str | None) -> str:
    """The run to go on with."""
    from mailslice.cli.runs import newest_pending
    from mailslice.duty.registry import load
    from mailslice.model.settings import load_settings

    load(duty)
    return run or newest_pending(load_settings(), duty, queue, step)


def _progress(out: Output, step: str, summary: dict[str, Any]) -> None:
    import sys

    if sys.stderr.isatty():
        out.note(f"{step}: {summary.get('seconds', '?')} s")
