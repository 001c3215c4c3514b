"""`make setup`, first half: system packages, `.venv`, Python packages. Standard library alone, run
by the system's Python as a script.

Each step is skipped when its inputs are as they were the last time. The second half (`python -m
stack setup`) brings the Java parts.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import importlib.util
import io
import os
import pwd
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
LOG = ROOT / ".state" / "setup.log"
JDK = "openjdk-17-jdk-headless"
RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
OLDEST = (3, 11)
BROWSER = ("chromium", "fonts-dejavu-core")
"""Packages that only the browser tests of the cockpit need (`make soak`)."""
DEBUG, WITH_BROWSER = "--debug", "--browser"


class SetupError(Exception):
    """One line: the cause, then the remedy."""


UNEXPECTED = (OSError, subprocess.SubprocessError, ValueError)
"""Errors that any step may meet: a folder of another user, a full disk, a program that hangs, a
malformed number.
"""


def main(argv: list[str]) -> int:
    """Runs the steps; returns the exit code. `--debug`: errors have a traceback. `--browser`:
    installs Chromium, too.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8
    try:
        check_python()
        LOG.parent.mkdir(parents=True, exist_ok=True)
        with locked(LOG.parent / "setup.lock"):
            _step("system packages", system_packages)
            if WITH_BROWSER in argv:
                _step("browser", browser)
            _step("Python packages", python_packages)
    except (SetupError, *UNEXPECTED) as error:
        if DEBUG in argv and not isinstance(error, SetupError):
            raise
        print(
            f"setup: {error if isinstance(error, SetupError) else message_of_error(error)}",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("setup: stopped; make setup goes on where it was", file=sys.stderr)
        return 130
    return 0


def message_of_error(error: Exception) -> str:
    """One of UNEXPECTED in one line: the path or the program, what is wrong with it, and the
    remedy.
    """
    if isinstance(error, OSError) and error.filename is not None:
        path = Path(os.fsdecode(error.filename))
        return f"{path}: {error.strerror or error}. Remedy: {_remedy(error, path)}"
    if isinstance(error, subprocess.TimeoutExpired):
        words = [error.cmd] if isinstance(error.cmd, str) else [str(word) for word in error.cmd]
        return (
            f"{words[0]} did not end within {error.timeout:g} s. Remedy: look why (network, "
            "disk, a busy machine), then try again"
        )
    return (
        f"{' '.join(f'{type(error).__name__}: {error}'.split())}. Remedy: the same command "
        "with DEBUG=1 shows where it comes from"
    )


def _remedy(error: OSError, path: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "make room on that disk"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        existing = next(
            (folder for folder in (path, *path.parents) if os.path.lexists(folder)), path
        )
        me = user_name(os.geteuid())
        # The owner of all of .state or .venv is to change. Files outside of the clone stay.
        inside = existing.relative_to(ROOT).parts[:1] if existing.is_relative_to(ROOT) else None
        chown = f"sudo chown -R {me} {ROOT.joinpath(*inside)}" if inside is not None else None
        whose = f"{existing} belongs to {_owner(existing)}, and this is {me}"
        return f"{whose}: run it as that user, or {chown or 'name another place'}"
    return "look at that path; the same command with DEBUG=1 shows what wanted it"


def _owner(path: Path) -> str:
    try:
        return user_name(path.lstat().st_uid)
    except OSError:
        return "another user"


def user_name(uid: int) -> str:
    """The name of a user; the number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def check_python() -> None:
    """Raises when this Python is too old."""
    if sys.version_info < OLDEST:
        version = ".".join(map(str, sys.version_info[:3]))
        raise SetupError(
            f"Python {version} is too old, 3.11 is needed. Remedy: apt-get install -y python3.11 "
            "python3.11-venv, or make PYTHON=/path/to/python3.11"
        )


def missing_packages() -> list[str]:
    """Debian packages whose programs are not there."""
    has_rabbitmq = RABBITMQ.is_file() and shutil.which("epmd")
    has_venv = (VENV / "bin" / "python").exists() or importlib.util.find_spec("ensurepip")
    present = {
        JDK: java_17(),
        "rabbitmq-server": has_rabbitmq,
        f"python3.{sys.version_info.minor}-venv": has_venv,
    }
    return [package for package, program in present.items() if not program]


def system_packages() -> str:
    """Installs what is missing when root; otherwise raises with the one line that does."""
    return _installed(missing_packages)


def browser() -> str:
    """As `system_packages`: Debian's Chromium."""
    return _installed(lambda: [] if shutil.which(BROWSER[0]) else [*BROWSER])


def _installed(look: Callable[[], list[str]]) -> str:
    packages = look()
    if not packages:
        return "there"
    line = f"apt-get install -y --no-install-recommends {' '.join(packages)}"
    if shutil.which("apt-get") is None:
        raise SetupError(
            f"{', '.join(packages)}: not installed, and there is no apt-get here. Remedy: install "
            "them by this system's own means"
        )
    if os.geteuid() != 0:
        raise SetupError(f"{', '.join(packages)}: not installed. Remedy: sudo {line}")
    check_disk(1024)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    network = "check the network"
    update = ["apt-get", "update", "-q"]
    _run(update, "the package lists cannot be updated", network, environment, fatal=False)
    failure = f"{', '.join(packages)} cannot be installed"
    _run(line.split(), failure, f"{network}, then {line}", environment)
    missing = look()
    if missing:
        raise SetupError(
            f"{', '.join(missing)}: still not found after apt-get. Remedy: {line}, and look at its "
            "output"
        )
    return "installed " + ", ".join(packages)


def python_packages() -> str:
    """`.venv` with what requirements.txt pins, and mailslice itself, editable."""
    stamp, key = VENV / "mailslice.stamp", _key()
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == key:
        return "there"
    check_disk(_required_mib())
    stamp.unlink(missing_ok=True)
    if not _venv_works():
        make = [sys.executable, "-m", "venv", "--clear", str(VENV)]
        _run(make, ".venv cannot be made", "see the log")
    network = "check the network or the proxy settings, then make setup"
    python, uv = str(VENV / "bin" / "python"), str(VENV / "bin" / "uv")
    pinned = ROOT / ".state" / "uv.txt"
    pinned.write_text(_requirement("uv"), encoding="utf-8")
    if _output([uv, "--version"]).split()[1:2] != _requirement("uv").split()[0].split("==")[1:]:
        quiet = ["-q", "--disable-pip-version-check", "--require-hashes"]
        pip = [python, "-m", "pip", "install", *quiet, "-r", str(pinned)]
        _run(pip, "uv cannot be downloaded", network)
    environment = {**os.environ, **network_of_pip(python), "VIRTUAL_ENV": str(VENV)}
    pinned_all = [uv, "pip", "install", "--require-hashes", "-r", str(ROOT / "requirements.txt")]
    _run(pinned_all, "the Python packages cannot be downloaded", network, environment)
    editable = [uv, "pip", "install", "--no-deps", "--no-build-isolation", "-e", str(ROOT)]
    _run(editable, "mailslice cannot be installed into .venv", "see the log", environment)
    stamp.write_text(key, encoding="utf-8")
    return "installed"


def check_disk(mib: int) -> None:
    """Raises when the clone's disk has less room."""
    free = shutil.disk_usage(ROOT).free // 2**20
    if free < mib:
        raise SetupError(
            f"{ROOT} has {free} MiB free, {mib} are needed. Remedy: make room, or set "
            "MAILSLICE_STACK_DISK_MIB"
        )


def _required_mib() -> int:
    value = os.environ.get("MAILSLICE_STACK_DISK_MIB") or "4096"
    if not re.fullmatch(r"\d{1,12}", value, re.ASCII):
        raise SetupError(
            f"MAILSLICE_STACK_DISK_MIB={value!r} (in the environment): allowed is a whole number "
            "of MiB"
        )
    return int(value)


def java_17() -> Path | None:
    """A `java` of version 17, wherever JAVA_HOME, Debian or PATH have it."""
    candidates = [*sorted(Path("/usr/lib/jvm").glob("*17*/bin/java"))]
    if home := os.environ.get("JAVA_HOME"):
        candidates.insert(0, Path(home) / "bin" / "java")
    if found := shutil.which("java"):
        candidates.append(Path(found))
    for java in candidates:
        if java.is_file():
            command = [str(java), "-version"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            if re.search(r'version "17[."]', done.stderr):
                return java
    return None


def _key() -> str:
    digest = hashlib.sha256(f"{ROOT} {sys.version_info[:2]}".encode())
    for name in ("requirements.txt", "pyproject.toml", "stack/bootstrap.py"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def _output(command: list[str]) -> str:
    """What a program prints; nothing when it fails, or is not there."""
    if not Path(command[0]).exists():
        return ""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def _venv_works() -> bool:
    code = "import sys, pip; print(sys.prefix, sys.version_info[0], sys.version_info[1])"
    words = _output([str(VENV / "bin" / "python"), "-c", code]).split()
    return words == [str(VENV), *map(str, sys.version_info[:2])]


def _requirement(name: str) -> str:
    """The lines of one package in requirements.txt, with its hashes."""
    text = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    match = re.search(rf"^{name}==(?:.*\\\n)*.*\n", text, re.MULTILINE)
    if match is None:
        raise SetupError(f"requirements.txt does not pin {name}. Remedy: make lock")
    return match.group()


def network_of_pip(python: str) -> dict[str, str]:
    """Index and authority of pip's configuration, in uv's variables; uv's own go first."""
    listed = _output([python, "-m", "pip", "config", "list"])
    options = dict(
        re.findall(r"^(?:global|user|site|:env:)\.([a-z-]+)='(.*)'$", listed, re.MULTILINE)
    )
    variables = {"UV_DEFAULT_INDEX": options.get("index-url"), "SSL_CERT_FILE": options.get("cert")}
    return {name: value for name, value in variables.items() if value and not os.environ.get(name)}


def _run(
    command: list[str],
    failure: str,
    remedy: str,
    environment: dict[str, str] | None = None,
    *,
    fatal: bool = True,
) -> None:
    with LOG.open("a", encoding="utf-8") as log:
        log.write(f"$ {' '.join(command)}\n")
        log.flush()
        streams: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": log,
            "stderr": subprocess.STDOUT,
        }
        done = subprocess.run(command, **streams, env=environment, cwd=ROOT, check=False)
    if done.returncode and fatal:
        last = LOG.read_text(errors="replace").rstrip().rpartition("\n")[2].strip()
        raise SetupError(f"{failure} ({last[:200]}). Remedy: {remedy}; all of it: {LOG}")


def _step(name: str, action: Callable[[], str]) -> None:
    start = time.monotonic()
    print(f"  … {name}", end="\r" if sys.stdout.isatty() else "\n", flush=True)
    result = action()
    print(f"  ✓ {name}: {result} ({time.monotonic() - start:.1f} s)", flush=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Waits for the lock of this file, which other processes may hold."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
