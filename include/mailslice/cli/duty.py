"""`mailslice duty`: maintenance without Airflow, by the same code, gates and ledger."""

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any

import typer

from mailslice.cli.arguments import DryRun, Reason, check_text, option, queue_option
from mailslice.cli.command import command, group
from mailslice.cli.duty_options import DutyCommand, refuse_empty, with_options
from mailslice.cli.extras import require_extra
from mailslice.cli.output import Output, cell
from mailslice.cli.queue_session import open_queue, who
from mailslice.cli.runs import newest_pending
from mailslice.codec.shown import shown
from mailslice.maintenance import registry
from mailslice.maintenance.artifacts import FILES, REQUEST, RunFolder, folder_of
from mailslice.maintenance.result import PROGRESS
from mailslice.maintenance.run_request import NO_QUEUE, RunRequest, new_run
from mailslice.model.clock import system_clock
from mailslice.model.errors import BadInput, MailsliceError, PlanRefused
from mailslice.model.mail import QueueName
from mailslice.model.settings import Settings, load_settings
from mailslice.stores import Stores, has_cassandra

_OF_POSTAL = "stuck_mails_postal"
app = group("Duties: maintenance in five steps, plan -> check -> apply -> verify -> report.")


DutyName = Annotated[
    str,
    typer.Argument(
        metavar="DUTY", help="Name of a duty; duty list shows them.", autocompletion=registry.names
    ),
]
QueueOption = Annotated[
    QueueName | None,
    queue_option("Name of a mail queue. Duties that are about all queues ignore it and say so."),
]
Param = Annotated[
    list[str] | None, option("--param NAME=VALUE", "A param of the duty, like its own option.")
]
Run = Annotated[
    str | None,
    option(
        "--run RUN",
        "Run id; when not given, the newest run of this duty and queue that waits for this step.",
    ),
]


@command(app, "list")
def list_(out: Output) -> None:
    """All duties, with their params."""

    def lines() -> Iterator[dict[str, object]]:
        for name in registry.names():
            duty = registry.load(name)
            params = {
                field: {"default": info.default, "help": info.description}
                if out.as_json
                else f"{info.description} (default {cell(info.default)})"
                for field, info in duty.params.model_fields.items()
            }
            yield {"duty": name, "summary": duty.summary, "params": params}

    out.rows(lines(), ("duty", "summary", "params"))


@command(app, "run", DutyCommand)
def run(
    out: Output,
    ctx: typer.Context,
    duty: DutyName,
    *,
    queue: QueueOption = None,
    param: Param = None,
    reason: Reason = None,
    dry_run: DryRun = False,
    notify: Annotated[
        bool,
        option(
            "--notify",
            "Send new alerts and failures by MAILSLICE_DUTY_NOTIFY, as the DAGs do: "
            "for runs that a schedule starts.",
        ),
    ] = False,
) -> None:
    """Run all five steps of a duty. A failing gate stops before apply (exit 3).

    `duty run DUTY --help` shows the options of that duty.
    """
    from mailslice.maintenance.notify import channels_without_airflow, notify_end
    from mailslice.maintenance.runner import record_unsent_alerts, run_all

    recipients = load_settings().duty if notify else None
    if recipients is not None:
        channels_without_airflow(recipients)  # refuses a wrong channel before the run
    report: dict[str, Any] | None = None
    failure: BaseException | None = None
    try:
        settings, request = _opened(duty, queue, _params(ctx, param, reason, dry_run=dry_run), None)
        request, folder = replace(request, tells=notify), folder_of(request, settings)
        try:
            report = run_all(request, settings, lambda step, summary: _progress(out, step, summary))
        except MailsliceError:
            with suppress(MailsliceError):  # keep the first error
                report = folder.read_json("report.json")
            raise
        finally:
            if report is not None:
                out.one(report)
    except (Exception, SystemExit) as error:
        failure = error if isinstance(error, Exception) else MailsliceError("ended by SIGTERM")
        raise
    finally:
        if recipients is not None and not notify_end(duty, queue, report, failure, recipients):
            with suppress(MailsliceError):  # keep the end of the run
                record_unsent_alerts(report or {}, settings)


def _step_command(step: str, help_text: str) -> None:
    def run_one(
        out: Output,
        ctx: typer.Context,
        duty: DutyName,
        *,
        queue: QueueOption = None,
        run: Run = None,
        param: Param = None,
        reason: Reason = None,
        dry_run: DryRun = False,
    ) -> None:
        from mailslice.maintenance.runner import run_step

        params = _params(ctx, param, reason, dry_run=dry_run)
        pending = None if step == "plan" else step
        settings, request = _opened(duty, queue, params, run, pending)
        folder = folder_of(request, settings)
        if step != "plan":
            request = _as_planned(request, folder)
        if step == "apply" and request.params.get("dry_run"):
            ids = {"run": request.run, "duty": duty, "queue": request.reported_queue}
            planned = (folder.read_json("plan.json") or {}).get("planned")
            out.one({**ids, "step": step, "dryRun": True, "planned": planned, "applied": 0})
            return
        out.one(run_step(step, request, settings))

    run_one.__doc__ = help_text
    command(app, step, DutyCommand)(run_one)


for _step, _help_text in (
    ("plan", "Read the stores and write down what would be changed. The stores stay as they are."),
    ("check", "Run the gate over the plan; exit 3 when an expectation does not hold."),
    ("apply", "Do what the plan lists, and prove each item again first."),
    ("verify", "Run the gate over what is in the stores now."),
    ("report", "Write the run's report and ledger row."),
):
    _step_command(_step, _help_text)


def _opened(
    duty: str,
    queue: QueueName | None,
    params: dict[str, object],
    run: str | None,
    pending: str | None = None,
) -> tuple[Settings, RunRequest]:
    """The checked settings and request. `pending`: the step for which to find a run."""
    entry = registry.load(duty)
    refuse_empty(params, entry.params)
    entry.params.parse(params, f"duty {duty}")
    require_extra("duties")
    settings = _settings_for(duty, queue, entry.needs_queue)
    subject = queue if queue is not None and entry.needs_queue else NO_QUEUE
    if pending is not None and run is None:
        run = newest_pending(settings, duty, subject, pending)
    run = new_run(system_clock) if run is None else run
    return settings, RunRequest(duty=duty, queue=subject, run=run, who=who(), params=params)


def _settings_for(duty: str, queue: QueueName | None, needs_queue: bool) -> Settings:
    """The settings of a known queue. A duty about all queues says that it ignores `queue`."""
    if not needs_queue:
        settings = load_settings()
        with Stores(settings) as stores:  # raises BadSetting before there is a run
            _ = stores.postal if duty == _OF_POSTAL else stores.management
        if queue is not None:
            if has_cassandra(settings):  # an unknown queue is an error here, too
                with open_queue(queue):
                    pass
            words = f"duty {duty} is about all queues: --queue {shown(queue)} is ignored"
            print(words, file=sys.stderr)
        return settings
    if queue is None:
        raise BadInput(
            f"duty {duty}: --queue is missing: allowed is the name of a mail queue "
            "('mailslice queue list' shows them)"
        )
    with open_queue(queue) as opened:
        return opened.settings


def _params(
    ctx: typer.Context, texts: list[str] | None, reason: str | None, *, dry_run: bool
) -> dict[str, object]:
    """The given params as JSON values. Others are left out: the duty has its own defaults."""
    params: dict[str, object] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise BadInput(f"--param {text[:80]!r}: allowed is NAME=VALUE")
        if (name := name.strip()) in params:
            both = f"{str(params[name])[:60]!r} and {value[:60]!r}"
            raise BadInput(f"--param {name}: it was given as {both}; allowed is one of them")
        params[name] = _value(value)
        check_text(f"--param {name}", params[name])
    common = {} if reason is None else {"reason": reason}
    return with_options(ctx, params) | common | ({"dry_run": True} if dry_run else {})


def _value(text: str) -> object:
    """Numbers, true, false, null and lists as JSON; everything else is text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _as_planned(request: RunRequest, folder: RunFolder) -> RunRequest:
    """The request with the params of the plan, and --dry-run of this command.

    Raises BadInput for an option that contradicts the plan, PlanRefused for a run without one.
    """
    stored = folder.read_json(REQUEST)
    # A mistyped run is refused without a report. A run whose plan failed gets its report.
    if stored is None and folder.read_json("plan.json") is None:
        raise PlanRefused(
            f"run {request.run} of {request.duty} has no plan.json in {folder.uri}: "
            "name another by --run, or plan it first: duty plan"
        )
    if stored is None:  # an earlier version planned it
        return request
    if request.params.get("dry_run") and any(map(folder.read_json, (FILES["apply"], PROGRESS))):
        raise BadInput(f"--dry-run: run {request.run} was applied; leave it out, or plan again")
    planned: dict[str, Any] = stored.get("params", {})
    planned.pop("dry_run", None)
    later = registry.load(request.duty).params.later
    return replace(request, params=later(planned, request.params))


def _progress(out: Output, step: str, summary: dict[str, Any]) -> None:
    if sys.stderr.isatty():
        out.note(f"{step}: {summary.get('seconds', '?')} s")
