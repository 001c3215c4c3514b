"""The content of quarantined mails, in mailslice's own bucket.

A copy is two objects: `quarantine/QUEUE/ID/ATTEMPT/DEPLOYMENT/COPY/header` and `/body`. The row is
written before its copy and names it. So if no row names an object after the object was listed, its
row is gone and none will name it: the sweep needs no clock. The key shows objects of another
deployment that uses the bucket; the sweep leaves them.
"""

import logging
from collections.abc import Callable, Iterable
from functools import cached_property
from urllib.parse import quote
from uuid import uuid4

from mailslice.model.errors import ContentMissing, StoreUnavailable
from mailslice.model.mail import BlobId, QueuedMail, QueueName
from mailslice.stores import Stores
from mailslice.stores.blobs.store import BlobStore
from mailslice.stores.cassandra.own.quarantine import Content, QuarantinedMail

log = logging.getLogger(__name__)


class Copies:
    """The copies of one queue."""

    def __init__(self, stores: Stores, queue: QueueName, folder: str = "quarantine") -> None:
        self._stores = stores
        self._folder = folder
        self._queue = quote(queue, safe="")

    def new_id(self) -> str:
        """A new `copy_id` for a row that is about to be written."""
        self._own.ensure_bucket()
        return f"{self._deployment}/{uuid4().hex}"

    def make(self, mail: QuarantinedMail, item: QueuedMail) -> tuple[Content, int]:
        """Copy the blobs of `item`. Returns whether they exist, and their size. Idempotent."""
        size = 0
        sources = (item.header_blob_id, item.body_blob_id)
        for source, key in zip(sources, self._keys(mail), strict=True):
            try:
                content = self._stores.blobs.get(source)
            except ContentMissing as error:
                extra = {"action": "content_lost", "enqueue_id": str(item.enqueue_id)}
                log.warning("quarantine: content lost: %s", error, extra=extra)
                return Content.LOST, 0
            self._own.put(key, content)
            size += len(content)
        return Content.KEPT, size

    def content(self, mail: QuarantinedMail) -> bytes:
        """The bytes. Raises ContentMissing when there is no copy."""
        if mail.content is not Content.KEPT:
            raise ContentMissing(f"quarantine has no content of {mail.enqueue_id}: {mail.content}")
        header, body = self._keys(mail)
        return self._own.get(header) + self._own.get(body)

    def remove(self, mail: QuarantinedMail) -> None:
        """Delete the copy that the row names. Raises StoreUnavailable."""
        if failed := self._own.delete_many(self._keys(mail)):
            raise StoreUnavailable(
                f"S3 could not delete {len(failed)} objects of the quarantine of {self._queue}"
            )

    def sweep(self, rows: Callable[[], Iterable[QuarantinedMail]]) -> int:
        """Delete the copies that no row names. Returns the number of deleted objects."""
        if not self._own.bucket_exists():
            return 0
        listed = [blob.key for blob in self._own.list(f"{self._folder}/{self._queue}/")]
        copies = [key for key in listed if f"/{self._deployment}/" in key]
        if not copies:
            return 0
        known = {key for mail in rows() for key in self._keys(mail)}
        unnamed = [key for key in copies if key not in known]
        return len(unnamed) - len(self._own.delete_many(unnamed))

    def _keys(self, mail: QuarantinedMail) -> tuple[BlobId, BlobId]:
        folder = f"{self._folder}/{self._queue}/{mail.enqueue_id}/{mail.attempt}/{mail.copy_id}"
        return BlobId(f"{folder}/header"), BlobId(f"{folder}/body")

    @cached_property
    def _own(self) -> BlobStore:
        """Opened at the first use: a caller that only lists rows needs no S3 client."""
        return self._stores.own_blobs

    @cached_property
    def _deployment(self) -> str:
        """The deployment's id, which the own keyspace keeps for ever, whatever its addresses."""
        return self._stores.own.locks.first("deployment", str(uuid4()))
