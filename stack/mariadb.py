"""MariaDB as one local process, for the tests of Postal: that of the machine, or Debian's,
unpacked once for all clones.

The packages are not installed: no service starts, no user is made. Root has no password, and the
server listens on loopback alone. It never waits for the disk: what it holds lives as long as a
test run.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from stack.bootstrap import locked
from stack.program import FILES, CannotStart, Program
from stack.settings import StackSettings

PACKAGES = ("mariadb-server-core", "mariadb-client-core")
"""The client's has my_print_defaults, without which no data folder is made."""
_PROTOCOL = 10
"""Protocol version: the fifth byte of a server's greeting, after the length."""
_SECONDS = 3.0
_REMEDY = "Remedy: apt-get update as root, or apt-get install -y " + " ".join(PACKAGES)


@dataclass(frozen=True, slots=True)
class Installation:
    """Where MariaDB's programs are; `libraries` is empty for those of the machine."""

    base: Path
    """The folder with bin, sbin and share."""
    libraries: tuple[Path, ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        """What its programs need to find their libraries."""
        folders = ":".join(map(str, self.libraries))
        return {"LD_LIBRARY_PATH": folders} if folders else {}

    def command(self, folder: Path, port: int, *options: str) -> tuple[str, ...]:
        """The server of an own data folder, which is made at the first start (2 s)."""
        arguments = [
            f"--basedir={self.base}",
            f"--lc-messages-dir={self.base / 'share' / 'mysql'}",
            f"--plugin-dir={self.base / 'lib' / 'mysql' / 'plugin'}",
            f"--port={port}",
            "--bind-address=127.0.0.1",
            "--socket=mariadb.sock",  # in the data folder: a longer path may be too long
            "--character-set-server=utf8mb4",
            "--innodb-flush-method=nosync",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-log-file-size=64M",
            "--innodb-buffer-pool-size=128M",
            *(["--user=root"] if os.geteuid() == 0 else []),
            *options,
        ]
        programs = self.base / "bin" / "mariadb-install-db", self.base / "sbin" / "mariadbd"
        script = str(FILES / "mariadb.sh")
        words = ("--no-defaults", *arguments)
        return ("sh", "-e", script, str(folder), *map(str, programs), *words)


def mariadb(stack: StackSettings) -> Program:
    """Writes the folder of MariaDB and gives its program. Raises CannotStart with the remedy."""
    installed = installation(stack.sizes.cache)
    folder = stack.state / "mariadb"
    folder.mkdir(parents=True, exist_ok=True)
    port = stack.ports.mariadb_port
    return Program(
        name="mariadb",
        command=installed.command(folder, port),
        environment=installed.environment,
        healthy=lambda: answers_mariadb(port),
        ports=("mariadb_port",),
        stop_seconds=20,
    )


def mariadb_setting(stack: StackSettings) -> dict[str, str]:
    """The variable by which the tests and benchmarks of Postal find the server."""
    return {"MAILSLICE_TEST_MARIADB_PORT": str(stack.ports.mariadb_port)}


def installation(cache: Path) -> Installation:
    """The machine's MariaDB, or the one below `cache`, fetched by apt when it is not there (10 MB).

    Raises CannotStart with the remedy.
    """
    server = shutil.which("mariadbd") or shutil.which("mariadbd", path="/usr/sbin")
    if server is not None and shutil.which("mariadb-install-db") is not None:
        return Installation(Path(server).resolve().parents[1])
    root = cache / f"mariadb-{platform.freedesktop_os_release().get('VERSION_CODENAME', 'debian')}"
    if not root.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with locked(cache / "mariadb.lock"):
            if not root.is_dir():
                _unpack(root)
    libraries = {file.parent for file in root.rglob("*.so.*")}
    return Installation(root / "usr", tuple(sorted(libraries)))


def answers_mariadb(port: int) -> str | None:
    """None when a MariaDB of this machine greets, else why not; no driver is imported for it."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_SECONDS) as connection:
            connection.settimeout(_SECONDS)
            greeting = connection.recv(5)
    except OSError as error:
        return f"127.0.0.1:{port}: {error}"
    if len(greeting) == 5 and greeting[4] == _PROTOCOL:
        return None
    return f"127.0.0.1:{port}: no greeting of MariaDB"


def missing(simulated: str) -> list[str]:
    """The packages that apt would install, by the output of `apt-get --simulate`."""
    return re.findall(r"^Inst (\S+)", simulated, re.MULTILINE)


def _unpack(root: Path) -> None:
    scratch = root.with_name(root.name + ".partial")
    shutil.rmtree(scratch, ignore_errors=True)
    packages = scratch / "packages"
    packages.mkdir(parents=True)
    try:
        simulated = _apt(
            "install", "--simulate", "--no-install-recommends", *PACKAGES, into=packages
        )
        _apt("download", *missing(simulated), into=packages)
        for package in sorted(packages.glob("*.deb")):
            _run("dpkg-deb", "-x", str(package), str(scratch / "root"), into=packages)
        (scratch / "root").rename(root)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _apt(*words: str, into: Path) -> str:
    """The output of apt-get. After a failure root updates the package lists, and tries again."""
    try:
        return _run("apt-get", "-q", *words, into=into)
    except CannotStart:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise
    _run("apt-get", "-q", "update", into=into)
    return _run("apt-get", "-q", *words, into=into)


def _run(*command: str, into: Path) -> str:
    try:
        done = subprocess.run(
            command, cwd=into, capture_output=True, text=True, check=False, timeout=300
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotStart(f"MariaDB: {command[0]}: {error}. {_REMEDY}") from None
    if done.returncode:
        words = " ".join(done.stderr.split())[-300:]
        raise CannotStart(f"MariaDB: {' '.join(command)} failed: {words}. {_REMEDY}")
    return done.stdout
