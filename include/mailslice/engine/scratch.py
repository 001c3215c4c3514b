"""Folders of one process below the temporary folder, of its user alone."""

import os
import shutil
import tempfile
from pathlib import Path


def scratch_folder(name: str, *, is_only: bool = False) -> Path:
    """A new folder NAME-PID-*, which the caller removes; those of killed processes go now.
    `is_only`: this process has no other. One with its id is of a container's last start.
    """
    parent = Path(tempfile.gettempdir())
    for old in parent.glob(f"{name}-*-*"):
        pid = old.name.rsplit("-", 2)[-2]
        is_gone = not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists()
        if pid.isdigit() and (is_gone or (is_only and int(pid) == os.getpid())):
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{name}-{os.getpid()}-"))
