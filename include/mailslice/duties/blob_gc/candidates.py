"""Blobs that earlier runs found unreferenced, and since when.

The plan files of the last applied run list them; a record below the artifacts location names these
files. If the record is lost or was changed, no candidate is known and every blob waits anew. The
same holds for a record of an earlier version of mailslice, whose digests are of another kind.
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
_RECORD_PATH = f"{_RUNS}/candidates.json"


class CandidateRecord(JsonModel):
    """What the last applied run recorded: blobs of its plan's files except the keys `spared`."""

    run: str
    recorded: AwareDatetime
    groups: tuple[RowGroup, ...]
    spared: frozenset[str]
    sources: Mapping[str, int]
    """How many references each source had then."""
    forgotten: str = Field("", exclude=True)
    """Why the record is not trusted; empty when it is."""

    @property
    def folder(self) -> str:
        """The folder of that run, relative to the artifacts location."""
        return f"{_RUNS}/{self.run}"


def record(artifacts: Artifacts, candidates: CandidateRecord) -> None:
    """Replace the record. Written completely or not at all."""
    value = candidates.as_json()
    artifacts.write(_RECORD_PATH, json.dumps({**value, "digest": digest_of(value)}).encode())


def recorded(artifacts: Artifacts) -> CandidateRecord | None:
    """The record; None when no run wrote one, or it cannot be read.

    A record that is not trusted keeps only `sources`, for the check of lost references.
    """
    try:
        value = json.loads(artifacts.read(_RECORD_PATH) or b"")
        if forgotten := _why_forgotten(value, value.pop("digest", None)):
            value |= {"groups": (), "spared": ()}
        return CandidateRecord.model_validate(value).model_copy(update={"forgotten": forgotten})
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
