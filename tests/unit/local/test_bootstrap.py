"""The first half of `make setup`, without its effects."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from mailslice.local import bootstrap
from mailslice.local.bootstrap import SetupError


def test_it_imports_the_standard_library_alone() -> None:
    tree = ast.parse(Path(bootstrap.__file__).read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names


def test_without_root_the_one_line_that_installs_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "missing_packages", lambda: ["openjdk-17-jdk-headless", "rabbitmq-server"])
    monkeypatch.setattr(bootstrap.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(bootstrap.shutil, "which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(SetupError, match=r"sudo apt-get install -y --no-install-recommends openjdk-17-jdk-headless rabbitmq-server$"):
        bootstrap.system_packages()


def test_root_installs_what_is_missing_and_looks_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
    monkeypatch.setattr(bootstrap.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 100 * 2**20})())
    with pytest.raises(SetupError, match=r"has 100 MiB free, 4096 are needed\. Remedy: make room, or set MAILSLICE_STACK_DISK_MIB"):
        bootstrap.check_disk(4096)


def test_a_failed_download_says_the_last_line_and_where_the_rest_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bootstrap, "LOG", tmp_path / "log")
    with pytest.raises(SetupError) as raised:
        bootstrap._run([sys.executable, "-c", "print('noise'); print('no route to host'); raise SystemExit(1)"], "uv cannot be downloaded", "check the network")
    assert str(raised.value) == f"uv cannot be downloaded (no route to host). Remedy: check the network; all of it: {tmp_path}/log"


def test_uv_is_installed_from_the_pins_with_their_hashes() -> None:
    lines = bootstrap._requirement("uv").splitlines()
    assert lines[0].startswith("uv==")
    assert len(lines) > 2
    assert all(line.strip().startswith(("--hash=sha256:", "#")) for line in lines[1:])


def test_a_python_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap.sys, "version_info", (3, 10, 4))
    with pytest.raises(SetupError, match=r"Python 3\.10\.4 is too old, 3\.11 is needed"):
        bootstrap.check_python()
