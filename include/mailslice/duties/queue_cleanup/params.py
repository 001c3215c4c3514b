"""What a run of queue_cleanup can be told."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Self

from pydantic import Field, field_validator, model_validator

from mailslice.duty.params import DutyParams
from mailslice.model.settings import Duration


class Params(DutyParams):
    """Params of queue_cleanup."""

    WEEKLY: ClassVar[Mapping[str, object]] = {"sweep": True}

    grace: Duration | None = Field(None, description="time after its end before a slice counts as closed (90s, 15m, 1h); MAILSLICE_DUTY_GRACE when not given")
    max_share: float = Field(0.0, ge=0.0, le=1.0, description="share of live rows that a run may touch: 0 for a cleanup; dead rows have no cap")
    slices_from: datetime | None = Field(None, description="first slice of a backfill, ISO 8601; the starts are not moved then")
    slices_before: datetime | None = Field(None, description="end of a backfill, not included, ISO 8601")
    restarted: datetime | None = Field(
        None, description="since when every node of James has today's slice window, ISO 8601: slices close by it, not by the largest window there ever was"
    )
    sweep: bool = Field(False, description="also rows before contentStart and marks without a row: scans whole tables, for a weekly run")
    aside: bool = Field(False, description="with sweep: set rows without a mark before contentStart aside, for `mailslice stuck release` or `discard`")
    rate: int = Field(0, ge=0, description="partitions deleted and marks dropped a second, at most; 0 = no limit")

    @field_validator("slices_from", "slices_before", "restarted")
    @classmethod
    def _utc(cls, value: datetime | None) -> datetime | None:
        if value is None:
            return None
        try:
            return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        except OverflowError:
            raise ValueError("it is before the year 1 or after the year 9999 in UTC") from None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.slices_from and self.slices_before and self.slices_from >= self.slices_before:
            raise ValueError(f"slices_from {self.slices_from} is not before slices_before {self.slices_before}")
        if self.sweep and self.ranged:
            raise ValueError("sweep looks at everything: it goes with no range of slices")
        if self.aside and not self.sweep:
            raise ValueError("aside goes with sweep, which finds the rows")
        return self

    @property
    def ranged(self) -> bool:
        """Whether the run is held to a range of slices."""
        return self.slices_from is not None or self.slices_before is not None

    def covers(self, slice_start: datetime) -> bool:
        """Whether a slice is in the run's range."""
        return (self.slices_from is None or slice_start >= self.slices_from) and (self.slices_before is None or slice_start < self.slices_before)

    def grace_or(self, default: timedelta) -> timedelta:
        """The grace of the run."""
        return default if self.grace is None else self.grace
