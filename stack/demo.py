"""`make run`: the whole system, shown at work."""

from __future__ import annotations

import os
import time
from typing import Any

from rich.table import Table

from stack.airflow import PASSWORD, USER, AirflowApi
from stack.command_line import CommandLine
from stack.demo_cleanup import DAG, run_cleanup
from stack.demo_mail import QUEUE, DemoMail, source_of
from stack.settings import Profile, StackSettings, stack_settings
from stack.stack import DEMO_WINDOW, Stack, check_room, one_at_a_time, run_settings
from stack.steps import Steps

_GRACE = "2s"


def run_demo() -> int:
    """Starts, enqueues, drains, cleans, reports.

    Gives the exit code; raises MailsliceError with the cause and the remedy.
    """
    began = time.monotonic()
    stack = stack_settings(Profile.RUN)
    steps = Steps()
    from_environment = os.environ.get("MAIL_ORIGIN") == "environment"
    source = source_of(stack, os.environ.get("MAIL"), from_environment=from_environment)
    mail = DemoMail(stack, source)
    with one_at_a_time(stack):
        check_room(stack)
        mail.check_room()
        settings = run_settings(stack)
        services = Stack(stack, steps, settings, with_airflow=True)
        services.start()
        commands = CommandLine(settings)
        _work(commands, mail, steps)
        services.wait_for_airflow()
        with steps.step(f"{DAG}, through Airflow's scheduler") as step:
            conf: dict[str, object] = {"queues": [QUEUE], "grace": _GRACE, "reason": "make run"}
            conf["dry_run"] = False
            run = run_cleanup(AirflowApi(stack), stack.state / "log" / "airflow.log", conf, step)
        report = commands.one("report", "last", "--duty", DAG, "--queue", QUEUE)
        size = commands.one("queue", "size", QUEUE)["size"]
    _show_report(steps, report, run)
    counts = (
        f"{mail.progress.enqueued} enqueued, {mail.progress.drained} drained, {size} in the "
        "queue now"
    )
    _show_addresses(steps, stack, counts, _text(report.get("dataDocs") or report.get("docs")), run)
    steps.console.print(
        f"\nup and running after {time.monotonic() - began:.0f} s; make stop ends it, make "
        "clean removes it"
    )
    return 0


def _work(commands: CommandLine, mail: DemoMail, steps: Steps) -> None:
    with steps.step(f"queue {QUEUE}") as step:
        commands.one("queue", "create", QUEUE)
        step.show("there")
    progress = mail.progress
    with steps.step(f"enqueue {progress.source}") as step:
        if mail.enqueued:
            step.show("done before, nothing is enqueued twice")
        else:
            mail.spool()
            mail.enqueue(commands, DEMO_WINDOW, step)
    for failure in progress.failures:
        steps.console.print(f"    not enqueued: {failure}", markup=False)
    with steps.step("drain a part, as a worker does") as step:
        if progress.to_drain:
            mail.drain(commands, step)
        else:
            step.show(f"done before, {progress.drained} completed")


def _show_report(steps: Steps, report: dict[str, Any], run: str) -> None:
    table = Table(title=f"{DAG} of {QUEUE}, Airflow run {run}", title_justify="left")
    for name in ("", "before", "after"):
        table.add_column(name)
    before, after = report.get("before") or {}, report.get("after") or {}
    for name in ("browseStart", "contentStart", "live", "dead"):
        table.add_row(name, _text(before.get(name)), _text(after.get(name)))
    steps.console.print(table)
    counts, names = Table(), ("planned", "applied", "skipped", "failed")
    for name in names:
        counts.add_column(name, justify="right")
    counts.add_row(*(_text(report.get(name)) for name in names))
    steps.console.print(counts)


def _show_addresses(steps: Steps, stack: StackSettings, mail: str, docs: str, run: str) -> None:
    url = f"http://127.0.0.1:{stack.ports.airflow_port}"
    program = ".venv/bin/mailslice"
    addresses = {
        "mail": mail,
        "Airflow": f"{url}/dags/{DAG}/runs/{run}  (login {USER} / {PASSWORD})",
        "Data Docs": docs,
        "RabbitMQ": f"http://127.0.0.1:{stack.ports.rabbitmq_management_port}  (guest / guest)",
        "settings": str(stack.settings_file),
        "command line": (
            f"{program} queue size {QUEUE}; {program} queue slices {QUEUE}; {program} report "
            f"last; {program} --help"
        ),
    }
    for name, value in addresses.items():
        steps.console.print(f"  {name:<13} {value}", markup=False)


def _text(value: object) -> str:
    return "-" if value is None else str(value)
