"""Airflow of other versions, each in a venv of its own: for tests of what mailslice supports."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from stack.bootstrap import locked, network_of_pip
from stack.program import CannotStart

OLDEST, BETWEEN = "3.1.8", "3.2.2"
"""The last releases of the two lines that are supported beside the pinned one."""
_INPUTS = ("pyproject.toml", "requirements.txt")
_SPARK = re.compile(r"^(?:py4j|pyspark)==\S+", re.MULTILINE)
"""Installed as pinned, but left out of the resolution: pyspark is an sdist. uv would load 317 MB
and build a wheel, to learn that it needs py4j.
"""


def airflow_python(version: str, root: Path, cache: Path) -> Path:
    """The Python of a venv below `cache` with that Airflow and all that mailslice[airflow] needs.

    The other packages are those of requirements.txt wherever that Airflow allows them: uv's cache
    has them since `make setup`. mailslice itself is not installed: PYTHONPATH names the tree that
    is tested. Raises CannotStart with the remedy.
    """
    digest = hashlib.sha256(sys.version.encode())
    for name in _INPUTS:
        digest.update((root / name).read_bytes())
    folder = cache / f"airflow-{version}-{digest.hexdigest()[:12]}"
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache / f"airflow-{version}.lock"):
        if not folder.is_dir():
            # Made under another name, then renamed: a folder with this name is complete.
            scratch = cache / f"airflow-{version}.partial"
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir()
            _install(version, root, scratch).rename(folder)
            shutil.rmtree(scratch)
    return folder / "bin" / "python"


def _install(version: str, root: Path, scratch: Path) -> Path:
    """Makes a venv in `scratch`. It can be moved."""
    venv, asked, without = scratch / "venv", scratch / "asked.txt", scratch / "without.txt"
    pins, spark = scratch / "pins.txt", scratch / "spark.txt"
    pinned = (root / "requirements.txt").read_text(encoding="utf-8")
    asked.write_text(f"apache-airflow=={version}\n", encoding="utf-8")
    without.write_text("pyspark\n", encoding="utf-8")
    pins.write_text(pinned, encoding="utf-8")  # uv prefers what the output has
    spark.write_text("\n".join(_SPARK.findall(pinned)), encoding="utf-8")
    environ = {**os.environ, **network_of_pip(sys.executable)}
    project = ["pyproject.toml", "--extra=airflow", f"--constraints={asked}"]
    resolve = [*project, f"--excludes={without}", f"--python={sys.executable}"]
    for words in (
        ("venv", "--relocatable", f"--python={sys.executable}", str(venv)),
        ("pip", "compile", *resolve, f"--output-file={pins}"),
        ("pip", "sync", f"--python={venv}", str(pins), str(spark)),
    ):
        uv = [str(Path(sys.executable).with_name("uv")), "--quiet", *words]
        done = subprocess.run(
            uv, cwd=root, env=environ, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise CannotStart(
                f"Airflow {version} cannot be installed ({' '.join(done.stderr.split())[-500:]}). "
                "Remedy: check the network or the proxy settings, then try again"
            )
    return venv
