"""HEADs and copies of single objects by obstore (Rust), at a third of the CPU that boto3 takes.

Only success counts; for the rest boto3 is asked again, so that S3's answers (no such key, too busy,
denied) are understood in one place, `bulk`.
"""

from __future__ import annotations

from functools import cached_property

import obstore
from obstore.store import S3Store

from mailslice.model.mail import BlobId
from mailslice.model.settings import S3Settings
from mailslice.stores.blobs.admin import StoredBlob
from mailslice.stores.blobs.crate import CRATE_ERRORS, s3_store
from mailslice.stores.blobs.keys import crate_changes


class QuickObjects:
    """One bucket; threads may share it."""

    def __init__(self, settings: S3Settings, bucket: str) -> None:
        self._settings = settings
        self._bucket = bucket
        self._sources: dict[str, S3Store] = {}

    def head(self, key: BlobId) -> StoredBlob | None:
        """The object now, `modified` in whole seconds; None when unknown, for whatever reason."""
        if not self._can(key):
            return None
        try:
            found = obstore.head(self._store, key)
        except CRATE_ERRORS:
            return None
        return StoredBlob(key, int(found["size"]), found["last_modified"])

    def copy(self, source: str, key: BlobId, to: BlobId) -> bool:
        """Copy an object of the bucket `source` into this one, within S3; False: perhaps not copied."""
        if not self._can(key) or not self._can(to):
            return False
        store = self._sources.get(source) or self._sources.setdefault(
            source, self._made(source, "")
        )
        try:
            obstore.copy(store, key, f"{self._bucket}/{to}")
        except CRATE_ERRORS:
            return False
        return True

    def _can(self, key: str) -> bool:
        """Not with credentials of the machine, nor keys that the crate would change."""
        settings = self._settings
        return (
            settings.access_key is not None
            and settings.secret_key is not None
            and key != ""
            and not crate_changes(key)
        )

    @cached_property
    def _store(self) -> S3Store:
        return self._made(self._bucket, f"/{self._bucket}")

    def _made(self, bucket: str, path: str) -> S3Store:
        """One request, no retries: boto3 is the second.

        Without a path its keys begin with a bucket's name. The crate puts `bucket` before the key
        of a copy's source.
        """
        return s3_store(
            self._settings,
            bucket,
            timeout=self._settings.timeout * 2,
            retries=0,
            bucket_url=self._settings.endpoint.rstrip("/") + path,
        )
