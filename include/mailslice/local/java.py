"""Which Java runs the stack and Spark: one of version 17, wherever Debian, Ubuntu or JAVA_HOME keep it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from mailslice.local.problems import CannotStart

VERSION = "17"


@cache
def java() -> Path:
    """The `java` of version 17. Raises CannotStart when there is none."""
    for candidate in _candidates():
        if candidate.is_file() and _version(candidate) == VERSION:
            return candidate
    raise CannotStart(
        f"no Java {VERSION} was found (looked at JAVA_HOME, PATH and /usr/lib/jvm). Remedy: apt-get install -y openjdk-17-jre-headless"
    )


def java_home() -> Path:
    """JAVA_HOME of `java()`."""
    return java().resolve().parent.parent


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    yield from sorted(Path("/usr/lib/jvm").glob(f"*{VERSION}*/bin/java"))
    if found := shutil.which("java"):
        yield Path(found)


def _version(candidate: Path) -> str | None:
    done = subprocess.run(
        [str(candidate), "-XshowSettings:properties", "-version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    for line in done.stderr.splitlines():
        if "java.specification.version" in line:
            return line.partition("=")[2].strip()
    return None
