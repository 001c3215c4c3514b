"""Which blobs earlier runs found unreferenced, and since when.

They are in the plan files of the last run that was applied; a note beside the runs, below the
artifacts location, says which. Lost or changed, nothing is known of any candidate, and every blob
waits anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pydantic import AwareDatetime, Field

from mailslice.duty.artifacts import Artifacts, queue_folder
from mailslice.duty.json_model import JsonModel
from mailslice.duty.plans import digest_of
from mailslice.duty.request import NO_QUEUE
from mailslice.duty.row_file import RowGroup

_RUNS = queue_folder("blob_gc", NO_QUEUE)
_FILE = f"{_RUNS}/candidates.json"


class Candidates(JsonModel):
    """What the last applied run recorded: blobs of its plan's files, less the keys `spared`."""

    run: str
    recorded: AwareDatetime
    groups: tuple[RowGroup, ...]
    spared: frozenset[str]
    sources: Mapping[str, int]
    """How many references each source had then."""
    changed: bool = Field(False, exclude=True)
    """Somebody edited the note: since when its candidates wait is not to be believed."""

    @property
    def folder(self) -> str:
        """The folder of that run, relative to the artifacts location."""
        return f"{_RUNS}/{self.run}"


def record(artifacts: Artifacts, candidates: Candidates) -> None:
    """From now on these are the candidates. Written whole or not at all."""
    value = candidates.as_json()
    artifacts.write(_FILE, json.dumps({**value, "digest": digest_of(value)}).encode())


def recorded(artifacts: Artifacts) -> Candidates | None:
    """The candidates; None when no run recorded any, or the note cannot be read.

    Of a note that was changed only `sources` is believed, which a source that lost references is
    held against: the note says since when candidates wait.
    """
    try:
        value = json.loads(artifacts.read(_FILE) or b"")
        changed = value.pop("digest", None) != digest_of(value)
        return Candidates.model_validate(value).model_copy(update={"changed": changed})
    except (ValueError, TypeError, AttributeError):
        return None
