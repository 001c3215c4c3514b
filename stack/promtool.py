"""Prometheus' promtool for tests: that of the machine, or Debian's, unpacked once for all clones.

The package is not installed: no service starts, and no user is made.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from stack.program import CannotStart

_CACHE = Path.home() / ".cache" / "mailslice" / "promtool"


def promtool(cache: Path = _CACHE) -> Path:
    """The program. Raises CannotStart where neither the machine nor apt has it."""
    if installed := shutil.which("promtool"):
        return Path(installed)
    program = cache / "usr" / "bin" / "promtool"
    if not program.is_file():
        _unpack(cache)
    return program


def _unpack(cache: Path) -> None:
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent) as text:
        folder = Path(text)
        folder.chmod(0o755)
        _run(["apt-get", "download", "prometheus"], folder)
        (package,) = folder.glob("prometheus_*.deb")
        _run(["dpkg-deb", "-x", str(package), str(folder / "unpacked")], folder)
        unpacked = folder / "unpacked" / "usr" / "bin" / "promtool"
        target = cache / "usr" / "bin" / "promtool"
        target.parent.mkdir(parents=True, exist_ok=True)
        unpacked.replace(target)


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=120
        )
    except FileNotFoundError as error:
        raise CannotStart(
            f"promtool: {command[0]} is not here. Remedy: install promtool"
        ) from error
    if done.returncode:
        words = " ".join(done.stderr.split())[-300:]
        raise CannotStart(
            f"promtool: {' '.join(command)} failed: {words}. Remedy: apt-get update, or install "
            "promtool"
        )
