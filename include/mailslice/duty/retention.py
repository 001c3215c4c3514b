"""Old runs are pruned by the report step; the ledger's rows go by their own TTL."""

from __future__ import annotations

from collections.abc import Container
from datetime import datetime, timedelta

from mailslice.duty.artifacts import Artifacts, queue_folder

_PRUNED = "pruned.txt"
"""Beside the runs: when they were last looked through."""
_PARTS = 90


def prune_sometimes(place: Artifacts, duty: str, queue: str, now: datetime, retention: timedelta, *, keep: Container[str] = ()) -> list[str]:
    """As `prune`, a ninetieth of the retention after the last time at the earliest: a duty that runs every 15 minutes has thousands of folders to look at."""
    marker = f"{queue_folder(duty, queue)}/{_PRUNED}"
    last = place.read(marker)
    if last is not None and now - datetime.fromisoformat(last.decode()) < retention / _PARTS:
        return []
    gone = prune(place, duty, queue, now - retention, keep)
    place.write(marker, now.isoformat().encode())
    return gone


def prune(place: Artifacts, duty: str, queue: str, before: datetime, keep: Container[str] = ()) -> list[str]:
    """Remove the folders of this duty's runs on this queue whose files are all older than `before`; the runs removed.

    Runs in `keep` stay: their plans hold the ids of deleted marks that still wait for a proof.
    """
    from pyarrow import fs

    parent = queue_folder(duty, queue)
    gone = []
    for run in place.folders(parent):
        if run in keep:
            continue
        found = place.filesystem.get_file_info(fs.FileSelector(place.path(f"{parent}/{run}"), recursive=True, allow_not_found=True))
        times = [info.mtime for info in found if info.type == fs.FileType.File and info.mtime is not None]
        if times and max(times) < before:
            place.remove_folder(f"{parent}/{run}")
            gone.append(run)
    return gone
