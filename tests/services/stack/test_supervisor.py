"""supervisor on this machine, with small programs: what it starts, what it ends, and what it leaves
alone.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from stack.program import CannotStart, Program, answers_http
from stack.services import check_ports, wait_healthy
from stack.settings import Profile, StackSettings, stack_settings
from stack.supervise import OWNER, Supervisor
from tests.ports import free_port

_SERVER = (
    "import os, subprocess, sys, http.server\n"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], "
    "start_new_session=True)\n"
    "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), "
    "http.server.SimpleHTTPRequestHandler).serve_forever()\n"
)
"""A server with a child in a session of its own, as Airflow and Spark have them: signals to the
group do not reach it.
"""


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[StackSettings]:
    port = free_port()
    stack = stack_settings(
        Profile.RUN,
        {"MAILSLICE_STACK_STATE": str(tmp_path / "state"), "MAILSLICE_STACK_S3_PORT": str(port)},
        tmp_path,
    )
    stack.state.mkdir()
    yield stack
    Supervisor(stack).stop()


def _programs(stack: StackSettings) -> tuple[Program, ...]:
    port, script = stack.ports.s3_port, stack.root / "server.py"
    script.write_text(_SERVER, encoding="utf-8")
    return (
        Program(
            "web",
            (sys.executable, str(script), str(port)),
            {},
            lambda: answers_http(f"http://127.0.0.1:{port}/"),
            ports=("s3_port",),
            stop_seconds=5,
        ),
    )


def _start(stack: StackSettings) -> Supervisor:
    supervisor, up = Supervisor(stack), list[str]()
    supervisor.start(_programs(stack))
    wait_healthy(stack, supervisor, _programs(stack), up.append)
    assert up == ["web"]
    return supervisor


def _within(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def test_stop_ends_the_server_its_detached_child_and_supervisor(stack: StackSettings) -> None:
    supervisor = _start(stack)
    assert len(supervisor.owned()) == 3
    assert supervisor.stop() == 3
    assert supervisor.owned() == []
    check_ports(stack, _programs(stack))


def test_a_process_of_somebody_else_is_left_alone(stack: StackSettings, tmp_path: Path) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", _SERVER, "0"], env={OWNER: str(tmp_path / "other")}
    )
    plain = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        _start(stack).stop()
        assert (other.poll(), plain.poll()) == (None, None)
    finally:
        for process in (*psutil.Process(other.pid).children(), other, plain):
            process.kill()
        other.wait()
        plain.wait()


def test_a_stack_of_another_user_is_said_instead_of_nothing_ran(
    stack: StackSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = _start(stack)
    with monkeypatch.context() as somebody:
        somebody.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(
            CannotStart,
            match=(
                rf"the stack in {stack.state} runs as \S+ \(pid \d+\)\. Remedy: make stop as "
                r"that user"
            ),
        ):
            supervisor.stop()
    assert supervisor.alive()


def test_after_a_killed_supervisor_the_next_start_takes_over(stack: StackSettings) -> None:
    supervisor = _start(stack)
    killed = int((stack.state / "supervisord.pid").read_text())
    psutil.Process(killed).kill()
    assert _within(10, lambda: not supervisor.alive())
    left = supervisor.owned()
    assert len(left) == 2
    again = _start(stack)
    assert not any(process.is_running() and process in left for process in again.owned())
    assert len(again.owned()) == 3


def test_what_runs_is_told_from_what_would_run_with_other_settings(stack: StackSettings) -> None:
    supervisor, programs = _start(stack), _programs(stack)
    assert supervisor.runs(programs)
    assert not supervisor.runs((replace(programs[0], environment={"A": "another value"}),))
    supervisor.stop()
    assert not supervisor.runs(programs)


def test_a_server_that_dies_is_started_again(stack: StackSettings) -> None:
    supervisor = _start(stack)
    [server] = [
        process for process in supervisor.owned() if str(stack.ports.s3_port) in process.cmdline()
    ]
    server.kill()
    server.wait()
    assert _within(20, lambda: _programs(stack)[0].healthy() is None)


def test_a_program_that_cannot_start_is_said_with_its_last_words(stack: StackSettings) -> None:
    program = Program(
        "web",
        (sys.executable, "-c", "raise SystemExit('Error: no such colour')"),
        {},
        lambda: "refused",
    )
    supervisor = Supervisor(stack)
    supervisor.start((program,))
    with pytest.raises(CannotStart, match=r"web ended by itself: Error: no such colour"):
        wait_healthy(stack, supervisor, (program,), lambda _: None)


def test_a_taken_port_names_the_process_and_the_stack_it_belongs_to(
    stack: StackSettings, tmp_path: Path
) -> None:
    supervisor = _start(stack)
    other = stack_settings(
        Profile.RUN, {"MAILSLICE_STACK_S3_PORT": str(stack.ports.s3_port)}, tmp_path
    )
    with pytest.raises(CannotStart) as raised:
        check_ports(other, _programs(other))
    assert f"the mailslice stack in {stack.state}" in str(raised.value)
    assert "set MAILSLICE_STACK_S3_PORT to a free port" in str(raised.value)
    assert supervisor.alive()
