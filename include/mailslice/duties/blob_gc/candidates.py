"""Which blobs earlier runs found unreferenced, and since when: the plan files of the last run that was applied, and this note that says which.

Beside the runs, below the artifacts location. Lost or changed, nothing is known of any candidate, and every blob waits anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from mailslice.duties.blob_gc.plan_files import FOLDER, Group
from mailslice.duty.artifacts import iso, queue_folder
from mailslice.duty.context import StepContext

_FILE = "candidates.json"


@dataclass(frozen=True, slots=True)
class Candidates:
    """What the last applied run recorded: its plan's files, less the keys `spared`; and how many references each source had then."""

    run: str
    recorded: datetime
    groups: tuple[Group, ...]
    spared: tuple[str, ...]
    sources: Mapping[str, int]
    changed: bool = False
    """Somebody edited the note: since when its candidates wait is not to be believed."""

    @property
    def folder(self) -> str:
        """Of the plan's files, relative to the artifacts location."""
        return f"{queue_folder('blob_gc', '-')}/{self.run}/{FOLDER}"


def record(context: StepContext, candidates: Candidates) -> None:
    """From now on these are the candidates. Written whole or not at all."""
    value = {
        "run": candidates.run,
        "recorded": iso(candidates.recorded),
        "groups": [
            [group.file, group.number, group.rows, group.digest] for group in candidates.groups
        ],
        "spared": list(candidates.spared),
        "sources": dict(candidates.sources),
    }
    context.folder.artifacts.write(
        _path(), json.dumps({**value, "digest": _digest(value)}).encode()
    )


def recorded(context: StepContext) -> Candidates | None:
    """The candidates; None when no run recorded any, or the note cannot be read.

    Of a note that was changed only the sources' rows are believed, which a shrunken source is held against: it says since when candidates wait.
    """
    data = context.folder.artifacts.read(_path())
    try:
        value = json.loads(data or b"")
        changed = value.pop("digest", None) != _digest(value)
        groups = tuple(Group(*each) for each in value["groups"])
        return Candidates(
            value["run"],
            datetime.fromisoformat(value["recorded"]),
            groups,
            tuple(value["spared"]),
            dict(value["sources"]),
            changed,
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _digest(value: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _path() -> str:
    return f"{queue_folder('blob_gc', '-')}/{_FILE}"
