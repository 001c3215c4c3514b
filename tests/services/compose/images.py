"""Builds the stages of docker/Dockerfile in folders: runs their COPY and RUN lines here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from mailslice.model.settings import clone_root
from tests.unit.compose.stages import Stage, stages

ROOT = clone_root()
STAGES = stages((ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Builder:
    """The folders that stand for `/src`, `/wheel` and `/opt/venv` of the stages."""

    folder: Path
    bytecode: bool = False
    """Whether to compile packages to bytecode, as the images do; slow."""

    @property
    def venv(self) -> Path:
        return self.folder / "venv"

    @property
    def path(self) -> str:
        return f"{self.venv}/bin:/usr/local/bin:/usr/bin:/bin"

    def build(self, name: str) -> None:
        """Runs a stage and those before it. Uses this machine's uv, which has the same version."""
        for stage in (*self._before(name), STAGES[name]):
            for line in stage.lines:
                if line.startswith("COPY "):
                    self._copy(line.split()[1:-1])
                elif line.startswith("RUN ") and "pip install --no-cache-dir uv==" not in line:
                    self._run(line.removeprefix("RUN "))

    def _before(self, name: str) -> list[Stage]:
        base = STAGES[name].base
        return [] if base in ("python", "java") else [*self._before(base), STAGES[base]]

    def _copy(self, sources: list[str]) -> None:
        target = self.folder / "src"
        target.mkdir(parents=True, exist_ok=True)
        for source in sources:
            if (ROOT / source).is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
                shutil.copytree(ROOT / source, target / source, ignore=ignored)
            else:
                shutil.copy(ROOT / source, target / source)

    def _run(self, command: str) -> None:
        for place, here in (
            ("/usr/local/bin/python", sys.executable),
            ("/opt/venv", str(self.venv)),
            ("/wheel", str(self.folder / "wheel")),
            (" --no-cache", ""),  # use this machine's cache, which has most packages
        ):
            command = command.replace(place, here)
        env = {**os.environ, "VIRTUAL_ENV": str(self.venv)}
        env["UV_COMPILE_BYTECODE"] = "1" if self.bytecode else "0"
        env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
        done = subprocess.run(
            ["bash", "-euc", command],
            cwd=self.folder / "src",
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def mebibytes(self) -> int:
        """The size of the installed packages by `du`."""
        done = subprocess.run(["du", "-sm", self.venv], capture_output=True, text=True, check=True)
        return int(done.stdout.split()[0])
