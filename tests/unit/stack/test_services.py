from pathlib import Path

import pytest

from mailslice.model.settings import load_settings, read_env_file
from stack import services
from stack.program import CannotStart, Program
from stack.settings import Profile, StackSettings, stack_settings


@pytest.fixture
def stack(tmp_path: Path) -> StackSettings:
    return stack_settings(Profile.RUN, {"MAILSLICE_STACK_STATE": str(tmp_path / "state")}, tmp_path)


def _program(name: str, healthy: str | None = None) -> Program:
    return Program(name, ("true",), {}, lambda: healthy, ports=("s3_port",))


class _Supervisor:
    def __init__(self, *states: dict[str, str]) -> None:
        self._states = list(states)

    def states(self) -> dict[str, str]:
        return self._states.pop(0) if len(self._states) > 1 else self._states[0]


def test_a_taken_port_is_named_with_its_holder_and_the_variable(
    stack: StackSettings,
) -> None:
    listeners = {stack.ports.s3_port: "nginx (pid 4)"}
    with pytest.raises(CannotStart) as raised:
        services.check_ports(stack, [_program("s3")], listeners)
    assert str(raised.value) == (
        "port 17090 of s3 is taken by nginx (pid 4). Remedy: end that, or set "
        "MAILSLICE_STACK_S3_PORT to a free port"
    )


def test_free_ports_pass(stack: StackSettings) -> None:
    services.check_ports(stack, [_program("s3")], {1: "init (pid 1)"})


def test_too_little_disk_is_named(stack: StackSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        services.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 5 * 2**20})()
    )
    with pytest.raises(CannotStart, match=r"has 5 MiB free, 4096 are needed"):
        services.check_disk(stack)


def test_the_settings_file_is_what_the_command_line_reads(stack: StackSettings) -> None:
    stack.state.mkdir(parents=True)
    services.write_settings(stack, services.store_settings(stack))
    read = load_settings({}, state_file=stack.settings_file)
    assert read.cassandra.port == stack.ports.cassandra_port
    assert read.s3.endpoint == f"http://127.0.0.1:{stack.ports.s3_port}"
    assert read_env_file(stack.settings_file) == services.store_settings(stack)
    assert stack.settings_file.stat().st_mode & 0o077 == 0


def test_waiting_ends_when_all_answer_and_tells_each(stack: StackSettings) -> None:
    up: list[str] = []
    supervisor = _Supervisor({"a": "STARTING", "b": "RUNNING"}, {"a": "RUNNING", "b": "RUNNING"})
    programs = (_program("a"), _program("b"))
    services.wait_healthy(stack, supervisor, programs, up.append)  # type: ignore[arg-type]
    assert up == ["b", "a"]


def test_a_service_that_ended_is_said_with_the_telling_line_of_its_log(
    stack: StackSettings,
) -> None:
    log = stack.state / "log" / "s3.log"
    log.parent.mkdir(parents=True)
    log.write_text("starting\njava.lang.OutOfMemoryError: heap\nbye\n")
    with pytest.raises(
        CannotStart,
        match=rf"s3 ended by itself: java\.lang\.OutOfMemoryError: heap\. Remedy: see {log}",
    ):
        services.wait_healthy(
            stack, _Supervisor({"s3": "FATAL"}), (_program("s3"),), lambda _: None
        )  # type: ignore[arg-type]


def test_a_service_that_never_answers_is_given_up(
    stack: StackSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter(range(0, 10_000, 100))
    monkeypatch.setattr(services.time, "monotonic", lambda: next(times))
    with pytest.raises(CannotStart, match=r"s3 did not answer within 180 s \(refused\)"):
        services.wait_healthy(
            stack,
            _Supervisor({"s3": "RUNNING"}),
            (_program("s3", healthy="refused"),),
            lambda _: None,
        )  # type: ignore[arg-type]
