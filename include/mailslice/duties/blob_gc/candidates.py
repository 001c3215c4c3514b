"""Which blobs earlier runs found unreferenced, and since when.

They are in the plan files of the last run that was applied; a note beside the runs, below the
artifacts location, says which. Lost or changed, nothing is known of any candidate, and every blob
waits anew. So does it when an earlier version of mailslice wrote the note: that one's files have
digests of another kind.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from pydantic import AwareDatetime, Field

from mailslice.maintenance.artifacts import Artifacts, queue_folder
from mailslice.maintenance.json_model import JsonModel
from mailslice.maintenance.plan import digest_of
from mailslice.maintenance.row_file import RowGroup
from mailslice.maintenance.run_request import NO_QUEUE

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
    forgotten: str = Field("", exclude=True)
    """Why the note is not believed since when its candidates wait; empty: it is."""

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

    Of a note that is not believed there is only `sources`, which a source that lost references is
    held against.
    """
    try:
        value = json.loads(artifacts.read(_FILE) or b"")
        if forgotten := _why_forgotten(value, value.pop("digest", None)):
            value |= {"groups": (), "spared": ()}
        return Candidates.model_validate(value).model_copy(update={"forgotten": forgotten})
    except (ValueError, TypeError, AttributeError):
        return None


def _why_forgotten(value: Mapping[str, Any], digest: object) -> str:
    if digest == digest_of(value):
        return ""
    run = value.get("run")
    if digest == sha256(json.dumps(value, sort_keys=True).encode()).hexdigest():
        return (
            f"an earlier version of mailslice recorded the candidates of run {run}: "
            "they are forgotten and wait anew"
        )
    return f"the note on the candidates of run {run} was changed: they are forgotten and wait anew"
