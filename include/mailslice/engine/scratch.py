"""Temporary folders of one process, for its user alone."""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path


def scratch_folder(name: str) -> Path:
    """Create a folder NAME.*, which the caller removes; remove those of killed processes.

    A process locks its folders until it ends. A process id means nothing in another container.
    """
    for old in Path(tempfile.gettempdir()).glob(f"{name}.*"):
        with suppress(OSError):  # its process lives or removed it, or it is another user's
            descriptor = os.open(old, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(old)
            finally:
                os.close(descriptor)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{name}."))
        with suppress(FileNotFoundError):  # another process took it for a killed one's
            fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX)
            if folder.exists():
                return folder
