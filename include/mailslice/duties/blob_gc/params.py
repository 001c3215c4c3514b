"""Parameters of a blob_gc run."""

from datetime import timedelta
from typing import ClassVar

from pydantic import Field

from mailslice.maintenance.params import DutyParams, Unusual
from mailslice.model.setting_types import Duration, Share, Time


class Params(DutyParams):
    """Params of blob_gc."""

    OVERRIDES: ClassVar[tuple[str, ...]] = ("unusual",)
    LATER: ClassVar[tuple[str, ...]] = ("max_share", "max_shrink")

    grace: Time = Field(
        timedelta(days=1),
        description="blobs younger than this are left alone: "
        "their row may not be written yet (90s, 15m, 24h)",
    )
    delete_after: Time = Field(
        timedelta(hours=24),
        description="how long after a run recorded a candidate a later run may delete it",
    )
    keep: Duration = Field(
        timedelta(days=7),
        description="how long copies of deleted content stay in mailslice's own bucket "
        "(`mailslice blobs restore`); 0s = no copy",
    )
    unusual: Unusual = False
    max_share: Share | None = Field(
        None,
        description="share of all blobs that one run may delete; more fails the gate. "
        "MAILSLICE_GC_MAX_SHARE when not given",
    )
    max_shrink: Share = Field(
        0.5,
        description="share of its references that a source may have lost since the last run; "
        "more fails the gate; 1 = no limit",
    )
    inventory: str | None = Field(
        None,
        description="read an S3 Inventory and do not list the bucket: its manifest.json, "
        "or a folder of its Parquet or CSV files (s3://bucket/prefix, or a path)",
    )
