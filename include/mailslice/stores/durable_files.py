"""Files that a power cut leaves whole, or not there."""

import os
from pathlib import Path


def write_durably(target: Path, data: bytes, temporary: Path) -> None:
    """The file is on the disk when this returns. `temporary` is beside it, or in a folder of the
    same file system, and is nobody else's.
    """
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """A new name in a folder is on the disk only when the folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
