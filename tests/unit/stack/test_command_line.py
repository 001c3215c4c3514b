"""Commands as child processes: past the proxies, and with their exit codes."""

import stat
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from stack import benching, command_line, james_bench, postal_bench
from stack.command_line import CommandLine
from stack.program import past_proxies
from stack.settings import Profile, stack_settings
from stack.steps import Steps


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of `mailslice`: prints what it was told about proxies, and ends with the code that
    it was given.
    """
    file = tmp_path / "mailslice"
    code = (
        "import json, os, sys; print(json.dumps({name: os.environ.get(name) for name in "
        "('no_proxy', 'NO_PROXY')})); sys.exit(int(sys.argv[1]))"
    )
    file.write_text(f"#!{sys.executable}\n{code}\n", encoding="utf-8")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(command_line.sys, "executable", str(tmp_path / "python"))


@pytest.mark.usefixtures("program")
@pytest.mark.parametrize("code", [0, 3])
def test_show_gives_the_code_back(code: int) -> None:
    assert CommandLine({}).show(str(code)) == code


@pytest.mark.usefixtures("program")
def test_loopback_is_asked_past_a_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    wanted = {"no_proxy": "127.0.0.1,localhost", "NO_PROXY": "127.0.0.1,localhost"}
    assert CommandLine({}).one("0") == wanted


@pytest.mark.parametrize(
    ("environ", "hosts"),
    [
        ({}, "127.0.0.1,localhost"),
        ({"no_proxy": "intern, localhost"}, "intern,localhost,127.0.0.1"),
        ({"NO_PROXY": "*"}, "*"),
        ({"NO_PROXY": "a", "no_proxy": "b"}, "b,a,127.0.0.1,localhost"),
    ],
)
def test_what_the_environment_names_itself_stays(environ: dict[str, str], hosts: str) -> None:
    assert past_proxies(environ) == {"NO_PROXY": hosts, "no_proxy": hosts}


@pytest.mark.parametrize(
    ("code", "arguments", "written"),
    [
        (0, [], True),
        (4, [], False),
        (0, ["hotpath"], False),
        (0, ["all", "--part", "marks"], False),
        (0, ["all", "--part", "marks", "--write", "docs/performance.md"], True),
    ],
)
def test_a_benchmark_that_failed_fails_and_writes_no_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, arguments: list[str], written: bool
) -> None:
    pages: list[Path] = []
    commands: list[tuple[str, ...]] = []

    stack = stack_settings(
        Profile.TEST, {"MAILSLICE_STACK_TEST_STATE": str(tmp_path / "state")}, tmp_path
    )
    monkeypatch.setattr(benching, "stack_settings", lambda _: stack)
    monkeypatch.setattr(benching, "own_stores", lambda *_: nullcontext(Steps()))
    server = tmp_path / "server.json"
    server.write_text('{"name": "untuned", "endpoint": "http://127.0.0.1:1"}')
    # Once: keytool refuses to make the servers' keys again.
    servers = iter([[server]])
    monkeypatch.setattr(benching, "s3_servers", lambda _: next(servers))
    monkeypatch.setattr(CommandLine, "show", lambda _, *words: commands.append(words) or code)
    monkeypatch.setattr(benching, "write_pages", pages.append)
    postal: list[int] = []
    james: list[str] = []
    monkeypatch.setattr(
        james_bench, "bench_james", lambda _, server, *__: james.append(server.name) or 0
    )
    monkeypatch.setattr(postal_bench, "bench_postal", lambda port, *_: postal.append(port) or 0)
    assert benching.bench(arguments) == code
    assert postal == ([] if arguments else [stack.ports.mariadb_port])
    assert james == ([] if arguments else ["untuned"])
    assert bool(pages) is written
    assert ("--server" in commands[0]) is (commands[0][1] != "hotpath")
