"""Params of duties that work slice by slice. A backfill works on the slices of its interval."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from mailslice.maintenance.params import DutyParams


def _in_utc(value: object) -> datetime:
    try:
        at = datetime.fromisoformat(str(value).strip())
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except ValueError:
        raise ValueError("no time; allowed: 2026-11-23T10:00:00Z, 2026-11-23") from None
    except OverflowError:
        raise ValueError("it is before the year 1 or after the year 9999 in UTC") from None


Moment = Annotated[datetime, BeforeValidator(_in_utc)]
"""An ISO 8601 time in UTC, also where it has no offset. Digits alone are a date, not Unix time."""


class SlicedParams(DutyParams):
    """The params of every duty, and a range of slices."""

    slices_from: Moment | None = Field(
        None,
        description="first slice of a backfill, ISO 8601; a run that is limited to some slices "
        "moves no start",
    )
    slices_before: Moment | None = Field(
        None, description="end of a backfill, not included, ISO 8601"
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.slices_from and self.slices_before and self.slices_from >= self.slices_before:
            raise ValueError(
                f"slices_from {self.slices_from} is not before slices_before {self.slices_before}"
            )
        return self

    @property
    def ranged(self) -> bool:
        """Whether the run is limited to a range of slices."""
        return self.slices_from is not None or self.slices_before is not None

    def covers(self, slice_start: datetime) -> bool:
        """Whether a slice is in the run's range."""
        return (self.slices_from is None or slice_start >= self.slices_from) and (
            self.slices_before is None or slice_start < self.slices_before
        )


def limited_to_slices(report: Mapping[str, Any]) -> bool:
    """Whether the report's run was limited to some slices: it counts a part of the queue."""
    params = report.get("params") or {}
    return bool(params.get("slices_from") or params.get("slices_before"))
