"""A stack as a whole: start it, stop it, remove it."""

from __future__ import annotations

import fcntl
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stack.airflow import airflow
from stack.cassandra import nodetool_setting
from stack.program import CannotStart, Program
from stack.services import (
    check_disk,
    check_ports,
    store_settings,
    stores,
    wait_healthy,
    write_settings,
)
from stack.settings import Profile, StackSettings
from stack.steps import Step, Steps
from stack.supervise import Supervisor

DEMO_WINDOW = "2s"
_STATE_ENTRIES = {
    "airflow",
    "artifacts",
    "cassandra",
    "log",
    "mail",
    "mariadb",
    "nodetool",
    "rabbitmq",
    "s3",
}
"""Entries that a stack makes in its folder, besides its settings file, before supervisord.conf,
which no other folder has."""
_REMOVALS = 5


def run_settings(stack: StackSettings) -> dict[str, str]:
    """MAILSLICE_* of the run stack: its stores, a slice window of seconds, its artifacts."""
    more = {
        "MAILSLICE_QUEUE_SLICE_WINDOW": DEMO_WINDOW,
        "MAILSLICE_ARTIFACTS": str(stack.state / "artifacts"),
    }
    return {**store_settings(stack), **nodetool_setting(stack), **more}


class Stack:
    """The services of a stack while a command starts them.

    A start that fails, or is interrupted, takes back what it started.
    """

    def __init__(
        self, stack: StackSettings, steps: Steps, settings: Mapping[str, str], *, with_airflow: bool
    ) -> None:
        _check_folder(stack)
        self._stack = stack
        self._steps = steps
        self._settings = settings
        self._supervisor = Supervisor(stack)
        self._stores = stores(stack)
        self._airflow = (airflow(stack, settings),) if with_airflow else ()
        self._started = False

    def start(self) -> None:
        """Starts all of it, unless it runs; waits for the stores alone, and writes the settings
        file.
        """
        with self._steps.step("Cassandra, RabbitMQ, S3") as step:
            programs = (*self._stores, *self._airflow)
            if not self._supervisor.runs(programs):
                self._supervisor.stop()
                check_disk(self._stack)
                check_ports(self._stack, programs)
                self._started = True
                self._wait(lambda: self._supervisor.start(programs))
            self._wait_for(self._stores, step)
        write_settings(self._stack, dict(self._settings))

    def wait_for_airflow(self) -> None:
        """Airflow takes longest: what needs only the stores is done while it starts."""
        with self._steps.step("Airflow") as step:
            self._wait_for(self._airflow, step)

    def _wait_for(self, programs: tuple[Program, ...], step: Step) -> None:
        up: list[str] = []

        def on_up(name: str) -> None:
            up.append(name)
            step.show(", ".join(up) + " up")

        self._wait(lambda: wait_healthy(self._stack, self._supervisor, programs, on_up))

    def _wait(self, action: Callable[[], None]) -> None:
        try:
            action()
        except BaseException:
            if self._started:
                self._supervisor.stop()
            raise


@contextmanager
def own_stores(
    stack: StackSettings,
    settings: Callable[[], Mapping[str, str]],
    end: Callable[[StackSettings], object],
) -> Iterator[Steps]:
    """The stores of a stack that begins empty, for one command at a time; ended by `end`.

    `settings` may write into the stack's folder.
    """
    steps = Steps()
    with one_at_a_time(stack):
        remove(stack)
        check_disk(stack)
        Stack(stack, steps, settings(), with_airflow=False).start()
        try:
            yield steps
        finally:
            end(stack)


def stop(stack: StackSettings) -> int:
    """Ends what this stack started, and nothing else. Gives the number of processes."""
    count = Supervisor(stack).stop()
    if stack.profile is Profile.TEST:
        stack.settings_file.unlink(missing_ok=True)
    return count


def remove(stack: StackSettings) -> None:
    """Stops the stack and removes its folder.

    Raises CannotStart when that is somebody else's, or something of it cannot be removed.
    """
    _check_folder(stack)
    stop(stack)
    folder, failed = stack.state.resolve(), list[str]()

    def note(_: object, path: str, raised: Any) -> None:
        failed.append(f"{path}: {getattr(raised[1], 'strerror', None) or raised[1]}")

    for _ in range(_REMOVALS):
        failed.clear()
        shutil.rmtree(folder, onerror=note)
        stays = folder.exists() and (folder.is_mount() or stack.state.is_symlink())
        if not folder.exists() or (stays and not any(folder.iterdir())):
            break
        time.sleep(0.3)  # an ended process may have written until now
    else:
        raise CannotStart(
            f"{stack.state}, which belongs to {_owner(stack.state)}, could not be removed "
            f"({failed[0] if failed else 'something writes there'}). "
            "Remedy: let its owner do it, or sudo make clean"
        )
    if stack.state.is_symlink():
        folder.mkdir(exist_ok=True)  # a link to nothing would be in the way of the next start


def _owner(path: Path) -> str:
    try:
        return path.owner()
    except KeyError:
        return f"user {path.stat().st_uid}"


def _check_folder(stack: StackSettings) -> None:
    if not stack.state.is_dir() or (stack.state / "supervisord.conf").is_file():
        return
    foreign = sorted(
        path.name
        for path in stack.state.iterdir()
        if path.name not in {*_STATE_ENTRIES, "settings.env"}
    )
    if foreign:
        raise CannotStart(
            f"{stack.variable('state')}={str(stack.state)!r} holds {foreign[0]!r}, which no stack "
            "of mailslice put there, and `make clean` would remove it. "
            "Remedy: name an empty or a new folder"
        )


def check_room(stack: StackSettings) -> None:
    """As `check_disk`, for a stack that does not run: a running one has what it needs."""
    if not Supervisor(stack).alive():
        check_disk(stack)


@contextmanager
def one_at_a_time(stack: StackSettings) -> Iterator[None]:
    """Refuses a second command on the same stack while one is at work."""
    stack.state.parent.mkdir(parents=True, exist_ok=True)
    lock = Path(f"{stack.state}.lock")
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CannotStart(
                f"another command is at work on the stack in {stack.state} (it holds {lock}). "
                "Remedy: wait for it, or end it"
            ) from None
        yield


def at_work(stack: StackSettings) -> bool:
    """Whether a command holds the stack now."""
    try:
        with one_at_a_time(stack):
            return False
    except CannotStart:
        return True
