"""What the report step prunes: old runs, their Data Docs, and expired mails of deletes.

Rows in Cassandra expire by TTL. In MariaDB the report step deletes the expired rows.
"""

import json
import logging
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import PurePosixPath

from mailslice.admin.deletions.packs import DELETED_PREFIX, expire
from mailslice.checks.data_docs import DOCS_FOLDER, ENTRIES
from mailslice.maintenance.artifacts import Artifacts, queue_folder
from mailslice.maintenance.decision_files import DECISIONS_FOLDER
from mailslice.maintenance.run_request import start_in_run_id
from mailslice.model.clock import Clock
from mailslice.model.errors import BadSetting
from mailslice.stores import Stores, has_cassandra

log = logging.getLogger(__name__)
_PRUNED = "pruned.txt"
"""A note beside the runs, and beside Data Docs: the time when they were last pruned."""
_PRUNINGS_A_RETENTION = 90
_AT_ONCE = 8
_EXPIRY_EVERY = timedelta(hours=1)
_QUEUE = re.compile(rb'(?m)^mailslice_.*[{,](queue="(?:[^"\\]|\\.)+")')


def prune_sometimes(
    artifacts: Artifacts, duty: str, queue: str, now: datetime, retention: timedelta
) -> list[str]:
    """Prune at most every ninetieth of the retention; returns the runs that were removed.

    A duty that runs every 15 minutes has thousands of folders to list. Any duty prunes Data Docs,
    decisions, and the runs of a duty and queue that have no new ones.
    """
    every, before = retention / _PRUNINGS_A_RETENTION, now - retention
    own = queue_folder(duty, queue)
    try:
        return prune(artifacts, own, before) if _begins(artifacts, own, now, every) else []
    finally:
        if _begins(artifacts, DOCS_FOLDER, now, every):
            prune_docs(artifacts, before)
            duties = (f"runs/{name}" for name in artifacts.folders("runs"))
            folders = [f"{one}/{name}" for one in duties for name in artifacts.folders(one)]
            longer = retention + 2 * every  # a queue with runs has pruned by then
            for folder in _done(lambda name: _begins(artifacts, name, now, longer), folders):
                prune(artifacts, folder, before)


def expire_sometimes(artifacts: Artifacts, stores: Stores, clock: Clock) -> None:
    """Delete expired mails of deletes, at most once an hour.

    The hour begins when all of them are deleted. Raises ClockSkew before it deletes anything.
    """
    note, now = f"{DELETED_PREFIX}{_PRUNED}", clock()
    is_due = has_cassandra(stores.settings) and _is_due(artifacts, note, now, _EXPIRY_EVERY)
    if is_due and stores.own_blobs.bucket_exists():
        stores.cassandra.require_clock(clock)
        expire(stores.own_blobs, clock())
        artifacts.write(note, now.isoformat().encode())


def prune_metrics(artifacts: Artifacts, stores: Stores, now: datetime) -> None:
    """Remove files of queues that RabbitMQ no longer lists, once a day; none where it has none."""
    note, day = f"metrics/{_PRUNED}", timedelta(days=1)
    if has_cassandra(stores.settings) and _is_due(artifacts, note, now, day):
        live, dead = stores.management.mail_queues(), stores.management.dead_letter_queues()
        known = {f"queue={json.dumps(name, ensure_ascii=False)}".encode() for name in live + dead}

        def remove_unknown(file: str) -> None:
            labels = set(_QUEUE.findall(artifacts.read(file) or b""))
            if labels and labels.isdisjoint(known):
                artifacts.remove(file)

        artifacts.write(note, now.isoformat().encode())
        _done(remove_unknown, artifacts.files("metrics") if live else ())


def prune(artifacts: Artifacts, parent: str, before: datetime) -> list[str]:
    """Remove the runs of one duty on one queue whose files are all older than `before`.

    No file is older than its run, so the files of later runs are not listed.
    """

    def remove_old(run: str) -> bool:
        folder = f"{parent}/{run}"
        if start_in_run_id(run) > f"{before:%Y%m%d%H%M%S}":
            return False
        is_old = max(artifacts.times(folder).values(), default=before) < before
        if is_old:
            artifacts.remove_folder(folder)
        return is_old

    return _done(remove_old, artifacts.folders(parent))


def prune_docs(artifacts: Artifacts, before: datetime) -> None:
    """Remove decisions, and the pages that index entries name, of days before `before`.

    Safe while others prune and gates add pages. Styles and pages of suites stay.
    """
    day = f"{before:%Y-%m-%d}"

    def old(parent: str) -> list[str]:
        return [f"{parent}/{name}" for name in artifacts.folders(parent) if name < day]

    def remove_pages(entry_file: str) -> bool:
        with suppress(ValueError, TypeError, KeyError):  # a damaged entry names no page
            entry = json.loads(artifacts.read(entry_file) or b"")
            page = f"{DOCS_FOLDER}/{entry['page']}"
            written = artifacts.modified(page)
            if written and f"{written:%Y-%m-%d}" >= day:
                return False  # rewritten or restored: the entry stays until the page is old
            for path in map(PurePosixPath, entry["pages"]):
                if path.match("validations/*/*/*/*/*/*"):
                    artifacts.remove_folder(f"{DOCS_FOLDER}/{path.parents[1]}")
            artifacts.remove(page)
        return True

    _done(artifacts.remove_folder, old(DECISIONS_FOLDER))
    for folder in old(ENTRIES):
        entries = artifacts.files(folder)
        if len(_done(remove_pages, entries)) == len(entries):
            artifacts.remove_folder(folder)


def _done(act: Callable[[str], bool | None], names: Sequence[str]) -> list[str]:
    """Names for which `act` returns True. One that belongs to another user stops no other."""

    def is_done(name: str) -> bool:
        try:
            return bool(act(name))
        except BadSetting as error:
            log.warning("%s is not pruned: %s", name, error)
            return False

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return [name for name, done in zip(names, pool.map(is_done, names), strict=True) if done]


def _begins(artifacts: Artifacts, folder: str, now: datetime, every: timedelta) -> bool:
    """Whether the folder is due by its note, which then gets the time `now`."""
    note = f"{folder}/{_PRUNED}"
    if is_due := _is_due(artifacts, note, now, every):
        artifacts.write(note, now.isoformat().encode())
    return is_due


def _is_due(artifacts: Artifacts, note: str, now: datetime, every: timedelta) -> bool:
    """Whether the time in the note is at least `every` ago, in the future, or missing."""
    with suppress(ValueError, TypeError):  # a damaged note is due
        last = artifacts.read(note)
        return not last or not timedelta(0) <= now - datetime.fromisoformat(last.decode()) < every
    return True
