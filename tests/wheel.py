"""Builds sdist and wheel from a copy of their sources, and installs the wheel into environments of
a user without a clone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

from mailslice.model.settings import clone_root
from stack.bootstrap import network_of_pip

SOURCES = ("pyproject.toml", "README.md", "LICENSE", "NOTICE", "include", "dags", "jobs")
UV = Path(sys.executable).with_name("uv")
NOBODY = 65534


def _python() -> tuple[Path, int | None]:
    """The interpreter, and the user id of commands: for root `nobody`, if all may run Python."""
    minor = f"python3.{sys.version_info.minor}"
    if os.geteuid() == 0:
        for name in (sys.executable, f"/usr/bin/{minor}", f"/usr/local/bin/{minor}"):
            path = Path(name).resolve()
            if path.exists() and all(one.stat().st_mode & 1 for one in (path, *path.parents)):
                return path, NOBODY
    return Path(sys.executable), None


PYTHON, USER = _python()


@dataclass(frozen=True, slots=True)
class Built:
    """The results of a build."""

    sdist: Path
    wheel: Path

    def files(self) -> set[str]:
        """Names of the wheel's files."""
        with ZipFile(self.wheel) as archive:
            return set(archive.namelist())

    def text(self, suffix: str) -> str:
        """The text of the only file in the wheel whose name ends with `suffix`."""
        [name] = [name for name in self.files() if name.endswith(suffix)]
        with ZipFile(self.wheel) as archive:
            return archive.read(name).decode("utf-8")


def build(folder: Path) -> Built:
    """Builds the sdist, and the wheel from it, in a copy: setuptools writes beside its sources."""
    root, source = clone_root(), folder / "source"
    source.mkdir()
    for name in SOURCES:
        if (root / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(root / name, source / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy2(root / name, source / name)
    target = folder / "dist"
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", target, source],
        check=True,
        capture_output=True,
        timeout=240,
    )
    [sdist], [wheel] = target.glob("*.tar.gz"), target.glob("*.whl")
    return Built(sdist, wheel)


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment with the wheel, for a user with an empty home who may not write to the
    environment.
    """

    venv: Path
    home: Path
    user: int | None = USER
    """User id of the commands; None is the present user."""

    def environ(self, settings: Mapping[str, str]) -> dict[str, str]:
        """The commands' environment: of the caller's it has only the network variables."""
        past = {name: os.environ[name] for name in ("NO_PROXY", "no_proxy") if name in os.environ}
        return {
            **past,
            "PATH": f"{self.venv}/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "LC_ALL": "C.UTF-8",
            **settings,
        }

    def run(
        self, *words: object, settings: Mapping[str, str], code: int = 0, timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command of this environment in the user's home. Its exit code must be `code`."""
        done = subprocess.run(
            [self.venv / "bin" / str(words[0]), *map(str, words[1:])],
            cwd=self.home,
            env=self.environ(settings),
            user=self.user,
            group=self.user,
            extra_groups=None if self.user is None else [],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == code, (
            f"{words}: exit {done.returncode}, not {code}\n{done.stdout[-3000:]}\n"
            f"{done.stderr[-6000:]}"
        )
        return done


@contextmanager
def installed(
    wheel: Path, extras: str = "", resolution: str = "highest", pinned: bool = True
) -> Iterator[Installed]:
    """A new environment with `mailslice[extras]` from this wheel and the pins of requirements.txt,
    unless `pinned` is False. uv takes packages of `make setup` from its cache.
    """
    with tempfile.TemporaryDirectory(prefix="mailslice-wheel-") as folder:
        root = Path(folder)
        root.chmod(0o755)
        there = Installed(root / "venv", root / "home")
        environ = {**os.environ, **network_of_pip(sys.executable)}
        words = [UV, "venv", "--quiet", "--python", PYTHON, there.venv]
        subprocess.run(words, check=True, env=environ, timeout=120)
        command: list[object] = [UV, "pip", "install", "--quiet", "--python", there.venv]
        command += ["--compile-bytecode"]  # as pip does; the user cannot write bytecode
        if pinned:
            command += ["--constraints", clone_root() / "requirements.txt"]
        command += ["--resolution", resolution]
        command.append(f"mailslice[{extras}] @ {wheel.as_uri()}" if extras else wheel)
        # Offline first: packages in the cache need no network.
        offline = subprocess.run(
            [*map(str, command), "--offline"], capture_output=True, env=environ, check=False
        )
        if offline.returncode:
            subprocess.run([*map(str, command)], check=True, env=environ, timeout=1500)
        there.home.mkdir()
        if there.user is not None:
            os.chown(there.home, there.user, there.user)
        yield there
