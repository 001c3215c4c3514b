"""The entry point `mailslice`: every error becomes one or two lines on stderr and an exit code.

0 done; 1 some inputs failed (or `config check` found a difference); 2 wrong use or input;
3 refused by a guard or a gate; 4 a store is unavailable; 130 interrupted; 141 stdout was closed.
"""

import logging
import signal
import sys
import warnings
from collections.abc import Sequence
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import typer
from typer.exceptions import TyperException

from mailslice.cli import (
    airflow,
    blobs,
    config,
    decisions,
    duty,
    exporter,
    mail,
    postal_quarantine,
    queue_deleted,  # noqa: F401
    queue_holds,
    report,
    stuck,
    webadmin,
    worker,
)
from mailslice.cli.command import Debug, Json, command, remember
from mailslice.cli.extras import MissingExtra, extra_of
from mailslice.cli.output import NoRoomError, StdoutClosedError
from mailslice.cli.streams import FULL, forget_stdout, open_streams
from mailslice.codec.shown import ShownFormatter, shown
from mailslice.model.errors import MailsliceError, line_of

INTERRUPTED, STDOUT_CLOSED = 130, 141
_LONGEST_LINE = 2000
"""Most characters of an error line. A longer line is shown without its middle."""

app = typer.Typer(
    name="mailslice",
    help=(
        "Maintain and work a distributed mail queue of RabbitMQ, Cassandra and S3. Settings "
        "come from MAILSLICE_* (docs/settings.md)."
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
)
_command = cache(partial(typer.main.get_command, app))
for _name, _group in (
    ("queue", queue_holds.app),  # queue_moves and queue_deleted add to it, too
    ("mail", mail.app),
    ("worker", worker.app),
    ("stuck", stuck.app),
    ("postal", postal_quarantine.postal_app),  # has the commands of `postal`, too
    ("decisions", decisions.app),
    ("config", config.app),
    ("duty", duty.app),
    ("blobs", blobs.app),
    ("report", report.app),
    ("airflow", airflow.app),
):
    app.add_typer(_group, name=_name)
command(app, "exporter")(exporter.exporter)
command(app, "webadmin")(webadmin.webadmin)
if find_spec("mailslice.bench") is not None:  # a tool beside the product: an image may leave it out
    app.add_typer(import_module("mailslice.bench.commands").app, name="bench")


def _version(requested: bool) -> None:
    if requested:
        from mailslice import __version__

        print(f"mailslice {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    ctx: typer.Context,
    version: bool = typer.Option(  # noqa: ARG001
        False, "--version", callback=_version, is_eager=True, help="Show the version and exit."
    ),
    as_json: Json = False,
    debug: Debug = False,  # noqa: ARG001 - acted on by `run`, which sees every command end
) -> None:
    remember(ctx, as_json=as_json)


def run(argv: Sequence[str]) -> int:
    """Run one command line; its exit code. Errors go to stderr, with --debug as tracebacks."""
    try:
        result: Any = _command()(list(argv), prog_name="mailslice", standalone_mode=False)
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as ended:
        # typer wrote a help text whose reader had left.
        if isinstance(ended.__context__, BrokenPipeError):
            return STDOUT_CLOSED
        raise
    except Exception as error:  # noqa: BLE001 - each becomes a line and an exit code
        return _failed(_missing_extra(_first(error), argv), "--debug" in argv)
    return result if isinstance(result, int) else 0


def main() -> None:
    """The console script."""
    open_streams()
    # SIGTERM unwinds like Ctrl-C: files, connections and child processes are closed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    _set_log_levels(debug="--debug" in sys.argv)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure:
            reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))


def _first(error: BaseException) -> BaseException:
    """The first failure of a group of tasks; one that is not a MailsliceError comes first."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [_first(leaf_error) for leaf_error in error.exceptions]
    return next((leaf for leaf in leaves if not isinstance(leaf, MailsliceError)), leaves[0])


def _missing_extra(error: BaseException, argv: Sequence[str]) -> BaseException:
    if not isinstance(error, ModuleNotFoundError) or (extra := extra_of(error.name)) is None:
        return error
    return MissingExtra(_command_of(argv), extra, str(error.name))


def _command_of(argv: Sequence[str]) -> str:
    words, command = list[str](), _command()
    for word in argv:
        if (below := getattr(command, "commands", {}).get(word)) is not None:
            words.append(word)
            command = below
    return " ".join(words)


def _failed(error: BaseException, debug: bool) -> int:
    if isinstance(error, StdoutClosedError | NoRoomError) or (
        isinstance(error, OSError) and error.errno in FULL
    ):
        forget_stdout()
    match error:
        case StdoutClosedError():
            code = STDOUT_CLOSED
        case MailsliceError():
            code = _fail(str(error), error.exit_code, debug)
        case typer.Abort():
            code = _fail("stopped: nothing was done", 2, debug=False)
        case TyperException():
            code = _usage_error(error)
        case OSError() if error.errno in FULL:
            code = _fail(f"{error.filename or 'stdout'}: {error.strerror}", 1, debug)
        case OSError() if error.filename is not None:
            code = _fail(f"{error.filename}: {error.strerror}", 2, debug)
        case _:
            bug = "(this is a bug of mailslice; --debug shows where)"
            code = _fail(f"{line_of(error)} {bug}", 1, debug)
    return code


def _usage_error(error: TyperException) -> int:
    message = error.format_message().replace("Value error, ", "")
    if message.startswith("Usage:"):  # a group without a command: its help
        print(message, file=sys.stderr)
        return 2
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "mailslice"
    return _fail(f"{message}\nSee '{path} --help'.", 2, debug=False)


def _fail(message: str, code: int, debug: bool) -> int:
    if debug:
        import traceback

        traceback.print_exc()
    lines = [line for line in message.splitlines() if line.strip()][:2] or ["failed"]
    print("mailslice: " + "\n".join(map(_cut, lines)), file=sys.stderr, flush=True)
    return code


def _cut(line: str) -> str:
    half = _LONGEST_LINE // 2
    return shown(line if len(line) <= _LONGEST_LINE else f"{line[:half]} ... {line[-half:]}")


def _set_log_levels(debug: bool) -> None:
    """Libraries log only with --debug; mailslice logs warnings that no error repeats."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(ShownFormatter("%(levelname)s %(name)s: %(message)s"))
    level = logging.DEBUG if debug else logging.CRITICAL
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("mailslice").setLevel(logging.DEBUG if debug else logging.WARNING)
    if not debug:
        logging.getLogger().handlers[0].addFilter(_is_not_repeated)
        warnings.simplefilter("ignore")


def _is_not_repeated(record: logging.LogRecord) -> bool:
    """Whether to log a record. Others belong to an error that the command prints at its end."""
    parts = ("cli", "maintenance.", "duties.", "admin.deletions.entries")
    is_own = record.name.startswith(tuple(f"mailslice.{part}" for part in parts))
    return is_own or getattr(record, "action", "") == "dead_letter"
