"""The sdist and the wheel, built as `make package` builds them, of a copy of what they need."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import pytest

from mailslice.model.settings import clone_root

SOURCES = ("pyproject.toml", "README.md", "LICENSE", "NOTICE", "include", "dags", "jobs")


@dataclass(frozen=True, slots=True)
class Built:
    """What a build gave."""

    sdist: Path
    wheel: Path

    def files(self) -> set[str]:
        """Names of the wheel's files."""
        with ZipFile(self.wheel) as archive:
            return set(archive.namelist())

    def text(self, suffix: str) -> str:
        """The one file of the wheel whose name ends so."""
        [name] = [name for name in self.files() if name.endswith(suffix)]
        with ZipFile(self.wheel) as archive:
            return archive.read(name).decode("utf-8")


def build(folder: Path) -> Built:
    """Sdist, and the wheel from it. In a copy: setuptools writes beside what it reads."""
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


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    return build(tmp_path_factory.mktemp("package"))
