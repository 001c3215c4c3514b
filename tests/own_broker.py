"""A RabbitMQ node for one test, which may put the node into alarm, kill it and start it again:
nobody else uses it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mailslice.model.settings import RabbitSettings
from stack.program import Program
from stack.rabbitmq import rabbitmq
from stack.settings import Profile, stack_settings
from tests.ports import free_ports

_PORTS = ("RABBITMQ_PORT", "RABBITMQ_MANAGEMENT_PORT", "RABBITMQ_DIST_PORT", "EPMD_PORT")
_LONGEST_START = 180.0


class Broker:
    """One node and its port mapper (epmd), with a folder of their own."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self._programs = rabbitmq(stack_settings(Profile.TEST, environ))
        self._log = (folder / "out.log").open("ab")
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        port = environ["MAILSLICE_STACK_TEST_RABBITMQ_PORT"]
        self.settings = RabbitSettings.model_validate(
            {"url": f"amqp://guest:guest@127.0.0.1:{port}/%2F", "timeout": "4s"}
        )
        port = environ["MAILSLICE_STACK_TEST_RABBITMQ_MANAGEMENT_PORT"]
        self.management_url = f"http://guest:guest@127.0.0.1:{port}"

    def start(self) -> None:
        for program in self._programs:
            if program.name not in self._running:
                self._running[program.name] = self._begin(program)
        broker = self._programs[-1]
        deadline = time.monotonic() + _LONGEST_START
        while broker.healthy() is not None:
            assert time.monotonic() < deadline
            time.sleep(0.5)

    def _begin(self, program: Program) -> subprocess.Popen[bytes]:
        environ = {**os.environ, **program.environment}
        return subprocess.Popen(
            program.command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def kill(self, name: str = "rabbitmq") -> None:
        process = self._running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def control(self, *words: str) -> None:
        program = self._programs[-1]
        node = program.environment["RABBITMQ_NODENAME"]
        *enter, server = program.command
        control = str(Path(server).with_name("rabbitmqctl"))
        environ = {**os.environ, **program.environment}
        del environ["RABBITMQ_DIST_PORT"], environ["RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS"]
        subprocess.run(
            [*enter, control, "-n", node, *words],
            env=environ,
            check=True,
            capture_output=True,
            timeout=60,
        )

    def close(self) -> None:
        for name in list(self._running):
            self.kill(name)
        self._log.close()


@contextmanager
def own_broker(folder: Path, release: str = "") -> Iterator[Broker]:
    """Starts a broker with its data in `folder`: the installed version, or that of a release of
    Debian. Skips the test if RabbitMQ is not installed.
    """
    if shutil.which("epmd") is None:
        pytest.skip("RabbitMQ is not installed")
    ports = {
        f"MAILSLICE_STACK_TEST_{name}": str(port)
        for name, port in zip(_PORTS, free_ports(len(_PORTS)), strict=True)
    }
    ports["MAILSLICE_STACK_RABBITMQ_RELEASE"] = release
    broker = Broker(folder, {**os.environ, **ports, "MAILSLICE_STACK_TEST_STATE": str(folder)})
    try:
        broker.start()
        yield broker
    finally:
        broker.close()
