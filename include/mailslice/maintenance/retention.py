"""The report step prunes old runs and their Data Docs, and deleted mails whose time is over.

Own rows end by their TTL; in MariaDB the report step deletes those that ended.
"""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import PurePosixPath

from mailslice.admin.deletions.packs import DELETED_PREFIX, expire
from mailslice.checks.data_docs import DOCS_FOLDER, ENTRIES, GATES, VALIDATIONS
from mailslice.maintenance.artifacts import Artifacts, queue_folder
from mailslice.model.settings import Settings
from mailslice.stores import Stores, has_cassandra

_PRUNED = "pruned.txt"
"""Beside the runs, and beside Data Docs: when they were last looked through."""
_PRUNINGS_A_RETENTION = 90
_AT_ONCE = 8
_EXPIRY_EVERY = timedelta(hours=1)


def prune_sometimes(
    artifacts: Artifacts, duty: str, queue: str, now: datetime, retention: timedelta
) -> list[str]:
    """Prune at most every ninetieth of the retention; the runs that were removed.

    A duty that runs every 15 minutes has thousands of folders to list. All duties share Data Docs.
    """
    removed: list[str] = []
    runs = queue_folder(duty, queue)
    if _is_time(artifacts, runs, now, retention):
        removed = prune(artifacts, duty, queue, now - retention)
        _record_pruning(artifacts, runs, now)
    if _is_time(artifacts, DOCS_FOLDER, now, retention):
        prune_docs(artifacts, now - retention)
        _record_pruning(artifacts, DOCS_FOLDER, now)
    return removed


def expire_sometimes(
    artifacts: Artifacts, settings: Settings, stores: Stores, now: datetime
) -> int:
    """Delete the kept mails whose time is over, once an hour at most; how many objects went."""
    folder = DELETED_PREFIX.rstrip("/")
    if not has_cassandra(settings) or not _is_due(artifacts, folder, now, _EXPIRY_EVERY):
        return 0
    expired = expire(stores.own_blobs, now)
    _record_pruning(artifacts, folder, now)
    return expired


def prune(artifacts: Artifacts, duty: str, queue: str, before: datetime) -> list[str]:
    """Remove this duty's runs on this queue whose files are all older than `before`."""
    parent = queue_folder(duty, queue)
    removed = []
    for run in artifacts.folders(parent):
        times = artifacts.times(f"{parent}/{run}").values()
        if times and max(times) < before:
            artifacts.remove_folder(f"{parent}/{run}")
            removed.append(run)
    return removed


def prune_docs(artifacts: Artifacts, before: datetime) -> None:
    """Remove pages, index entries and validations of gates of days before that of `before`.

    Safe beside other prunings and gates that add pages. Styles and pages of suites stay.
    """
    day = before.replace(hour=0, minute=0, second=0, microsecond=0)
    newest: defaultdict[str, list[datetime]] = defaultdict(list)
    for name, written in artifacts.times(VALIDATIONS).items():
        newest[str(PurePosixPath(name).parents[1])].append(written)
    folders = [
        f"{ENTRIES}/{name}" for name in artifacts.folders(ENTRIES) if name < f"{day:%Y-%m-%d}"
    ]
    folders += [run for run, times in newest.items() if max(times) < day]
    pages = [name for name, written in artifacts.times(GATES).items() if written < day]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for removed in (
            pool.map(artifacts.remove_folder, folders),
            pool.map(artifacts.remove, pages),
        ):
            list(removed)  # raises what a removal raised


def _is_time(artifacts: Artifacts, folder: str, now: datetime, retention: timedelta) -> bool:
    return _is_due(artifacts, folder, now, retention / _PRUNINGS_A_RETENTION)


def _is_due(artifacts: Artifacts, folder: str, now: datetime, every: timedelta) -> bool:
    last = artifacts.read(f"{folder}/{_PRUNED}")
    return last is None or now - datetime.fromisoformat(last.decode()) >= every


def _record_pruning(artifacts: Artifacts, folder: str, now: datetime) -> None:
    artifacts.write(f"{folder}/{_PRUNED}", now.isoformat().encode())
