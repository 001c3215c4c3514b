"""All blobs of the bucket, listed by key ranges that together cover every possible key."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, product

from mailslice.codec.blob_ids import is_blob_id, parse
from mailslice.duties.blob_gc.classify import modified_seconds
from mailslice.engine.dataset import Frame, Rows, Summary, read_once
from mailslice.engine.frames import Session
from mailslice.model.mail import BlobId
from mailslice.model.settings import Settings
from mailslice.stores.blobs.key_ranges import KeyRange, behind
from mailslice.stores.blobs.opening import open_patient_store
from mailslice.stores.blobs.store import BlobStore, StoredBlob

COLUMNS = {"key": "string", "size": "long", "modified_s": "long"}
_HEX, _LETTERS = (
    "0123456789abcdef",
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
)
"""What hashes and UUIDs begin with. The few of base64 that do not are in the ranges between."""
_KEYS_A_RANGE, _MOST_RANGES, _DEEPEST = 1500, 3000, 3
_MOST_GENERATIONS, _MOST_STRANGE = 2000, 10


@dataclass(frozen=True, slots=True)
class _Group:
    """About so many keys that begin with `prefix`.

    With `start` begin those whose hashes come next, spread evenly over the alphabet.
    """

    prefix: str
    start: str
    keys: int
    alphabet: str


def key_ranges(blobs: BlobStore) -> list[KeyRange]:
    """Ranges that together hold every key: one for a bucket of a single page, or without ranges.

    Else those of each generation, cut where its keys are many. Asks for a page of each, and a few.
    """
    page, more = blobs.first_page()
    if not more or not blobs.lists_ranges:
        return [("", "")]
    groups = [*_plain([blob.key for blob in page]), *_generations(blobs)]
    most = max(_KEYS_A_RANGE, sum(group.keys for group in groups) // _MOST_RANGES)
    edges = {edge for group in groups for edge in _edges(group, most)} - {""}
    return list(pairwise(["", *sorted(edges), ""]))


def read_listing(spark: Session, settings: Settings, ranges: Sequence[KeyRange]) -> Frame:
    """List the ranges; one summary each, `{"range", "blobs", "bytes"}`."""

    def work(batches: Iterator[Sequence[tuple[int, KeyRange]]]) -> Iterator[Rows | Summary]:
        with open_patient_store(settings.s3, settings.s3.bucket) as blobs:
            for number, (low, high) in chain.from_iterable(batches):
                count = size = 0
                for page in blobs.pages(low, high):
                    count, size = count + len(page), size + sum(blob.size for blob in page)
                    if page:
                        modified = [modified_seconds(blob.modified) for blob in page]
                        yield Rows(
                            {
                                "key": [blob.key for blob in page],
                                "size": [blob.size for blob in page],
                                "modified_s": modified,
                            }
                        )
                yield {"range": number, "blobs": count, "bytes": size}

    return read_once(spark, list(enumerate(ranges)), work, COLUMNS)


def _plain(page: Sequence[BlobId]) -> Iterator[_Group]:
    """The ids without a generation, when the bucket begins with many of them."""
    plain = [key for key in page if parse(key).family is None and is_blob_id(key)]
    if len(plain) > len(page) // 2:
        yield _group("", "", plain, complete=False)


def _generations(blobs: BlobStore) -> Iterator[_Group]:
    """The generations of the families of one digit. What it misses is in the ranges between."""
    for family in (f"{digit}{mark}" for digit in range(10) for mark in "_/"):
        page, more = blobs.first_page(family, behind(family))
        strange = generations = 0
        while page and strange < _MOST_STRANGE and generations < _MOST_GENERATIONS:
            generation = parse(page[0].key).generation
            prefix = f"{family}{generation}"
            start = prefix + family[-1]
            if generation is None or not page[0].key.startswith(start):
                page, more = blobs.first_page(f"{page[-1].key}\0", behind(family))
                strange += 1
                continue
            generations += 1
            own = [blob.key for blob in page if blob.key.startswith(start)]
            yield _group(prefix, start, own, complete=not more or len(own) < len(page))
            page, more = _next(blobs, family, prefix, f"{family}{generation + 1}")


def _next(
    blobs: BlobStore, family: str, prefix: str, following: str
) -> tuple[Sequence[StoredBlob], bool]:
    """The first page behind a generation.

    The one that follows is asked for by itself: cheap where a bucket is walked for each page.
    """
    if following == behind(prefix):
        page = blobs.first_page(following, behind(following))
        if page[0]:
            return page
        prefix = following
    return blobs.first_page(behind(prefix), behind(family))


def _group(prefix: str, start: str, keys: Sequence[BlobId], *, complete: bool) -> _Group:
    """The group of which these are the first keys, or all.

    How far they reach among all hashes tells how many there are.
    """
    hashes = [
        key[len(start) :].replace("/", "") if start.endswith("/") else key[len(start) :]
        for key in keys
    ]
    alphabet = _HEX if set().union(*hashes) <= {*_HEX, "-"} else _LETTERS
    reached = sum(
        (bisect_left(alphabet, letter) + 1) / len(alphabet) ** place
        for place, letter in enumerate(hashes[-1][:_DEEPEST], 1)
    )
    return _Group(
        prefix,
        start,
        len(keys) if complete else round(len(keys) / max(reached, len(alphabet) ** -_DEEPEST)),
        alphabet,
    )


def _edges(group: _Group, most: int) -> Iterator[str]:
    """Where the group begins and ends, and cuts within: a range has about `most` keys."""
    yield from (group.prefix, behind(group.prefix))
    depth = next(
        (
            depth
            for depth in range(_DEEPEST)
            if group.keys / len(group.alphabet) ** (depth + 0.5) <= most
        ),
        _DEEPEST,
    )
    for length in range(1, depth + 1):
        for letters in product(group.alphabet, repeat=length):
            # MinIO's form has a slash behind the first letter of a hash.
            word = (
                letters[0]
                + ("/" if length > 1 and group.start.endswith("/") else "")
                + "".join(letters[1:])
            )
            yield from (group.start + word, behind(group.start + word))
