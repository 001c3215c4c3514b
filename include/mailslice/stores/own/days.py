"""Days (UTC) as partition keys of own tables."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta


def day_of(moment: datetime) -> str:
    """The day as `2026-11-27`."""
    return moment.astimezone(UTC).date().isoformat()


def days_back(since: datetime, until: datetime) -> Iterator[str]:
    """The days from that of `until` back to that of `since`."""
    last = until.astimezone(UTC).date()
    count = (last - since.astimezone(UTC).date()).days + 1
    return ((last - timedelta(days=back)).isoformat() for back in range(count))
