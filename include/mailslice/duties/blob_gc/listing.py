"""All blobs of the bucket: ranges of keys that cover every key there can be, listed beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from mailslice.codec.blob_ids import parse
from mailslice.duties.blob_gc.classify import modified_seconds
from mailslice.model.settings import Settings
from mailslice.spark.frames import Session
from mailslice.spark.read_once import Frame, Rows, Summary, read_once
from mailslice.stores.blobs.bulk import HIGHEST, BulkBlobs

KeyRange = tuple[str, str]
"""(after, until]: keys greater than the first and not greater than the second; empty means no bound."""
COLUMNS = {"key": "string", "size": "long", "modified_s": "long"}
_WITHIN = "48CKSagms"
"""Where the keys of one generation are cut: hashes are spread evenly over hex digits or base64 letters."""
_MOST_GROUPS = 2000
_BEFORE_LINE = chr(ord("_") - 1)


def key_ranges(blobs: BulkBlobs) -> list[KeyRange]:
    """Ranges that together hold every key: one for a bucket of a single page, else cut at each first letter, and within each generation."""
    first = next(blobs.pages())
    if not first or blobs.first_after(first[-1].key) is None:
        return [("", "")]
    edges = sorted({edge for group in _groups(blobs) for edge in ([group, *(group + letter for letter in _WITHIN)] if len(group) > 1 else [group])})
    return list(pairwise(["", *edges, ""]))


def uncovered(ranges: Sequence[KeyRange]) -> int:
    """How many neighbours do not meet, or ends are missing: 0 when every key is in exactly one range."""
    ordered = sorted(ranges, key=lambda each: each[0].encode())
    ends = ["", *(until for _, until in ordered)]
    starts = [*(after for after, _ in ordered), ""]
    return sum(end != start for end, start in zip(ends, starts, strict=True))


def read_listing(spark: Session, settings: Settings, ranges: Sequence[KeyRange]) -> Frame:
    """List the ranges; one summary each, `{"range", "blobs", "bytes"}`."""

    def work(batches: Iterator[Sequence[tuple[int, KeyRange]]]) -> Iterator[Rows | Summary]:
        with BulkBlobs(settings.s3, settings.s3.bucket) as blobs:
            for number, (after, until) in (each for batch in batches for each in batch):
                count = size = 0
                for page in blobs.pages(after, until):
                    count, size = count + len(page), size + sum(blob.size for blob in page)
                    if page:
                        modified = [modified_seconds(blob.modified) for blob in page]
                        yield Rows({"key": [blob.key for blob in page], "size": [blob.size for blob in page], "modified_s": modified})
                yield {"range": number, "blobs": count, "bytes": size}

    return read_once(spark, list(enumerate(ranges)), work, COLUMNS)


def _groups(blobs: BulkBlobs) -> list[str]:
    """`FAMILY_GENERATION_` of each generation, and the first letter of every other key: about one request each. What it misses is in a wider range."""
    found: dict[str, None] = {}
    after = ""
    for _ in range(_MOST_GROUPS):
        key = blobs.first_after(after)
        if key is None or key.encode() <= after.encode():
            break
        group = _group(key)
        found[group] = None
        # A plain key may begin like a family's: those of that family come next.
        before_family = len(group) == 1 and key.encode() < f"{group}_".encode()
        after = f"{group}{_BEFORE_LINE if before_family else ''}{HIGHEST}"
    return list(found)


def _group(key: str) -> str:
    parsed = parse(key)
    if parsed.family is None:
        return key[0]
    for mark in "_/":
        if key.startswith(group := f"{parsed.family}{mark}{parsed.generation}{mark}"):
            return group
    return key[0]  # numbers with zeros before them
