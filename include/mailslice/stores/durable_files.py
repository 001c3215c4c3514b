"""Files that are complete or absent after a power cut."""

import os
from pathlib import Path


def write_durably(target: Path, data: bytes, temporary: Path) -> None:
    """The file is on the disk when this returns. `temporary` is a path on the same file system
    that no other process uses.
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
    """Syncs the folder: only then are new names in it on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
