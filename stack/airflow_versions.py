"""Airflow of other versions, each in a venv of its own: for tests of what mailslice supports."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST, BETWEEN = "3.1.8", "3.2.2"
"""The lines that are supported beside the pinned one; `pip` finds no later release of either."""
_PINNED = re.compile(
    r"^((?:cassandra-driver|great-expectations|matplotlib|numpy|obstore|pandas|pika|pyarrow|pyspark"
    r"|scipy)==\S+)",
    re.MULTILINE,
)
"""Large packages are the ones that the clone has already."""


def airflow_python(version: str, root: Path, cache: Path) -> Path:
    """The Python of a venv below `cache` with that Airflow and all that mailslice[airflow] needs.

    mailslice itself is not installed: PYTHONPATH names the tree that is tested. The first call
    downloads 400 MB. Raises CalledProcessError.
    """
    folder = cache / f"airflow-{version}"
    if not folder.exists():
        # Made beside its place and renamed: what has the name is whole.
        making = cache / f"airflow-{version}.{os.getpid()}"
        shutil.rmtree(making, ignore_errors=True)
        pins = cache / f"airflow-{version}.{os.getpid()}.txt"
        cache.mkdir(parents=True, exist_ok=True)
        found = _PINNED.findall((root / "requirements.txt").read_text(encoding="utf-8"))
        pins.write_text("\n".join(found), encoding="utf-8")
        uv = [str(Path(sys.executable).with_name("uv"))]
        try:
            subprocess.run([*uv, "venv", "-q", "--relocatable", str(making)], check=True)
            needed = [f"apache-airflow=={version}", "-r", "pyproject.toml", "--extra", "airflow"]
            install = [*uv, "pip", "install", "-q", "--python", str(making), *needed]
            subprocess.run([*install, "-c", str(pins)], cwd=root, check=True)
            making.rename(folder)
        except OSError:  # another process was first
            shutil.rmtree(making, ignore_errors=True)
        finally:
            pins.unlink(missing_ok=True)
    return folder / "bin" / "python"
