"""The services of a stack together: checks before, start, wait, settings file."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import psutil

from stack.cassandra import cassandra
from stack.mariadb import mariadb
from stack.program import CannotStart, Program
from stack.rabbitmq import PASSWORD, USER, rabbitmq
from stack.s3 import ACCESS_KEY, SECRET_KEY, s3
from stack.settings import Profile, StackSettings
from stack.supervise import Supervisor

# A program that listens on all addresses has our port, too.
_LOCAL_ADDRESSES = ("127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1")  # noqa: S104
"""Addresses that shut us out of 127.0.0.1; a node on 127.0.0.2 does not."""


def stores(stack: StackSettings) -> tuple[Program, ...]:
    """Writes the files of the three stores, and of MariaDB for Postal; gives their programs."""
    stack.state.mkdir(parents=True, exist_ok=True)
    is_tested = stack.profile is Profile.TEST
    databases = (mariadb(stack),) if is_tested or stack.sizes.mariadb else ()
    return (*rabbitmq(stack), cassandra(stack), s3(stack), *databases)


def store_settings(stack: StackSettings) -> dict[str, str]:
    """MAILSLICE_* of the three stores of this stack."""
    ports = stack.ports
    return {
        "MAILSLICE_CASSANDRA_CONTACT_POINTS": "127.0.0.1",
        "MAILSLICE_CASSANDRA_PORT": str(ports.cassandra_port),
        "MAILSLICE_RABBITMQ_URL": f"amqp://{USER}:{PASSWORD}@127.0.0.1:{ports.rabbitmq_port}/%2F",
        "MAILSLICE_RABBITMQ_MANAGEMENT_URL": (
            f"http://{USER}:{PASSWORD}@127.0.0.1:{ports.rabbitmq_management_port}"
        ),
        "MAILSLICE_S3_ENDPOINT": f"http://127.0.0.1:{ports.s3_port}",
        "MAILSLICE_S3_ACCESS_KEY": ACCESS_KEY,
        "MAILSLICE_S3_SECRET_KEY": SECRET_KEY,
        "MAILSLICE_S3_REGION": "us-east-1",
    }


def write_settings(stack: StackSettings, values: dict[str, str]) -> None:
    """The settings file of this stack, readable by its owner alone."""
    stack.settings_file.touch(mode=0o600)
    head = f"# of the local stack in {stack.state}; read when the environment names no store\n"
    stack.settings_file.write_text(
        head + "".join(f"{name}={value}\n" for name, value in values.items()), encoding="utf-8"
    )


def check_disk(stack: StackSettings) -> None:
    """Raises CannotStart when there is less room than the settings ask for.

    Called before anything is written: on a full disk every file would be cut off.
    """
    folder, free = free_mib(stack)
    if free < stack.sizes.disk_mib:
        raise CannotStart(
            f"{folder} has {free} MiB free, {stack.sizes.disk_mib} are needed. Remedy: make "
            f"room, or set {stack.variable('disk_mib')}"
        )


def free_mib(stack: StackSettings) -> tuple[Path, int]:
    """The state folder, or its nearest existing parent, and the free MiB of its disk."""
    folder = next(path for path in (stack.state, *stack.state.parents) if path.exists())
    return folder, shutil.disk_usage(folder).free // 2**20


def check_ports(
    stack: StackSettings,
    programs: Iterable[Program],
    listeners: Mapping[int, str] | None = None,
) -> None:
    """Raises CannotStart for the first port on which another program listens; names that program
    and the variable that changes the port.
    """
    listeners = listening_ports() if listeners is None else listeners
    for program in programs:
        for field in program.ports:
            port = getattr(stack.ports, field)
            if port in listeners:
                raise CannotStart(
                    f"port {port} of {program.name} is taken by {listeners[port]}. Remedy: end "
                    f"that, or set {stack.variable(field)} to a free port"
                )


def wait_healthy(
    stack: StackSettings,
    supervisor: Supervisor,
    programs: tuple[Program, ...],
    on_up: Callable[[str], None],
) -> None:
    """Returns when all answer; calls `on_up` for each as it comes up.

    Raises CannotStart with the last line of the log of one that does not.
    """
    deadline = time.monotonic() + stack.sizes.start_timeout
    waiting = {program.name: program for program in programs}
    while waiting:
        reasons: dict[str, str] = {}
        states = supervisor.states()
        for name, program in waiting.items():
            state = states.get(name)
            if state in ("FATAL", "EXITED"):
                raise CannotStart(_failed(stack, name, "ended by itself"))
            reason = program.healthy() if state == "RUNNING" else f"supervisor says {state}"
            if reason is None:
                on_up(name)
            else:
                reasons[name] = reason
        waiting = {name: waiting[name] for name in reasons}
        if waiting and time.monotonic() > deadline:
            name, reason = next(iter(reasons.items()))
            late = f"did not answer within {stack.sizes.start_timeout} s ({reason})"
            raise CannotStart(_failed(stack, name, late))
        time.sleep(0.3)


def _failed(stack: StackSettings, name: str, problem: str) -> str:
    log = stack.state / "log" / f"{name}.log"
    text = log.read_text(errors="replace") if log.is_file() else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    words = ("rror", "xception", "FATAL", "already")
    telling = [line for line in lines if any(word in line for word in words)] or lines
    last = telling[-1][:200] if telling else "it said nothing"
    return f"{name} {problem}: {last}. Remedy: see {log}"


def listening_ports() -> dict[int, str]:
    """The program that listens on each local TCP port."""
    listeners: dict[int, str] = {}
    for connection in psutil.net_connections(kind="tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr.ip in _LOCAL_ADDRESSES:
            listeners[connection.laddr.port] = _process(connection.pid)
    return listeners


def _process(pid: int | None) -> str:
    if pid is None:
        return "a process of another user"
    try:
        process = psutil.Process(pid)
        owner = process.environ().get("MAILSLICE_STACK_OWNER")
        return f"{process.name()} (pid {pid}{', the mailslice stack in ' + owner if owner else ''})"
    except psutil.Error:
        return f"pid {pid}"
