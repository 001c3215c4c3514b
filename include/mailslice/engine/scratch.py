"""Folders of one process below the temporary folder, of its user alone."""

import os
import shutil
import tempfile
from pathlib import Path


def scratch_folder(name: str) -> Path:
    """A new folder NAME-PID-*, which the caller removes; those of killed processes go now."""
    parent = Path(tempfile.gettempdir())
    for old in parent.glob(f"{name}-*-*"):
        pid = old.name.rsplit("-", 2)[-2]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{name}-{os.getpid()}-"))
