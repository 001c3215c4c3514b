import configparser
from pathlib import Path

import pytest
from supervisor.options import ServerOptions

from stack.program import CannotStart, Program
from stack.settings import Profile, StackSettings, stack_settings
from stack.supervise import OWNER, Supervisor


def _stack(state: Path) -> StackSettings:
    return stack_settings(Profile.RUN, {"MAILSLICE_STACK_STATE": str(state)}, state)


def _program(command: tuple[str, ...], environment: dict[str, str]) -> Program:
    return Program("thing", command, environment, lambda: None, stop_seconds=7)


def _read(text: str, tmp_path: Path) -> ServerOptions:
    (tmp_path / "log").mkdir(exist_ok=True)
    file = tmp_path / "supervisord.conf"
    file.write_text(text, encoding="utf-8")
    options = ServerOptions()
    options.realize(["-c", str(file)])
    return options


def test_supervisor_reads_commands_and_values_as_they_were_given(tmp_path: Path) -> None:
    environment = {"JSON": '{"a": "b,c"}', "PERCENT": "100% of %(x)s", "SPACES": "two words; here"}
    text = Supervisor(_stack(tmp_path))._text(
        (_program(("/bin/my java", "-D=a b", "100%"), environment),)
    )
    [group] = _read(text, tmp_path).process_group_configs
    [process] = group.process_configs
    assert {name: process.environment[name] for name in environment} == environment
    assert process.command == "'/bin/my java' '-D=a b' 100%"
    assert (process.stopasgroup, process.killasgroup, process.stopwaitsecs) == (True, True, 7)


def test_every_process_carries_the_mark_of_its_stack(tmp_path: Path) -> None:
    options = _read(Supervisor(_stack(tmp_path))._text(()), tmp_path)
    assert options.configroot.supervisord.environment == {OWNER: str(tmp_path), "SPT_NOENV": "1"}


def test_a_long_path_gets_a_short_socket(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    read = configparser.RawConfigParser()
    read.read_string(Supervisor(_stack(deep))._text(()))
    socket = read["unix_http_server"]["file"]
    assert len(socket) < 100
    assert read["supervisorctl"]["serverurl"] == "unix://" + socket
    other = configparser.RawConfigParser()
    other.read_string(Supervisor(_stack(tmp_path / ("e" * 120)))._text(()))
    assert other["unix_http_server"]["file"] != socket


def test_a_value_that_supervisor_cannot_take_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="both kinds of quotes"):
        Supervisor(_stack(tmp_path))._text((_program(("x",), {"A": "'\""}),))


def test_nothing_is_alive_in_a_folder_that_was_never_started(tmp_path: Path) -> None:
    supervisor = Supervisor(_stack(tmp_path))
    assert not supervisor.alive()
    assert supervisor.states() == {}
    assert supervisor.owned() == []
