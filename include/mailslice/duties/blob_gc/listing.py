"""All blobs of the bucket: listed by key ranges, or read from an S3 Inventory.

The key ranges together cover every possible key. An inventory (Parquet or CSV files, on S3 or in a
folder) may be days old. That is safe, because a HEAD precedes every delete. An inventory cannot
show that a deleted blob is missing.
"""

import csv
import gzip
import io
import json
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, islice, pairwise, product
from typing import Any
from urllib.parse import unquote_plus

import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from mailslice.codec.blob_ids import is_blob_id, parse
from mailslice.duties.blob_gc.orphans import modified_seconds
from mailslice.engine.dataset import Dataset, RowBatch, Summary, read_once
from mailslice.engine.errors import mailslice_error_in
from mailslice.engine.frames import Session
from mailslice.maintenance.artifacts import Artifacts
from mailslice.model.errors import BadInput
from mailslice.model.mail import BlobId
from mailslice.model.settings import Settings
from mailslice.stores.blobs.factory import open_patient_store
from mailslice.stores.blobs.key_ranges import KeyRange, behind
from mailslice.stores.blobs.store import BlobStore, StoredBlob

COLUMNS = {"key": "string", "size": "long", "modified_s": "long"}
_HEX = "0123456789abcdef"
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""First characters of hashes and UUIDs. Base64 has two more: the ranges between cover them."""
_KEYS_A_RANGE, _MAX_RANGES, _MAX_DEPTH = 1500, 3000, 3
_MAX_GENERATIONS, _MAX_STRANGE = 2000, 10


@dataclass(frozen=True, slots=True)
class _Group:
    """About `keys` keys that begin with `prefix`. Evenly distributed hashes follow `start`."""

    prefix: str
    start: str
    keys: int
    alphabet: str


def key_ranges(blobs: BlobStore, keys_a_range: float = _KEYS_A_RANGE) -> list[KeyRange]:
    """Ranges that cover every possible key: one if the bucket has one page or cannot list ranges.

    Otherwise a generation with many keys has several. Lists about one page of each generation.
    """
    page, more = blobs.first_page()
    if not more or not blobs.lists_ranges:
        return [("", "")]
    groups = [*_plain([blob.key for blob in page]), *_generations(blobs)]
    limit = max(keys_a_range, sum(group.keys for group in groups) // _MAX_RANGES)
    edges = {edge for group in groups for edge in _edges(group, limit)} - {""}
    return list(pairwise(["", *sorted(edges), ""]))


def read_listing(session: Session, settings: Settings, ranges: Sequence[KeyRange]) -> Dataset:
    """List the ranges. Each has one summary, `{"range", "blobs", "bytes"}`."""

    def work(batches: Iterator[Sequence[tuple[int, KeyRange]]]) -> Iterator[RowBatch | Summary]:
        with open_patient_store(settings.s3, settings.s3.bucket) as blobs:
            for number, (low, high) in chain.from_iterable(batches):
                count = size = 0
                for page in blobs.pages(low, high):
                    count, size = count + len(page), size + sum(blob.size for blob in page)
                    if page:
                        modified = [modified_seconds(blob.modified) for blob in page]
                        yield RowBatch(
                            {
                                "key": [blob.key for blob in page],
                                "size": [blob.size for blob in page],
                                "modified_s": modified,
                            }
                        )
                yield {"range": number, "blobs": count, "bytes": size}

    return read_once(session, list(enumerate(ranges)), work, COLUMNS)


def _plain(page: Sequence[BlobId]) -> Iterator[_Group]:
    """The ids without a generation, if most keys of the bucket's first page are such ids."""
    plain = [key for key in page if parse(key).family is None and is_blob_id(key)]
    if len(plain) > len(page) // 2:
        yield _group("", "", plain, complete=False)


def _generations(blobs: BlobStore) -> Iterator[_Group]:
    """The generations of families 0 to 9. The ranges between them cover all other keys."""
    for family in (f"{digit}{mark}" for digit in range(10) for mark in "_/"):
        page, more = blobs.first_page(family, behind(family))
        strange = generations = 0
        while page and strange < _MAX_STRANGE and generations < _MAX_GENERATIONS:
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
    """The first page after a generation.

    Asks for the `following` generation first: cheap if a store walks the bucket for each page.
    """
    if following == behind(prefix):
        page = blobs.first_page(following, behind(following))
        if page[0]:
            return page
        prefix = following
    return blobs.first_page(behind(prefix), behind(family))


def _group(prefix: str, start: str, keys: Sequence[BlobId], *, complete: bool) -> _Group:
    """The group of these first keys. Unless `complete`, their last hash gives its size."""
    hashes = [
        key[len(start) :].replace("/", "") if start.endswith("/") else key[len(start) :]
        for key in keys
    ]
    alphabet = _HEX if set().union(*hashes) <= {*_HEX, "-"} else _LETTERS
    reached = sum(
        (bisect_left(alphabet, letter) + 1) / len(alphabet) ** place
        for place, letter in enumerate(hashes[-1][:_MAX_DEPTH], 1)
    )
    return _Group(
        prefix,
        start,
        len(keys) if complete else round(len(keys) / max(reached, len(alphabet) ** -_MAX_DEPTH)),
        alphabet,
    )


def _edges(group: _Group, limit: float) -> Iterator[str]:
    """The group's two ends, and the cuts between them that give ranges of about `limit` keys."""
    yield from (group.prefix, behind(group.prefix))
    depth = 0
    while depth < _MAX_DEPTH and group.keys / len(group.alphabet) ** (depth + 0.5) > limit:
        depth += 1
    for length in range(1, depth + 1):
        for letters in product(group.alphabet, repeat=length):
            # In the key layout for MinIO a slash follows the first letter of a hash.
            slash = "/" if length > 1 and group.start.endswith("/") else ""
            word = letters[0] + slash + "".join(letters[1:])
            yield from (group.start + word, behind(group.start + word))


_USUAL = ("Bucket", "Key", "Size", "LastModifiedDate")
_FLAGS = ("bucket", "islatest", "isdeletemarker")
_ENDINGS = (".parquet", ".csv", ".csv.gz")
_ROWS = 5000
_REQUIRED = ("key", "size", "lastmodifieddate")
_UNREADABLE = (
    *(EOFError, OSError, ValueError, KeyError, IndexError, TypeError),
    *(csv.Error, zlib.error),
)
"""Raised by a file that is damaged or is no inventory."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """Files of one inventory, relative to `place`, and the columns of its CSV files."""

    place: Artifacts
    files: tuple[str, ...]
    columns: tuple[str, ...]


def find_inventory(settings: Settings, where: str) -> Inventory:
    """The inventory at `where` (`--inventory`). Raises BadInput if it is none or has no files."""
    scheme, _, rest = where.partition("://")
    if scheme in {"s3", "s3a", "s3n"} and rest:
        location, _, name = rest.rpartition("/")
        place, name = Artifacts(f"s3a://{location or name}", settings.s3), name if location else ""
    elif "://" in where:
        raise BadInput(f"--inventory {where!r}: allowed are s3://bucket/prefix and a path")
    else:
        folder, _, name = where.rstrip("/").rpartition("/")
        place = Artifacts(folder or ("/" if where.startswith("/") else "."), settings.s3)
    if name.endswith(".json"):
        return _of_manifest(settings, place, name, where)
    files = [
        file
        for file in ([name] if name.endswith(_ENDINGS) else place.files(name))
        if file.endswith(_ENDINGS)
    ]
    if not files or not place.exists(files[0]):
        raise BadInput(
            f"--inventory {where!r}: no {', '.join(_ENDINGS)} file is there, "
            "and it is no manifest.json"
        )
    return Inventory(place, tuple(files), _USUAL)


def read_inventory(session: Session, settings: Settings, inventory: Inventory) -> Dataset:
    """The bucket's objects. Summaries as in `read_listing`. Raises BadInput for other files."""
    bucket = settings.s3.bucket

    def work(batches: Iterator[Sequence[tuple[int, str]]]) -> Iterator[RowBatch | Summary]:
        for number, file in chain.from_iterable(batches):
            count = size = 0
            objects = _objects(inventory, file, bucket)
            while page := list(islice(objects, _ROWS)):
                count, size = count + len(page), size + sum(bytes_ for _, bytes_, _ in page)
                yield RowBatch(dict(zip(COLUMNS, zip(*page, strict=True), strict=True)))
            yield {"range": number, "blobs": count, "bytes": size}

    return read_once(session, list(enumerate(inventory.files)), work, COLUMNS)


def _of_manifest(settings: Settings, location: Artifacts, name: str, where: str) -> Inventory:
    data = location.read(name)
    try:
        manifest = json.loads(data or b"")
        kind, files = str(manifest["fileFormat"]), [str(file["key"]) for file in manifest["files"]]
        schema = str(manifest.get("fileSchema", ""))
        bucket = str(manifest.get("destinationBucket", "")).rpartition(":")[2]
        source = str(manifest.get("sourceBucket") or settings.s3.bucket).rpartition(":")[2]
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"--inventory {where!r} is no manifest.json of an S3 Inventory "
            f"({type(error).__name__}: {error})"
        ) from None
    if kind.lower() not in {"csv", "parquet"} or not files:
        raise BadInput(
            f"--inventory {where!r}: its format is {kind!r} with {len(files)} files; "
            "allowed are CSV and Parquet"
        )
    if source != settings.s3.bucket:
        raise BadInput(
            f"--inventory {where!r} lists bucket {source}, "
            f"not MAILSLICE_S3_BUCKET={settings.s3.bucket}"
        )
    if location.bucket is not None and bucket:
        location = Artifacts(f"s3a://{bucket}", settings.s3)
    elif location.bucket is None:
        # A copy in a folder has the files at their keys, or beside the manifest.
        files = [file if location.exists(file) else file.rpartition("/")[2] for file in files]
    columns = tuple(word.strip() for word in schema.split(",")) if kind.lower() == "csv" else _USUAL
    return Inventory(location, tuple(files), columns)


def _objects(inventory: Inventory, file: str, bucket: str) -> Iterator[tuple[str, int, int]]:
    """(key, size, modified) of the bucket's current objects, without delete markers."""
    rows = _parquet if file.endswith(".parquet") else _csv
    path = inventory.place.path(file)
    try:
        for row in rows(inventory.place.filesystem, path, inventory.columns):
            if (
                row.get("bucket") in {None, bucket}
                and str(row.get("islatest")).lower() != "false"
                and str(row.get("isdeletemarker")).lower() != "true"
            ):
                yield str(row["key"]), int(row["size"]), _modified(row["lastmodifieddate"])
    except _UNREADABLE as error:
        problem = " ".join(str(error).split())[:200]
        raise mailslice_error_in(str(error)) or BadInput(
            f"--inventory: {inventory.place.uri(file)} cannot be read "
            f"({type(error).__name__}: {problem})"
        ) from error


def _parquet(
    filesystem: FileSystem, path: str, _columns: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """The rows by column name, in lower case and without underscores."""
    with pq.ParquetFile(filesystem.open_input_file(path)) as file:
        for batch in file.iter_batches(_ROWS):
            named = {name.replace("_", "").lower(): name for name in batch.schema.names}
            known = [*_REQUIRED, *(flag for flag in _FLAGS if flag in named)]
            columns = batch.select([named[name] for name in known])
            yield from columns.rename_columns(known).to_pylist()


def _csv(filesystem: FileSystem, path: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    with filesystem.open_input_stream(path, compression=None) as stream:
        raw: Any = gzip.GzipFile(fileobj=stream) if path.endswith(".gz") else stream
        names = [name.lower() for name in columns]
        for values in csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline="")):
            if [value.lower() for value in values] == names:
                continue  # a header, which S3 itself does not write
            row: dict[str, Any] = dict(zip(names, values, strict=True))
            row["key"] = unquote_plus(row["key"])  # keys in CSV inventories are URL-encoded
            yield row


def _modified(value: object) -> int:
    when = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    return modified_seconds(when if when.tzinfo else when.replace(tzinfo=UTC))
