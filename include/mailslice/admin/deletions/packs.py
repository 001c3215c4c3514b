"""Deleted mails and their content in mailslice's own bucket: a few objects for hundreds of mails.

A batch's keys begin with `deleted/EXPIRES/QUEUE/RUN-BATCH`. `.mails` has one line of JSON a mail,
`.content` the small contents one after the other, `.NUMBER` a copy of a large blob. A listing is in
the order of EXPIRES.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Self

import orjson

from mailslice.codec import message
from mailslice.codec.row import epoch_ms, instant
from mailslice.model.errors import ContentMissing, StoreUnavailable, Undecodable
from mailslice.model.mail import BlobId, QueuedMail, QueueName
from mailslice.model.names import file_name
from mailslice.stores.blobs.store import BlobStore
from mailslice.stores.cassandra.own import DeletedBatch

DELETED_PREFIX = "deleted/"
_TIME = "%Y%m%dT%H%M%SZ"


class KeptContent(StrEnum):
    """Where the content of a deleted mail is."""

    PACKED = "packed"
    """The pack `.content` has it: `at` is the offset, `header` and `body` are lengths in bytes."""
    COPIED = "copied"
    """Two objects `.NUMBER` have it: `header` and `body` are their numbers."""
    LOST = "lost"
    """It was missing when the mail was deleted."""


@dataclass(frozen=True, slots=True)
class KeptMail:
    """A deleted mail as it was in its queue. `size` in bytes; `in_handler`: a worker had it."""

    item: QueuedMail
    enqueued: datetime
    content: KeptContent = KeptContent.LOST
    size: int = 0
    at: int = 0
    header: int = 0
    body: int = 0
    in_handler: bool = False

    def as_line(self) -> bytes:
        """Raises Undecodable for a mail that no message can hold."""
        fields = (self.content.value, self.size, self.at, self.header, self.body, self.in_handler)
        return orjson.dumps([message.encode(self.item).decode(), epoch_ms(self.enqueued), *fields])

    @classmethod
    def of_line(cls, line: bytes) -> Self:
        text, enqueued, content, *fields = orjson.loads(line)
        return cls(message.decode(text.encode()), instant(enqueued), KeptContent(content), *fields)


def key_prefix(queue: QueueName, until: datetime, run: str, batch: int) -> str:
    """The prefix of the keys of a batch's objects."""
    return f"{DELETED_PREFIX}{until:{_TIME}}/{file_name(queue)}/{run}-{batch:06}"


def write_batch(own: BlobStore, prefix: str, mails: Iterable[KeptMail], pack: bytes) -> None:
    """Write the contents, then the mails: a reader of the mails finds their content."""
    if pack:
        own.put(BlobId(f"{prefix}.content"), pack)
    own.put(BlobId(f"{prefix}.mails"), b"\n".join(mail.as_line() for mail in mails))


def copy_key(prefix: str, number: int) -> BlobId:
    return BlobId(f"{prefix}.{number}")


def read_mails(own: BlobStore, batch: DeletedBatch) -> list[KeptMail]:
    """The mails of a batch. Leaves out mails that no message can hold: they have no content.

    Raises ContentMissing when the batch's `.mails` object is gone.
    """
    mails = []
    for line in own.get(BlobId(f"{batch.place}.mails")).splitlines():
        with suppress(Undecodable):
            mails.append(KeptMail.of_line(line))
    return mails


class Contents:
    """The contents of a batch; its pack is read once."""

    def __init__(self, own: BlobStore, batch: DeletedBatch) -> None:
        self._own = own
        self._place = batch.place
        self._pack: bytes | None = None

    def parts(self, mail: KeptMail) -> tuple[bytes, bytes]:
        """Header and body. Raises ContentMissing."""
        if mail.content is KeptContent.LOST:
            raise ContentMissing(
                f"the content of {mail.item.enqueue_id} was lost before its delete"
            )
        if mail.content is KeptContent.COPIED:
            header, body = (copy_key(self._place, number) for number in (mail.header, mail.body))
            return self._own.get(header), self._own.get(body)
        if self._pack is None:
            self._pack = self._own.get(BlobId(f"{self._place}.content"))
        middle = mail.at + mail.header
        return self._pack[mail.at : middle], self._pack[middle : middle + mail.body]


def expire(own: BlobStore, now: datetime) -> None:
    """Delete the objects that expired by `now`. Costs one listing where there are none.

    Raises StoreUnavailable when S3 could not delete one of them.
    """
    pages = own.pages(DELETED_PREFIX, f"{DELETED_PREFIX}{now:{_TIME}}")
    failed = own.delete_many(blob.key for page in pages for blob in page)
    for key, why in failed.items():
        raise StoreUnavailable(f"{len(failed)} objects are left, such as {key}: {why}")
