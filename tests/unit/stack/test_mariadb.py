"""MariaDB of the test stack: what is fetched, what is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stack.mariadb import Installation, installation, missing
from stack.program import CannotStart
from stack.services import stores
from stack.settings import Profile, stack_settings

SIMULATED = """\
Reading package lists...
Inst libaio1 (0.3.113-4 Debian:12.15/oldstable [amd64])
Inst mariadb-server-core (1:10.11.19-0+deb12u1 Debian-Security:12/oldstable-security [amd64])
Conf libaio1 (0.3.113-4 Debian:12.15/oldstable [amd64])
"""


def _program(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr("stack.mariadb.shutil.which", _which(folder))
    return folder


def _which(folder: Path):
    def which(name: str, path: str | None = None) -> str | None:
        return str(folder / name) if path is None and (folder / name).exists() else None

    return which


def test_what_an_installation_would_bring_is_fetched() -> None:
    assert missing(SIMULATED) == ["libaio1", "mariadb-server-core"]
    assert missing("Reading package lists...\n") == []


def test_the_packages_are_unpacked_once_and_not_installed(bin_folder: Path, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    _program(
        bin_folder,
        "apt-get",
        f'echo "$@" >>{calls}\n'
        'case "$*" in *simulate*) echo "Inst libaio1 (1)"; echo "Inst mariadb-server-core (2)";; '
        "*download*) touch libaio1.deb mariadb-server-core.deb;; esac",
    )
    _program(
        bin_folder,
        "dpkg-deb",
        "mkdir -p $3/usr/lib/here $3/usr/sbin\ntouch $3/usr/lib/here/libaio.so.1",
    )
    cache = tmp_path / "cache"
    first = installation(cache)
    assert installation(cache) == first
    (root,) = cache.glob("mariadb-*/usr")
    assert first == Installation(root, (root / "lib" / "here",))
    assert first.environment == {"LD_LIBRARY_PATH": str(root / "lib" / "here")}
    assert calls.read_text().splitlines() == [
        "-q install --simulate --no-install-recommends mariadb-server-core mariadb-client-core",
        "-q download libaio1 mariadb-server-core",
    ]
    assert not list(cache.glob("*.partial"))


def test_without_the_package_the_remedy_is_told(
    bin_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    _program(bin_folder, "apt-get", "echo E: Unable to locate package >&2; exit 100")
    with pytest.raises(CannotStart, match=r"Unable to locate package\. Remedy: apt-get update"):
        installation(tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("mariadb-*"))


def test_root_lets_apt_look_for_packages_where_it_knows_none(
    bin_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    calls = tmp_path / "calls"
    _program(bin_folder, "apt-get", f'echo "$@" >>{calls}; [ "$2" = update ]')
    with pytest.raises(CannotStart):
        installation(tmp_path / "cache")
    assert [line.split()[1] for line in calls.read_text().splitlines()] == [
        "install",
        "update",
        "install",
    ]


def test_an_installed_server_is_used_as_it_is(bin_folder: Path, tmp_path: Path) -> None:
    for name in ("mariadbd", "mariadb-install-db"):
        _program(bin_folder, name, "exit 1")
    assert installation(tmp_path / "cache") == Installation(tmp_path)
    assert not (tmp_path / "cache").exists()


def test_a_data_folder_is_made_once_and_one_that_was_cut_off_again(tmp_path: Path) -> None:
    _program(tmp_path / "bin", "mariadb-install-db", "\n".join(_INSTALLER))
    _program(tmp_path / "sbin", "mariadbd", 'echo server "$@"')
    folder = tmp_path / "state"
    (folder / "data.partial" / "half").mkdir(parents=True)
    command = Installation(tmp_path).command(folder, 1234, "--more")
    for _ in range(2):
        said = os.popen(" ".join(command)).read()
        assert said.split()[0] == "server"
        assert {"--port=1234", "--more", f"--datadir={folder}/data"} <= set(said.split())
    assert [path.name for path in (folder / "data").iterdir()] == ["mysql"]
    assert (tmp_path / "installed").read_text() == "1\n"


_INSTALLER = (
    'for each in "$@"; do case $each in --datadir=*) mkdir -p ${each#*=}/mysql;; esac; done',
    'echo 1 >>"$(dirname "$0")/../installed"',
)


@pytest.mark.parametrize(
    ("profile", "environ", "expected"),
    [
        (Profile.TEST, {}, True),
        (Profile.RUN, {}, False),
        (Profile.RUN, {"MAILSLICE_STACK_MARIADB": "true"}, True),
    ],
)
def test_the_tests_have_one_and_the_demo_where_it_is_asked_for(
    bin_folder: Path, tmp_path: Path, profile: Profile, environ: dict[str, str], expected: bool
) -> None:
    for name in ("mariadbd", "mariadb-install-db"):
        _program(bin_folder, name, "exit 1")
    _program(bin_folder, "epmd", "exit 1")
    states = {f"MAILSLICE_STACK_{name}STATE": str(tmp_path / "s") for name in ("", "TEST_")}
    stack = stack_settings(profile, {**states, **environ})
    assert ("mariadb" in [program.name for program in stores(stack)]) is expected
