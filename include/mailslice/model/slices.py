"""Pure arithmetic of slices and buckets (James' ADR-31): no clock, no store.

Slice start = floor(epoch seconds / window seconds) x window seconds, UTC.
Bucket = abs(javaHash(name) remainder bucketCount), with Java's remainder, which keeps the sign.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def slice_start(instant: datetime, window: timedelta) -> datetime:
    """The start of the slice of `instant` (aware). Floors before 1970, too, as Java's floorDiv."""
    seconds = whole_seconds(window)
    return _EPOCH + timedelta(seconds=(instant - _EPOCH) // timedelta(seconds=seconds) * seconds)


def is_live(start: datetime, browse_start: datetime, window: timedelta) -> bool:
    """Whether an unmarked row of slice `start` is live. Before browseStart it proves nothing: James
    writes browseStart, then drops marks, then rows.

    Floors a browseStart within a slice (from an older window), so that every duty takes for live
    what size and browse show.
    """
    return start >= slice_start(browse_start, window)


def slices_between(first: datetime, last: datetime, window: timedelta) -> Iterator[datetime]:
    """Slice starts from the slice of `first` to that of `last`, both included."""
    start, end = slice_start(first, window), slice_start(last, window)
    while start <= end:
        yield start
        start += window


def java_hash(text: str) -> int:
    """Java's String.hashCode: signed 32 bits over UTF-16 code units."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for i in range(0, len(units), 2):
        value = (31 * value + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def bucket_of(name: str, bucket_count: int) -> int:
    """The bucket of a mail's name. Java's remainder keeps the sign, which James' abs() drops."""
    return 0 if bucket_count == 1 else abs(java_hash(name)) % bucket_count


def whole_seconds(window: timedelta) -> int:
    """The window in seconds. Raises ValueError unless they are whole and positive, as in James."""
    seconds = int(window.total_seconds())
    if seconds <= 0 or timedelta(seconds=seconds) != window:
        raise ValueError(f"slice window {window} is not a positive whole number of seconds")
    return seconds
