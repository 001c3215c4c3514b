"""Marks without a row that the last sweep listed. A later run drops them with a proof (ADR 41).

The list is in the folder of the sweep's run, which a note names. If the list or the note is lost or
changed no mark is dropped by it, and the next sweep lists the marks again.
"""

import json
import logging
from collections.abc import Sequence
from datetime import timedelta

from mailslice.duties.queue_cleanup.plan import Candidates
from mailslice.engine.mark_deletion import DropSpec, Halves, list_marks
from mailslice.engine.row_files import RowGroup
from mailslice.maintenance.artifacts import queue_folder
from mailslice.maintenance.plan import digest_of
from mailslice.maintenance.run import Run
from mailslice.model import crash
from mailslice.model.names import DELETED_MAILS
from mailslice.stores.cassandra.ranges import token_ranges
from mailslice.stores.cassandra.references import estimated_sizes

log = logging.getLogger(__name__)

MARKS_FOLDER = "marks"
"""The folder of the list, in the folder of the sweep's run."""
_NOTE = "candidates.json"
_MIN_RANGES, _MAX_RANGES, _MARKS_A_RANGE = 8, 4096, 25_000


def recorded(context: Run) -> Candidates | None:
    """The last sweep's list less dropped marks; None without one, or if the note was changed."""
    data = context.folder.artifacts.read(_path(context))
    if data is None:
        return None
    try:
        value = json.loads(data)
        if value.pop("digest") == digest_of(value):
            return Candidates.model_validate(value)
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    log.warning("%s cannot be used: the next sweep lists its marks again", _path(context))
    return None


def retained(context: Run) -> Sequence[str]:
    """The files of the list if this run wrote it: the run has swept and is planned again."""
    listed = recorded(context)
    if listed is None or listed.run != context.request.run:
        return ()
    return [f"{MARKS_FOLDER}/{file.file}" for file in listed.files]


def reduce_to(context: Run, candidates: Candidates, files: Sequence[RowGroup]) -> None:
    """Leave only `files` in the list: the marks of its others are dropped or cannot be used.

    Without files the list is removed. A list that a later sweep recorded stays.
    """
    if recorded(context) != candidates:
        return
    if files:
        _write(context, candidates.model_copy(update={"files": tuple(files)}))
    else:
        context.folder.artifacts.remove(_path(context))


def estimated_marks(context: Run) -> int:
    """Cassandra's estimate of the number of deleted marks of all queues."""
    keyspace = context.settings.cassandra.keyspace
    return estimated_sizes(context.stores.cassandra, keyspace).get(DELETED_MAILS.lower(), (0, 0))[0]


def record(context: Run, rows: Halves, grace: timedelta) -> Candidates:
    """List all marks of the queue whose id is not among `rows`, the ids of all remaining rows.

    The new list replaces the one before, and includes its marks. A later run allows for a clock
    that is behind by a quarter of the usual grace.
    """
    artifacts, folder = context.folder.artifacts, context.folder.file(MARKS_FOLDER)
    artifacts.folder(folder)
    count = min(_MAX_RANGES, estimated_marks(context) // _MARKS_A_RANGE)
    ranges = token_ranges(context.stores.cassandra, max(_MIN_RANGES, count))
    spec = DropSpec(context.settings, context.queue, artifacts, folder)
    files = list_marks(context.session(), spec, ranges, rows)
    crash.point("apply:inside-sweep")
    at = context.clock() + max(timedelta(0), grace - context.settings.duty.grace) / 4
    listed = Candidates(run=context.request.run, listed_at=at, files=tuple(files))
    _write(context, listed)
    # Other files are of an earlier try of this run, or of a Spark task that was repeated.
    needed = {file.file for file in files}
    for name in artifacts.files(folder):
        if name.rpartition("/")[2] not in needed:
            artifacts.remove(name)
    return listed


def _write(context: Run, candidates: Candidates) -> None:
    value = candidates.as_json()
    note = json.dumps({**value, "digest": digest_of(value)})
    context.folder.artifacts.write(_path(context), note.encode())


def _path(context: Run) -> str:
    return f"{queue_folder(context.request.duty, context.queue)}/{_NOTE}"
