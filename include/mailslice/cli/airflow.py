"""`mailslice airflow`: lets an existing Airflow use an installed mailslice, and its settings."""

import os
import signal
import sys
from contextlib import redirect_stdout
from typing import Annotated

import typer

from mailslice.cli.command import command, group
from mailslice.cli.output import Output
from mailslice.model.errors import BadInput
from mailslice.model.package_files import dags_folder
from mailslice.model.settings import CONNECTION

app = group("The DAGs in an Airflow of yours, and the settings in its connections.")

_CONTEXT = "_AIRFLOW_PROCESS_CONTEXT"


@command(app, "dags")
def dags(out: Output) -> None:
    """The folder of the DAG files, for `AIRFLOW__CORE__DAGS_FOLDER`."""
    folder = str(dags_folder())
    out.line({"folder": folder}, folder)


@command(app, "run")
def run(
    out: Output,
    words: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND", help="A program and its arguments.")
    ],
    deployment: Annotated[
        str, typer.Option(metavar="PREFIX", help="Its prefix in MAILSLICE_CONNECTION.")
    ] = "",
) -> None:
    """Run a command with the settings of a deployment of MAILSLICE_CONNECTION.

    Airflow looks the connection up in its secrets backends, environment and database, so run this
    where Airflow's own configuration is. The exit code is the command's.
    """
    del out
    from mailslice.airflow.deployments import deployments

    by_prefix = {entry.prefix: entry for entry in deployments() if entry.connection}
    if deployment not in by_prefix:
        if not by_prefix:
            raise BadInput(f"{CONNECTION} is unset: it names the connections of Airflow to use")
        allowed = ", ".join(map(repr, by_prefix))
        raise BadInput(f"--deployment {deployment!r} is not allowed; allowed: {allowed}")
    # As `airflow connections get` does: otherwise Airflow does not look in its database.
    os.environ[_CONTEXT] = "server"
    try:
        with redirect_stdout(sys.stderr):  # Airflow logs to stdout, which the command needs
            put = by_prefix[deployment].environment()
    finally:
        del os.environ[_CONTEXT]
    environ = {name: text for name, text in (os.environ | put).items() if text or name not in put}
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # exec keeps Python's SIG_IGN
    try:
        os.execvpe(words[0], words, environ)  # noqa: S606
    except OSError as error:
        signal.signal(signal.SIGPIPE, before)
        raise BadInput(f"{words[0]}: {error.strerror}") from error
