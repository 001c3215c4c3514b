"""What a run of blob_gc can be told."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field

from mailslice.duty.params import DutyParams
from mailslice.model.settings import Duration


class Params(DutyParams):
    """Params of blob_gc."""

    grace: Duration = Field(
        timedelta(days=1),
        description="blobs modified less long ago are left alone: their row may be on its way (90s, 15m, 24h)",
    )
    delete_after: Duration = Field(
        timedelta(hours=24),
        description="a candidate is deleted by a run that comes so long after the one that recorded it",
    )
    keep: Duration = Field(
        timedelta(days=7),
        description="deleted content stays so long in mailslice's own bucket (`mailslice blobs restore`); 0s = no copy",
    )
    max_share: float = Field(
        0.5,
        ge=0.0,
        le=1.0,
        description="share of all blobs that one run may delete; more fails the gate",
    )
    max_shrink: float = Field(
        0.5,
        ge=0.0,
        le=1.0,
        description="share of its references that a source may have lost since the last run; more fails the gate, 1 lets it pass",
    )
    inventory: str | None = Field(
        None,
        description="an S3 Inventory in place of listing: its manifest.json, or a folder of its Parquet or CSV files (s3://bucket/prefix, or a path)",
    )
