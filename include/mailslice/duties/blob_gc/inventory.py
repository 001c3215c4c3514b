"""An S3 Inventory in place of a listing: Parquet or CSV files, on S3 or in a folder.

It may be days old. That is safe: a HEAD precedes every delete. It cannot show that a deleted blob
is missing.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, islice
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus

from mailslice.duties.blob_gc.bucket_listing import COLUMNS
from mailslice.duties.blob_gc.classify import modified_seconds
from mailslice.engine.dataset import Frame, Rows, Summary, read_once
from mailslice.engine.frames import Session
from mailslice.maintenance.artifacts import Artifacts
from mailslice.model.errors import BadInput
from mailslice.model.settings import Settings

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_USUAL = ("Bucket", "Key", "Size", "LastModifiedDate")
_FLAGS = ("bucket", "islatest", "isdeletemarker")
_ENDINGS = (".parquet", ".csv", ".csv.gz")
_ROWS = 5000
_REQUIRED = ("key", "size", "lastmodifieddate")
_UNREADABLE = (
    *(EOFError, OSError, ValueError, KeyError, IndexError, TypeError),
    *(csv.Error, zlib.error),
)
"""What a file that is damaged, or no inventory, raises."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """Files of one inventory, as paths of its location, and the columns of its CSV files."""

    place: Artifacts
    files: tuple[str, ...]
    columns: tuple[str, ...]


def find(settings: Settings, where: str) -> Inventory:
    """The inventory that a param names. Raises BadInput when it is not one, or has no files."""
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


def read_inventory(spark: Session, settings: Settings, inventory: Inventory) -> Frame:
    """The bucket's objects; one summary a file, `{"range", "blobs", "bytes"}`.

    Raises BadInput for a file that is no inventory.
    """
    bucket = settings.s3.bucket

    def work(batches: Iterator[Sequence[tuple[int, str]]]) -> Iterator[Rows | Summary]:
        for number, file in chain.from_iterable(batches):
            count = size = 0
            objects = _objects(inventory, file, bucket)
            while page := list(islice(objects, _ROWS)):
                count, size = count + len(page), size + sum(bytes_ for _, bytes_, _ in page)
                yield Rows(dict(zip(COLUMNS, zip(*page, strict=True), strict=True)))
            yield {"range": number, "blobs": count, "bytes": size}

    return read_once(spark, list(enumerate(inventory.files)), work, COLUMNS)


def _of_manifest(settings: Settings, place: Artifacts, name: str, where: str) -> Inventory:
    data = place.read(name)
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
    if place.bucket is not None and bucket:
        place = Artifacts(f"s3a://{bucket}", settings.s3)
    elif place.bucket is None:
        # A copy in a folder: the files lie where their keys say, or beside the manifest.
        files = [file if place.exists(file) else file.rpartition("/")[2] for file in files]
    columns = tuple(word.strip() for word in schema.split(",")) if kind.lower() == "csv" else _USUAL
    return Inventory(place, tuple(files), columns)


def _objects(inventory: Inventory, file: str, bucket: str) -> Iterator[tuple[str, int, int]]:
    """(key, size, modified) of the bucket's own current objects."""
    rows = _parquet if file.endswith(".parquet") else _csv
    path = inventory.place.path(file)
    try:
        for row in rows(inventory.place.filesystem, path, inventory.columns):
            if _is_current(row, bucket):
                yield str(row["key"]), int(row["size"]), _modified(row["lastmodifieddate"])
    except _UNREADABLE as error:
        problem = " ".join(str(error).split())[:200]
        raise BadInput(
            f"--inventory: {inventory.place.uri(file)} cannot be read "
            f"({type(error).__name__}: {problem})"
        ) from error


def _parquet(
    filesystem: FileSystem, path: str, _columns: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Its rows by column, in lower case and without underscores."""
    import pyarrow.parquet as pq

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


def _is_current(row: dict[str, Any], bucket: str) -> bool:
    return (
        row.get("bucket") in {None, bucket}
        and str(row.get("islatest")).lower() != "false"
        and str(row.get("isdeletemarker")).lower() != "true"
    )


def _modified(value: object) -> int:
    when = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    return modified_seconds(when if when.tzinfo else when.replace(tzinfo=UTC))
