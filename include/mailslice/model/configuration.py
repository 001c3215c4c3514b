"""The configuration of the queue view, which James stores as events, and its allowed changes."""

from dataclasses import dataclass
from datetime import timedelta

from mailslice.model.durations import format_duration
from mailslice.model.slices import whole_seconds


@dataclass(frozen=True, slots=True)
class ViewConfiguration:
    """Slice window, buckets a slice, and how many deletes bring one update of browseStart."""

    slice_window: timedelta = timedelta(hours=1)
    bucket_count: int = 1
    browse_start_pace: int = 1000

    def __post_init__(self) -> None:
        whole_seconds(self.slice_window)
        if self.bucket_count < 1 or self.browse_start_pace < 1:
            raise ValueError("bucketCount and updateBrowseStartPace are at least 1")

    def __str__(self) -> str:
        return (
            f"sliceWindow={format_duration(self.slice_window)} bucketCount={self.bucket_count} "
            f"updateBrowseStartPace={self.browse_start_pace}"
        )


def why_refused(stored: ViewConfiguration, requested: ViewConfiguration) -> str | None:
    """Why James would refuse `requested` after `stored`: it would hide rows. None: allowed."""
    before, after = stored.slice_window, requested.slice_window
    windows = f"stored {format_duration(before)}, wanted {format_duration(after)}"
    if requested.bucket_count < stored.bucket_count:
        counts = f"stored {stored.bucket_count}, wanted {requested.bucket_count}"
        return f"bucketCount may not decrease: {counts}"
    if after > before:
        return f"sliceWindow may not grow: {windows}"
    if whole_seconds(before) % whole_seconds(after):
        return f"sliceWindow must divide the stored one: {windows}"
    return None
