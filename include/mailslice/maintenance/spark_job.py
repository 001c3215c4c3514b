"""The entry point of the files in jobs/. Parses the arguments of one step and runs it.

The last line on stdout is the step's summary as JSON.
"""

import argparse
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mailslice.codec.shown import ShownFormatter
from mailslice.maintenance.artifacts import folder_of, json_value
from mailslice.maintenance.run_request import NO_QUEUE, STEPS, RunRequest, queue_or_none
from mailslice.maintenance.runner import run_step
from mailslice.maintenance.submission import read_settings, write_outcome
from mailslice.model.errors import BadInput, MailsliceError
from mailslice.model.settings import load_settings

_MAX_VALUE_LENGTH = 4000


def main(duty: str, argv: Sequence[str]) -> int:
    """Run one step; returns the command line's exit code. Prints expected errors to stderr."""
    arguments = _parser(duty).parse_args(argv)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(ShownFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    _end_with_parent()
    request: RunRequest | None = None
    try:
        settings = read_settings(arguments.settings) if arguments.settings else load_settings()
        request = RunRequest(
            duty,
            queue_or_none(arguments.queue),
            arguments.run,
            arguments.dag_run,
            arguments.who,
            _params(arguments.params),
            tells=arguments.dag_run is not None,
        )
        summary = run_step(arguments.step, request, settings)
    except Exception as error:
        if arguments.attempt and request:
            with suppress(Exception):
                write_outcome(folder_of(request, settings), arguments.attempt, error)
        if not isinstance(error, MailsliceError):
            raise
        print(f"{duty} {arguments.step}: {error}", file=sys.stderr, flush=True)  # noqa: T201
        return error.exit_code
    shown = {
        name: value
        for name, value in summary.items()
        if len(json.dumps(value, default=json_value)) < _MAX_VALUE_LENGTH
    }
    print(json.dumps(shown, default=json_value), flush=True)  # noqa: T201
    return 0


def _parser(duty: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=duty, description=f"One step of {duty}.")
    parser.add_argument("step", choices=STEPS)
    parser.add_argument(
        "--queue", default=NO_QUEUE, help="none for a duty that is not about one queue"
    )
    parser.add_argument("--run", required=True, help="run id, the same for all steps of a run")
    parser.add_argument("--dag-run", default=None, help="Airflow's run id")
    parser.add_argument("--who", default="unknown", help="who asked for it")
    parser.add_argument("--params", default="{}", help="the duty's params as a JSON object")
    parser.add_argument(
        "--settings", type=Path, help="the settings as a file that Airflow's task wrote"
    )
    parser.add_argument("--attempt", help="name under which the run's folder gets how this ended")
    return parser


def _params(text: str) -> dict[str, object]:
    try:
        params = json.loads(text)
    except ValueError as error:
        raise BadInput(f"--params {text[:80]!r} is not JSON: {error}") from None
    if not isinstance(params, dict):
        raise BadInput(f"--params {text[:80]!r}: allowed is a JSON object")
    return params


def _end_with_parent() -> None:
    """Exit when the parent JVM of spark-submit is killed: nothing may go on deleting."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(137)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()
