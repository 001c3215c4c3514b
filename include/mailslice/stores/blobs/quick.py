"""HEADs and copies of single objects by obstore (Rust), at a third of the CPU that boto3 takes. Only what goes well: for the rest, boto3 is asked again.

So that whatever S3 has to say (no such key, too busy, denied) is understood in one place, `bulk`.
"""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property
from typing import Any

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from mailslice.model.mail import BlobId
from mailslice.model.settings import S3Settings
from mailslice.stores.blobs.admin import StoredBlob
from mailslice.stores.blobs.keys import crate_changes

_ERRORS = (BaseError, OSError)


class QuickObjects:
    """One bucket; threads may share it."""

    def __init__(self, settings: S3Settings, bucket: str) -> None:
        self._settings = settings
        self._bucket = bucket
        self._sources: dict[str, S3Store] = {}

    def head(self, key: BlobId) -> StoredBlob | None:
        """What is there now, `modified` in whole seconds; None when that is not known, for whatever reason."""
        if not self._can(key):
            return None
        try:
            found = obstore.head(self._store, key)
        except _ERRORS:
            return None
        return StoredBlob(key, int(found["size"]), found["last_modified"])

    def copy(self, source: str, key: BlobId, to: BlobId) -> bool:
        """Copy an object of the bucket `source` into this one, within S3; False when it is not known to be there."""
        if not self._can(key) or not self._can(to):
            return False
        store = self._sources.get(source) or self._sources.setdefault(
            source, self._of_all_buckets(source)
        )
        try:
            obstore.copy(store, key, f"{self._bucket}/{to}")
        except _ERRORS:
            return False
        return True

    def _can(self, key: str) -> bool:
        """Not where S3's keys are looked for by boto3's own rules, nor keys that the object_store crate would change: see `crate_changes`."""
        settings = self._settings
        return (
            settings.access_key is not None
            and settings.secret_key is not None
            and key != ""
            and not crate_changes(key)
        )

    @cached_property
    def _store(self) -> S3Store:
        return self._made(self._bucket, f"{self._settings.endpoint.rstrip('/')}/{self._bucket}")

    def _of_all_buckets(self, source: str) -> S3Store:
        """Its paths begin with a bucket's name; what is copied comes from the bucket `source`, which is what the crate puts before the key of a copy."""
        return self._made(source, self._settings.endpoint.rstrip("/"))

    def _made(self, bucket: str, endpoint: str) -> S3Store:
        """The endpoint is taken as the place of the bucket, as it is (what the crate calls virtual-hosted). One request, no retries: boto3 is the second."""
        settings = self._settings
        secret = settings.secret_key.get_secret_value() if settings.secret_key else ""
        config: dict[str, Any] = {
            "endpoint": endpoint,
            "region": settings.region,
            "virtual_hosted_style_request": True,
        }
        client: dict[str, Any] = {
            "allow_http": settings.endpoint.startswith("http://"),
            "connect_timeout": min(settings.timeout, timedelta(seconds=5)),
            "read_timeout": settings.timeout,
            "timeout": settings.timeout * 2,
            **({"root_certificate": settings.ca.read_bytes()} if settings.ca else {}),
        }
        retry: Any = {"max_retries": 0}
        credentials = {"access_key_id": settings.access_key, "secret_access_key": secret}
        return S3Store(
            bucket,
            config={**config, **credentials},  # type: ignore[arg-type]
            client_options=client,  # type: ignore[arg-type]
            retry_config=retry,
        )
