"""`python -m stack COMMAND`: what the Makefile calls once `.venv` is there."""

from __future__ import annotations

import io
import shutil
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from mailslice.model.errors import MailsliceError
from mailslice.model.settings import clone_root
from stack.bootstrap import DEBUG, UNEXPECTED, message_of_error
from stack.parts import FOR_TESTS, NAMES, java, list_file, part, resolve
from stack.program import FILES
from stack.settings import Profile, StackSettings, stack_settings
from stack.steps import Steps


def setup(_: list[str]) -> int:
    """Fetches the Java parts."""
    sizes = stack_settings(Profile.RUN).sizes
    with Steps().step("Java parts") as step, ThreadPoolExecutor() as pool:
        java()
        fetched = list(pool.map(lambda name: part(name, sizes), NAMES))
        step.show(", ".join(folder.name.rpartition("-")[0] for folder in fetched))
    return 0


def stop(_: list[str]) -> int:
    """Ends what `make run` or a killed `make test` left behind, never a running `make test`."""

    def stopped(stack: StackSettings) -> str:
        count = _module("stack").stop(stack)
        return f"{count} processes ended" if count else "nothing ran"

    _on_all_stacks("stop", stopped)
    return 0


def clean(_: list[str]) -> int:
    """Stops, then removes the stacks' state and what setup wrote.

    `.state/artifacts` stays: the command line of the clone keeps files of any deployment there.
    """

    def removed(stack: StackSettings) -> str:
        _module("stack").remove(stack)
        return "removed"

    _on_all_stacks("remove", removed)
    stacks = [stack_settings(profile) for profile in Profile]
    idle = [stack for stack in stacks if not _module("stack").at_work(stack)]
    for stack in idle:
        Path(f"{stack.state}.lock").unlink(missing_ok=True)
    home = stacks[0].root / ".state"
    # With a state folder elsewhere, the usual one belongs to a stack that may be at work.
    if idle == stacks and all(stack.state.parent == home for stack in stacks):
        for name in ("setup.log", "setup.lock", "uv.txt"):
            (home / name).unlink(missing_ok=True)
        _remove_if_empty(home)
    return 0


def _on_all_stacks(action_name: str, action: Callable[[StackSettings], str]) -> None:
    for profile in Profile:
        stack = stack_settings(profile)
        if stack.state.is_dir():
            with Steps().step(f"{action_name} {stack.state}") as step:
                busy = profile is Profile.TEST and _module("stack").at_work(stack)
                step.show("left alone: make test is at work" if busy else action(stack))


def _remove_if_empty(home: Path) -> None:
    """Removes the folder when no file is in it; otherwise names the entries that stay."""

    def has_file(path: Path) -> bool:
        if path.is_symlink() or not path.is_dir():
            return True
        return not all(below.is_dir() for below in path.rglob("*"))

    remaining = [path for path in sorted(home.glob("*")) if has_file(path)]
    if not remaining:
        shutil.rmtree(home, ignore_errors=True)
    why = ": plans, reports and exports of deployments that this clone's command line worked on"
    for path in remaining:
        print(f"  left alone: {path}{why if path.name == 'artifacts' else ''}")


def lock(_: list[str]) -> int:
    """Writes the lists of the Java parts' jars again."""
    sizes = stack_settings(Profile.RUN).sizes
    names = (*NAMES, *FOR_TESTS)
    with Steps().step("jars") as step, ThreadPoolExecutor() as pool:
        for name, jars in zip(names, pool.map(partial(resolve, sizes=sizes), names), strict=True):
            file = Path(str(FILES)) / list_file(name, sizes)
            file.write_text("".join(f"{jar.line}\n" for jar in jars), encoding="utf-8")
            step.show(f"{name}: {len(jars)}")
    return 0


def docs(_: list[str]) -> int:
    """Writes the generated pages."""
    with Steps().step("docs") as step:
        step.show(", ".join(_module("pages").write(clone_root())) or "as they were")
    return 0


def _module(name: str) -> Any:
    """Imported when its command runs: the other commands need less."""
    return import_module(f"stack.{name}")


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "setup": setup,
    "run": lambda _: _module("demo").run_demo(),
    "stop": stop,
    "clean": clean,
    "test": lambda arguments: _module("testing").test(arguments),
    "soak": lambda arguments: _module("testing").soak(arguments),
    "bench": lambda arguments: _module("benching").bench(arguments),
    "lock": lock,
    "docs": docs,
}


def main(argv: list[str]) -> int:
    """Runs one command; its exit code.

    An error is one line on stderr, with `--debug` before the command its traceback.
    """
    debug = argv[:1] == [DEBUG]
    argv = argv[debug:]
    if not argv or argv[0] not in COMMANDS:
        asked = " ".join(argv) or "no command"
        print(f"{asked}: one of {', '.join(COMMANDS)} is expected", file=sys.stderr)
        return 2
    for name in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, _end)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        return COMMANDS[argv[0]](argv[1:])
    except (MailsliceError, *UNEXPECTED) as error:
        if debug:
            raise
        is_own = isinstance(error, MailsliceError)
        print(f"{argv[0]}: {error if is_own else message_of_error(error)}", file=sys.stderr)
        return error.exit_code if isinstance(error, MailsliceError) else 1
    except KeyboardInterrupt:
        print(f"{argv[0]}: stopped", file=sys.stderr)
        return 130


def _end(number: int, _: object) -> None:
    """Unwinds as Ctrl-C does, so that what was started for this command alone is stopped."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
