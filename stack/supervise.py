"""Runs the services by supervisor (PyPI). Ends only processes that this stack started.

Every process below supervisor carries MAILSLICE_STACK_OWNER=<state folder> in its environment. A
process that outlived a killed supervisor, or detached itself from it (Airflow's children), is found
by that mark alone. SPT_NOENV keeps Airflow's processes from writing their
titles over it.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from stack.program import CannotStart, Program, filled
from stack.settings import StackSettings

OWNER = "MAILSLICE_STACK_OWNER"
_OTHERS = ("MAILSLICE_", "AIRFLOW", "RABBITMQ_", "CASSANDRA_", "SPARK_", "PYSPARK_")
"""Variables of the caller that would change what our services do."""
_LONGEST_SOCKET = 100
"""Linux allows 107 bytes; supervisor adds its pid while it binds."""


class Supervisor:
    """The supervisor of one stack."""

    def __init__(self, stack: StackSettings) -> None:
        self._stack = stack
        self._configuration = stack.state / "supervisord.conf"
        self._socket = _socket(stack.state)

    def start(self, programs: tuple[Program, ...]) -> None:
        """Starts the programs; what an earlier, killed supervisor left behind is ended first."""
        self.end_orphans()
        (self._stack.state / "log").mkdir(parents=True, exist_ok=True)
        self._configuration.write_text(self._text(programs), encoding="utf-8")
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(_OTHERS)
        }
        done = subprocess.run(
            [sys.executable, "-m", "supervisor.supervisord", "-c", str(self._configuration)],
            capture_output=True,
            text=True,
            check=False,
            env={**environment, OWNER: str(self._stack.state), "SPT_NOENV": "1"},
        )
        if done.returncode:
            raise CannotStart(
                f"supervisor did not start: {(done.stdout + done.stderr).strip()[-300:]}. Remedy: "
                f"see {self._stack.state}/log/supervisord.log"
            )

    def runs(self, programs: tuple[Program, ...]) -> bool:
        """Whether exactly these programs, with these commands and settings, are what supervisor
        runs now.
        """
        file = self._configuration
        if not file.is_file() or file.read_text(encoding="utf-8") != self._text(programs):
            return False
        states = self.states()
        return all(states.get(program.name) in ("RUNNING", "STARTING") for program in programs)

    def alive(self) -> bool:
        """Whether this stack's supervisor runs."""
        return self._call("pid").returncode == 0

    def states(self) -> Mapping[str, str]:
        """State of each program as supervisor names it: RUNNING, STARTING, BACKOFF, FATAL, EXITED,
        STOPPED.
        """
        words = (line.split() for line in self._call("status").stdout.splitlines())
        return {line[0].split(":")[-1]: line[1] for line in words if len(line) > 1}

    def stop(self) -> int:
        """Ends supervisor and everything that carries this stack's mark. Gives how many processes
        there were.

        Raises CannotStart when it runs as another user: then nothing of it can be ended, or even be
        seen.
        """
        self._refuse_anothers()
        count = len(self.owned())
        if (pid := self._call("pid")).returncode == 0:
            self._call("shutdown")
            with suppress(psutil.Error):
                psutil.Process(int(pid.stdout)).wait(timeout=90)
        self.end_orphans()
        return count

    def owned(self) -> list[psutil.Process]:
        """Every process that carries this stack's mark."""
        state = str(self._stack.state)
        processes = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.pid != os.getpid() and process.environ().get(OWNER) == state:
                    processes.append(process)
        return processes

    def end_orphans(self) -> None:
        """Sends TERM, then KILL after 15 s, to every process with this stack's mark."""
        processes = self.owned()
        for end, seconds in ((psutil.Process.terminate, 15), (psutil.Process.kill, 5)):
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    end(process)
            _, processes = psutil.wait_procs(processes, timeout=seconds)

    def _refuse_anothers(self) -> None:
        try:
            pid = (self._stack.state / "supervisord.pid").read_text(encoding="utf-8")
            process = psutil.Process(int(pid))
            user, is_own = process.uids().real, str(self._configuration) in process.cmdline()
        except (OSError, ValueError, psutil.Error):
            return
        if is_own and os.geteuid() not in (0, user):
            raise CannotStart(
                f"the stack in {self._stack.state} runs as {process.username()} (pid "
                f"{process.pid}). Remedy: make stop as that user"
            )

    def _call(self, *words: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-m", "supervisor.supervisorctl"]
        command = [*program, "-c", str(self._configuration), *words]
        if not self._configuration.is_file() or not self._socket.exists():
            return subprocess.CompletedProcess(command, returncode=1, stdout="", stderr="")
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def _text(self, programs: tuple[Program, ...]) -> str:
        state = _escaped(self._stack.state)
        sections = [
            filled(
                "supervisord.conf",
                state=state,
                profile=self._stack.profile.value,
                owner=f"{OWNER}={_quoted(str(self._stack.state))}",
                socket=_escaped(self._socket),
            )
        ]
        for program in programs:
            variables = (f"{name}={_quoted(value)}" for name, value in program.environment.items())
            sections.append(
                filled(
                    "supervisord.program.conf",
                    name=program.name,
                    command=_escaped(shlex.join(program.command)),
                    environment=",".join(variables),
                    priority=program.priority,
                    stop_seconds=program.stop_seconds,
                    state=state,
                )
            )
        return "".join(sections)


def _escaped(value: object) -> str:
    return str(value).replace("%", "%%")


def _quoted(value: str) -> str:
    """The value in quotes of the kind that it does not contain: supervisor cannot escape quotes."""
    quote = '"' if '"' not in value else "'"
    if quote in value or "\n" in value:
        raise CannotStart(
            f"supervisor cannot pass on {value!r}: it holds both kinds of quotes, or a line end. "
            "Remedy: move the clone to a plain path"
        )
    return f"{quote}{_escaped(value)}{quote}"


def _socket(state: Path) -> Path:
    near = state / "supervisor.sock"
    if len(str(near).encode()) <= _LONGEST_SOCKET:
        return near
    digest = hashlib.sha256(str(state).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"mailslice-{os.getuid()}-{digest}.sock"
