"""The report step prunes old runs and their Data Docs, and deleted mails whose time is over.

Own rows end by their TTL; in MariaDB the report step deletes those that ended.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import PurePosixPath

from mailslice.admin.deletions.packs import DELETED_PREFIX, expire
from mailslice.admin.holds import MOST_SKEW, SKEWED
from mailslice.checks.data_docs import DOCS_FOLDER, ENTRIES, GATES, VALIDATIONS
from mailslice.maintenance.artifacts import Artifacts, queue_folder
from mailslice.model.clock import Clock
from mailslice.model.errors import BadSetting
from mailslice.model.settings import Settings
from mailslice.stores import Stores, has_cassandra

log = logging.getLogger(__name__)
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
    every, before = retention / _PRUNINGS_A_RETENTION, now - retention
    try:
        runs_due = _is_due(artifacts, queue_folder(duty, queue), now, every)
        return prune(artifacts, duty, queue, before) if runs_due else []
    finally:
        if _is_due(artifacts, DOCS_FOLDER, now, every):
            prune_docs(artifacts, before)


def expire_sometimes(artifacts: Artifacts, settings: Settings, stores: Stores, clock: Clock) -> int:
    """Delete the kept mails whose time is over, once an hour at most; how many objects went.

    Raises ClockSkew: nothing was deleted.
    """
    folder = DELETED_PREFIX.rstrip("/")
    if not has_cassandra(settings) or not _is_due(artifacts, folder, clock(), _EXPIRY_EVERY):
        return 0
    stores.cassandra.require_clock(clock, MOST_SKEW, SKEWED)
    return expire(stores.own_blobs, clock())


def prune(artifacts: Artifacts, duty: str, queue: str, before: datetime) -> list[str]:
    """Remove this duty's runs on this queue whose files are all older than `before`."""
    parent = queue_folder(duty, queue)

    def remove_old(run: str) -> bool:
        folder = f"{parent}/{run}"
        times = artifacts.times(folder).values()
        is_old = bool(times) and max(times) < before
        if is_old:
            artifacts.remove_folder(folder)
        return is_old

    return _done(remove_old, artifacts.folders(parent))


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
    _done(artifacts.remove_folder, folders)
    _done(artifacts.remove, pages)


def _done(act: Callable[[str], bool | None], names: Sequence[str]) -> list[str]:
    """Those of which `act` says True. One that it may not touch, another user's, stops no other."""

    def is_done(name: str) -> bool:
        try:
            return bool(act(name))
        except BadSetting as error:
            log.warning("%s is not pruned: %s", name, error)
            return False

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return [name for name, done in zip(names, pool.map(is_done, names), strict=True) if done]


def _is_due(artifacts: Artifacts, folder: str, now: datetime, every: timedelta) -> bool:
    """Whether the folder was not looked through for so long, by its note; it says now then."""
    note = f"{folder}/{_PRUNED}"
    with suppress(ValueError, TypeError):  # a note that is damaged says nothing
        last = artifacts.read(note)
        if last and timedelta(0) <= now - datetime.fromisoformat(last.decode()) < every:
            return False
    artifacts.write(note, now.isoformat().encode())
    return True
