"""The first half of `make setup`, without its effects."""

import ast
import errno
import subprocess
import sys
from pathlib import Path

import pytest

from stack import __main__ as commands
from stack import bootstrap
from stack.bootstrap import SetupError


def test_it_imports_the_standard_library_alone() -> None:
    tree = ast.parse(Path(bootstrap.__file__).read_text(encoding="utf-8"))
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names


def test_without_root_the_one_line_that_installs_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        bootstrap, "missing_packages", lambda: ["openjdk-17-jdk-headless", "rabbitmq-server"]
    )
    monkeypatch.setattr(bootstrap.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(bootstrap.shutil, "which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(
        SetupError,
        match=(
            r"sudo apt-get install -y --no-install-recommends openjdk-17-jdk-headless "
            r"rabbitmq-server$"
        ),
    ):
        bootstrap.system_packages()


def test_root_installs_what_is_missing_and_looks_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    missing = [["rabbitmq-server"], []]
    ran: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(bootstrap, "missing_packages", lambda: missing.pop(0))
    monkeypatch.setattr(bootstrap.os, "geteuid", lambda: 0)
    monkeypatch.setattr(bootstrap.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(bootstrap.subprocess, "run", run)
    monkeypatch.setattr(bootstrap, "LOG", tmp_path / "log")
    assert bootstrap.system_packages() == "installed rabbitmq-server"
    assert [command[:2] for command in ran] == [["apt-get", "update"], ["apt-get", "install"]]
    assert ran[1][-1] == "rabbitmq-server"


def test_nothing_missing_calls_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "missing_packages", list)
    monkeypatch.setattr(bootstrap.subprocess, "run", None)
    assert bootstrap.system_packages() == "there"


def test_a_full_disk_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        bootstrap.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 100 * 2**20})()
    )
    with pytest.raises(
        SetupError,
        match=(
            r"has 100 MiB free, 4096 are needed\. Remedy: make room, or set "
            r"MAILSLICE_STACK_DISK_MIB"
        ),
    ):
        bootstrap.check_disk(4096)


def test_a_failed_download_says_the_last_line_and_where_the_rest_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bootstrap, "LOG", tmp_path / "log")
    with pytest.raises(SetupError) as raised:
        bootstrap._run(
            [
                sys.executable,
                "-c",
                "print('noise'); print('no route to host'); raise SystemExit(1)",
            ],
            "uv cannot be downloaded",
            "check the network",
        )
    assert str(raised.value) == (
        "uv cannot be downloaded (no route to host). Remedy: check the network; all of "
        f"it: {tmp_path}/log"
    )


@pytest.mark.parametrize("given", ["abc", "-1", "4096.5", "٣"])
def test_room_that_is_no_number_is_named_before_anything_is_installed(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("MAILSLICE_STACK_DISK_MIB", given)
    with pytest.raises(SetupError) as raised:
        bootstrap._required_mib()
    assert str(raised.value) == (
        f"MAILSLICE_STACK_DISK_MIB={given!r} (in the environment): allowed is a whole number of MiB"
    )


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            PermissionError(
                errno.EACCES, "Permission denied", str(bootstrap.ROOT / "docs" / "adr")
            ),
            f"sudo chown -R somebody {bootstrap.ROOT}/docs",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "/proc/x/y"),
            "/proc belongs to root, and this is somebody: run it as that user, or name another",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device", "/a/b"),
            "/a/b: No space left on device. Remedy: make room on that disk",
        ),
        (
            IsADirectoryError(errno.EISDIR, "Is a directory", b"/a/\xfc"),
            "Is a directory. Remedy: look at that path",
        ),
        (
            subprocess.TimeoutExpired(["java", "-version"], 60),
            "java did not end within 60 s. Remedy: look why",
        ),
        (
            ValueError("not a\nnumber"),
            (
                "ValueError: not a number. Remedy: the same command with DEBUG=1 shows where it "
                "comes from"
            ),
        ),
    ],
)
def test_what_a_machine_may_do_is_one_line_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, error: Exception, says: str
) -> None:
    monkeypatch.setattr(bootstrap.os, "geteuid", lambda: 12345)
    monkeypatch.setattr(bootstrap, "user_name", lambda uid: "somebody" if uid == 12345 else "root")
    said = bootstrap.message_of_error(error)
    assert says in said
    assert "\n" not in said


@pytest.mark.parametrize("words", [["run"], ["--debug", "run"]])
def test_both_halves_say_it_in_one_line_unless_asked_for_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    def fail(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", "/proc/x")

    monkeypatch.setitem(commands.COMMANDS, "run", fail)
    monkeypatch.setattr(commands.signal, "signal", lambda *_: None)
    monkeypatch.setattr(bootstrap, "check_python", fail)
    for main, name in ((commands.main, "run"), (bootstrap.main, "setup")):
        if "--debug" in words:
            with pytest.raises(PermissionError):
                main(words)
        else:
            assert main(words) == 1
            [line] = capsys.readouterr().err.splitlines()
            assert line.startswith(f"{name}: /proc/x: Permission denied. Remedy: ")


def test_uv_is_installed_from_the_pins_with_their_hashes() -> None:
    lines = bootstrap._requirement("uv").splitlines()
    assert lines[0].startswith("uv==")
    assert len(lines) > 2
    assert all(line.strip().startswith(("--hash=sha256:", "#")) for line in lines[1:])


def test_a_python_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap.sys, "version_info", (3, 10, 4))
    with pytest.raises(SetupError, match=r"Python 3\.10\.4 is too old, 3\.11 is needed"):
        bootstrap.check_python()


def test_a_browser_that_is_there_is_not_installed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert bootstrap.browser() == "there"
