"""Small files below a folder or in a bucket, for `maintenance.artifacts`. No pyarrow: the worker
image writes decisions, too, and has none.

Names are absolute: a path on disk, or a key of the bucket. `Artifacts` documents the methods. They
raise OSError, or the errors of the blob store.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cached_property
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from mailslice.model.errors import BadSetting, ContentMissing, StoreUnavailable
from mailslice.model.mail import BlobId
from mailslice.model.settings import S3Settings
from mailslice.stores.durable_files import write_durably

if TYPE_CHECKING:
    from mailslice.stores.blobs.s3_store import S3BlobStore
    from mailslice.stores.blobs.store import StoredBlob

T = TypeVar("T")
_TEMPORARY, _LONGEST_WRITE = ".coming", timedelta(hours=1)


class DiskFiles:
    """Files of this machine. Links to folders are followed."""

    def write(self, name: str, data: bytes) -> None:
        target = Path(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            _remove_temporary(target)
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}{_TEMPORARY}")
        write_durably(target, data, temporary)

    def read(self, name: str) -> bytes | None:
        with suppress(FileNotFoundError):
            return Path(name).read_bytes()
        return None

    def modified(self, name: str) -> datetime | None:
        return _modified(Path(name)) if Path(name).is_file() else None

    def make_folder(self, name: str) -> None:
        Path(name).mkdir(parents=True, exist_ok=True)

    def times(self, folder: str) -> Iterator[tuple[str, datetime]]:
        for parent, _, names in os.walk(folder, onerror=_unless_missing, followlinks=True):
            for name in names:
                path = Path(parent, name)
                if (written := _modified(path)) is not None:  # else removed meanwhile
                    yield str(path), written

    def folders(self, folder: str) -> list[str]:
        with suppress(FileNotFoundError):
            return [path.name for path in Path(folder).iterdir() if path.is_dir()]
        return []

    def remove(self, name: str) -> None:
        Path(name).unlink(missing_ok=True)

    def remove_folder(self, folder: str) -> None:
        shutil.rmtree(folder, onerror=lambda _f, _path, info: _unless_missing(info[1]))


class BucketFiles:
    """Objects of an S3 bucket. A missing bucket counts as empty; the first write makes it."""

    def __init__(self, settings: S3Settings, bucket: str) -> None:
        self._settings = settings
        self._bucket = bucket

    @cached_property
    def _store(self) -> S3BlobStore:
        from mailslice.stores.blobs.s3_store import S3BlobStore

        return S3BlobStore(self._settings, self._bucket)

    def write(self, name: str, data: bytes) -> None:
        self._store.ensure_bucket()
        self._store.put(BlobId(name), data)

    def read(self, name: str) -> bytes | None:
        with suppress(ContentMissing):
            return self._unless_missing(lambda: self._store.get(BlobId(name)))
        return None

    def modified(self, name: str) -> datetime | None:
        # Lists one key: a HEAD has the same answer for a missing bucket and a missing object.
        listed = self._unless_missing(lambda: self._store.first_page(name, f"{name}\0"))
        return listed[0][0].modified.astimezone(UTC) if listed and listed[0] else None

    def make_folder(self, name: str) -> None:
        del name  # keys need no folder
        self._store.ensure_bucket()

    def times(self, folder: str) -> Iterator[tuple[str, datetime]]:
        # Other clients mark folders by empty objects whose key ends with a slash.
        files = (blob for blob in self._below(folder) if not blob.key.endswith("/"))
        return ((blob.key, blob.modified.astimezone(UTC)) for blob in files)

    def folders(self, folder: str) -> list[str]:
        return self._unless_missing(lambda: self._store.folders(_prefix(folder))) or []

    def remove(self, name: str) -> None:
        self._delete([BlobId(name)])

    def remove_folder(self, folder: str) -> None:
        if not folder:
            raise BadSetting(f"bucket {self._bucket!r} is no folder: nothing was removed")
        # A server that stores files deletes a folder's marker only after the folder's content.
        keys = [blob.key for blob in self._below(folder)]
        for is_marker in (False, True):
            self._delete([key for key in keys if key.endswith("/") is is_marker])

    def _below(self, folder: str) -> list[StoredBlob]:
        return self._unless_missing(lambda: [*self._store.list(_prefix(folder))]) or []

    def _delete(self, keys: list[BlobId]) -> None:
        failed = self._unless_missing(lambda: self._store.delete_many(keys)) or {}
        for key, why in failed.items():
            raise StoreUnavailable(f"bucket {self._bucket!r}, {key!r}: {why}")

    def _unless_missing(self, query: Callable[[], T]) -> T | None:
        """What `query` gives; None where there is no such bucket."""
        try:
            return query()
        except StoreUnavailable:
            if self._store.bucket_exists():
                raise
            return None


def _prefix(folder: str) -> str:
    return f"{folder}/" if folder else ""


def _unless_missing(error: BaseException) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _modified(path: Path) -> datetime | None:
    with suppress(FileNotFoundError):
        return datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return None


def _remove_temporary(target: Path) -> None:
    """Remove temporary files of killed writers of this file."""
    for path in target.parent.glob(f".{escape(target.name)}.*{_TEMPORARY}"):
        written = _modified(path)
        if written is not None and datetime.now(UTC) - written > _LONGEST_WRITE:
            path.unlink(missing_ok=True)
